"""Check what sdist and wheel hold: python scripts/archives.py dist."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Tracked, but no part of the sdist.
LEFT_OUT = (".ci/", ".github/", ".gitignore", ".pre-commit-config.yaml")


def tracked() -> set[str]:
    """Files of the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


def main(folder: str) -> int:
    """Every module, its data and the licence in the wheel and nothing else; every tracked file in the sdist.

    The description that a package index shows has no links into the repository.
    """
    (wheel,), (sdist,) = Path(folder).glob("*.whl"), Path(folder).glob("*.tar.gz")
    files = tracked()
    in_wheel = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    package = {name for name in files if name.startswith("escnn_relaxed/")}
    problems = [f"the wheel lacks {name}" for name in sorted(package - in_wheel)]
    others = sorted(name for name in in_wheel - package if ".dist-info/" not in name)
    problems += [f"the wheel holds {name}, which is not tracked" for name in others]
    if not any(name.endswith("licenses/LICENSE") for name in in_wheel):
        problems.append("the wheel lacks LICENSE")
    (metadata,) = [name for name in in_wheel if name.endswith(".dist-info/METADATA")]
    description = zipfile.ZipFile(wheel).read(metadata).decode()
    dead = [link for link in re.findall(r"\]\(([^)\s]*)\)", description) if not link.startswith("https://")]
    problems += [f"the description for a package index links to {link}" for link in dead]
    if "```python" not in description:
        problems.append("the description for a package index has no code")
    wanted = {name for name in files if not name.startswith(LEFT_OUT)}
    problems += [f"the sdist lacks {name}" for name in sorted(wanted - in_sdist)]
    print(
        "\n".join(problems) or f"{wheel.name}: {len(in_wheel)} files, {sdist.name}: {len(in_sdist)} files and folders"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
