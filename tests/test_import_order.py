"""Nothing is printed on import where README's and the pages' lines are typed as they stand, py3nj or not."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)]
# What readers run or copy.
FILES = [
    *sorted((ROOT / "examples").glob("*.py")),
    *[path for name in ("networks_to_copy", "tutorials/tools") if (path := ROOT / "docs" / f"{name}.py").exists()],
]
BLOCK = re.compile(r"^```(?:python|\{code-cell\})[^\n]*\n(?::.*\n)*(.*?)^```", re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.skipif(not README.exists() or not FILES, reason="no pages beside the tests")


def blocks_of(page: Path) -> list[str]:
    return [match.group(1) for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def imported(code: str) -> Iterator[str]:
    """The packages that lines at the top import, in their order."""
    for node in ast.parse(code).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).partition(".")[0]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(blocks_of(README)) if README.exists() else 0))
def test_lines_of_the_readme_warn_of_nothing_in_a_fresh_process(number: int, tmp_path: Path) -> None:
    setting = f"import sys\nsys.modules['py3nj'] = None\nsys.path.insert(0, {str(ROOT)!r})\n"
    lines = setting + blocks_of(README)[number]
    found = subprocess.run([sys.executable, "-"], input=lines, capture_output=True, text=True, cwd=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_import_this_package_before_escnn(page: Path) -> None:
    for code in blocks_of(page):
        names = list(imported(code))
        if {"escnn", "escnn_relaxed"} <= set(names):
            assert names.index("escnn_relaxed") < names.index("escnn"), code


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_examples_import_this_package_before_escnn(file: Path) -> None:
    names = list(imported(file.read_text(encoding="utf-8")))
    if "escnn" in names and "escnn_relaxed" in names:
        assert names.index("escnn_relaxed") < names.index("escnn")
