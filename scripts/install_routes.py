"""Type what README.md and the install page say, each route in a fresh environment.

    python scripts/install_routes.py [INTERPRETER …]    # by default the one that runs this

A route is a block of shell in either; several that are alike are run once. Torch is held at its version in
constraints.txt, of which a CPU build is asked for, since the newest from PyPI is gigabytes; all else is as written.
Routes with constraints for other versions of Python are left out.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/install.md")
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# The dihedral group after this package, which mends what newer scikit-learns break there.
CHECK = """
import importlib, importlib.metadata, importlib.util, warnings
warnings.filterwarnings("ignore", "`py3nj` package not found")
from escnn import gspaces, nn
import torch
from escnn_relaxed import RelaxedR2Conv
gspace = gspaces.flipRot2dOnR2(5)
for optional in ("matplotlib", "sklearn", "onnxruntime", "onnxscript", "lightning"):
    if importlib.util.find_spec(optional):
        importlib.import_module(optional)
fields = nn.FieldType(gspace, [gspace.regular_repr])
layer = RelaxedR2Conv(fields, fields, 3, padding=1, initial_softness=0.1)
assert layer(fields(torch.randn(1, fields.size, 8, 8))).shape == (1, fields.size, 8, 8)
names = [name for name in importlib.metadata.packages_distributions().get("lie_learn", [])]
names += ["torch", "numpy", "escnn", "scikit-learn", "ml_dtypes"]
found = {each.metadata["Name"] for each in importlib.metadata.distributions()}
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in names if name in found))
"""


def routes() -> dict[str, str]:
    """Each block of shell, and where it is written."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            found.setdefault(match.group(1), []).append(f"{page}:{text.count(chr(10), 0, match.start()) + 1}")
    return {block: ", ".join(places) for block, places in found.items()}


def what_is_missing(block: str, version: str) -> str | None:
    """What a route needs that is not here: another Python, or a compiler for a dependency of escnn."""
    if "--no-deps" not in block and shutil.which("gfortran") is None:
        return "gfortran"
    if "-c constraints-newest.txt" in block:
        return None if version in ("3.12", "3.13", "3.14") else "Python 3.12 to 3.14"
    if "./compat" not in block:  # but lie_learn itself
        return "Python 3.10 to 3.12" if version in ("3.13", "3.14") else None
    return None


def run(block: str, interpreter: str, clone: Path, scratch: Path) -> str:
    """Type a route into a shell inside a clone.

    Raises:
        subprocess.CalledProcessError: where a command, or what it led to, fails.
    """
    environment, torch_pin = scratch / "environment", scratch / "torch.txt"
    subprocess.run([interpreter, "-m", "venv", environment], check=True)
    (pin,) = re.findall(r"^torch==\S+$", (clone / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    torch_pin.write_text(pin)
    indices = os.environ.get("PIP_EXTRA_INDEX_URL", "").split()
    variables = {
        **os.environ,
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(environment),
        "PIP_CONSTRAINT": str(torch_pin),
        "PIP_EXTRA_INDEX_URL": " ".join([*indices, TORCH_CPU_INDEX]),
    }

    def typed(*command: str | Path, folder: Path) -> str:
        done = subprocess.run(
            command, cwd=folder, env=variables, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return done.stdout

    typed("bash", "-euo", "pipefail", "-c", block, folder=clone)
    return typed(environment / "bin" / "python", "-c", CHECK, folder=scratch).splitlines()[-1]


def main(interpreters: list[str]) -> int:
    """Run every route that this machine can, and say what came of it."""
    failures = 0
    for interpreter, (block, place) in itertools.product(interpreters or [sys.executable], routes().items()):
        command = [interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        version = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        print(f"\n== {place}, on Python {version}\n{block}", end="", flush=True)
        missing = what_is_missing(block, version)
        if missing:
            print(f"-> not run: it needs {missing}, and there is none here", flush=True)
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder) / "clone"
            shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info"))
            try:
                outcome = f"works: {run(block, interpreter, clone, Path(folder))}"
            except subprocess.CalledProcessError as error:
                failures += 1
                outcome = f"FAILS\n{error.output[-3000:]}"
        print(f"-> {outcome} ({time.monotonic() - start:.0f} s)", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
