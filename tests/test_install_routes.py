"""The commands to install, in README.md and on the install page, name all that is needed; `make routes` runs them."""

from __future__ import annotations

import ast
import re
import runpy
from importlib.metadata import requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "install_routes.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="no scripts beside the tests")


@pytest.fixture(scope="module")
def routes() -> dict[str, str]:
    found: dict[str, str] = runpy.run_path(str(SCRIPT))["routes"]()
    return found


def name_of(requirement: str) -> str:
    return re.split(r"[\s<>=;(]", requirement)[0].replace("-", "_").lower()


def needed() -> set[str]:
    """Return the packages that setup.py and escnn ask for, less those installed beside them or coming with torch."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (own,) = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "install_requires"]
    return {name_of(each) for each in [*ast.literal_eval(own), *requires("escnn")]} - {
        "escnn",
        "numpy",  # comes with ./compat or lie_learn
        "py3nj",
        "typing_extensions",
    }


def test_route_of_the_readme_is_one_of_the_install_page(routes: dict[str, str]) -> None:
    of_readme = [place for place in routes.values() if "README.md" in place]
    assert len(of_readme) == 1
    assert all("docs/install.md" in place for place in of_readme)


def test_where_nothing_is_resolved_all_is_named(routes: dict[str, str]) -> None:
    without_resolution = [block for block in routes if "--no-deps escnn" in block]
    assert len(without_resolution) == 5
    for block in without_resolution:
        named = {name_of(word.strip('"')) for word in block.replace("./compat", "lie_learn").split()}
        assert not needed() - named


@pytest.mark.parametrize("version", ["3.10", "3.14"])
def test_two_lines_of_the_first_page_need_nothing_but_python(routes: dict[str, str], version: str) -> None:
    (block,) = [block for block, place in routes.items() if "README.md" in place]
    assert len(block.splitlines()) == 2
    assert runpy.run_path(str(SCRIPT))["what_is_missing"](block, version) is None
