"""The README's code runs as it stands, early in the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def python_blocks() -> list[tuple[int, str]]:
    """Line in the README and text of every Python block."""
    if not README.exists():
        return []
    text = README.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in FENCE.finditer(text)]


@pytest.mark.skipif(not README.exists(), reason="no README.md beside the tests")
def test_readme_has_code_by_line_25() -> None:
    lines = [line for line, _ in python_blocks()]
    assert lines, "no Python block"
    assert lines[0] <= 25


@pytest.mark.skipif(not README.exists(), reason="no README.md beside the tests")
@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_files_that_are_linked_to_exist(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", (README.parent / name).read_text(encoding="utf-8"))):
        assert target.startswith("https://") or (README.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize(("line", "code"), [pytest.param(*block, id=f"line {block[0]}") for block in python_blocks()])
def test_readme_code_runs(line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block by itself, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"README.md, line {line}", "exec"), {"__name__": "__readme__"})
