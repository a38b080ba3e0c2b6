"""The notebooks of examples/notebooks are the tutorials as they are now, with outputs, and run by themselves."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jupytext", reason="of the docs: make docs")
nbformat = pytest.importorskip("nbformat", reason="of the docs: make docs")

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "notebooks.py"
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("[0-9]-*.md"))
NOTEBOOKS = ROOT / "examples" / "notebooks"


pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="no scripts beside the tests")


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def saved(tutorial: Path) -> Any:
    return nbformat.read(NOTEBOOKS / f"{tutorial.stem}.ipynb", as_version=4)


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda tutorial: tutorial.stem)
def test_notebook_is_its_tutorial_as_it_is_now_with_its_outputs(tutorial: Path, script: dict[str, Any]) -> None:
    """If this fails, run ``make notebooks``."""
    made, kept = script["notebook_of"](tutorial), saved(tutorial)
    sources = [[(cell.cell_type, cell.source) for cell in notebook.cells] for notebook in (made, kept)]
    assert sources[0] == sources[1]
    nbformat.validate(kept)
    cells = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert not [line for cell in cells for line in cell.source.splitlines() if len(line) > 88]
    text = "\n".join(cell.source for cell in kept.cells if cell.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("https:")]
    assert not [link for link in links if not (NOTEBOOKS / link.partition("#")[0]).exists()]
    assert "{" + "download}" not in text
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {tutorial.stem for tutorial in TUTORIALS}


@pytest.mark.slow
def test_notebook_runs_by_itself(script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own that starts in an empty folder. The cells of the others run when the site is built."""
    for name, value in {**script["ENVIRONMENT"], "ESCNN_RELAXED_SMOKE": "1", "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    notebook = saved(TUTORIALS[0])
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    script["execute"](notebook, tmp_path)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
