"""The notebooks of examples/notebooks are the tutorials as they are now, with outputs, and run by themselves."""

import ast
import importlib.util
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jupytext", reason="of the docs: make docs")
nbformat = pytest.importorskip("nbformat", reason="of the docs: make docs")

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "notebooks.py"
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("[0-9]-*.md"))
NOTEBOOKS = ROOT / "examples" / "notebooks"

# What the prose of a tutorial states as measured: decimals, powers of ten, percentages.
STATED = r"(?<![\w.])\d+\.\d+(?:e-\d+)?|\b\de-\d+\b|\b\d+(?= %)"
NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
# By the number of the tutorial: what is stated and not printed, and what it follows from. The numbers of a formula are
# printed, but for these.
ARITHMETIC = {1.0, 2.0, 3.0, 4.0, 100.0, 1000.0}
DERIVED: dict[str, dict[str, str]] = {
    "1": {"0.25": "1 / 4", "0.001": "1 / 1000"},
    "2": {"2.6": "93.8 - 91.2", "0.001": "1 / 1000"},
    "5": {"50": "100 / 2", "0.6": "92.4 - 91.8", "3.2": "93.0 - 89.8", "1.8": "93.6 - 91.8", "3.8": "94.2 - 90.4"},
    "7": {"0.001": "1 / 1000"},
    "8": {"90": "100 - 32**2 / 100"},
}

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


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda tutorial: tutorial.stem)
def test_first_cell_installs_each_module_that_is_imported_and_missing(
    tutorial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [cell.source for cell in saved(tutorial).cells if cell.cell_type == "code"]
    # Lines of pip become calls, which the notebook's shell makes of them.
    first = re.sub(r"%pip install (.*)", r'pip(f"\1")', cells[0])
    roots = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse("\n".join(cells[1:])))
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None)])
        if name
    } - sys.stdlib_module_names
    assert {"torch", "escnn", "escnn_relaxed", "matplotlib"} <= roots
    monkeypatch.chdir(NOTEBOOKS)
    found = importlib.util.find_spec
    for missing in (None, *sorted(roots)):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, missing=missing: None if name == missing else found("sys")
        )
        typed: list[str] = []
        exec(first, {"pip": typed.append})
        words = {word.removesuffix("/compat").replace("scikit-learn", "sklearn") for word in " ".join(typed).split()}
        assert bool(typed) == (missing is not None)
        if missing == "phi":
            missing = "phiflow"
        # The package itself is the folder; NumPy comes with SciPy.
        assert missing is None or {"escnn_relaxed": "../..", "numpy": "scipy"}.get(missing, missing) in words


def printed(notebook: Any) -> str:
    """The text of all outputs."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)


def numbers(text: str) -> set[float]:
    return {float(number) for number in re.findall(NUMBER, text)}


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda tutorial: tutorial.stem)
def test_numbers_that_a_tutorial_states_are_in_the_outputs_of_its_notebook(tutorial: Path) -> None:
    """Or in its code, where they are settings. If this fails, the text is older than the outputs."""
    notebook, number = saved(tutorial), tutorial.name[0]
    prose, code = (
        "\n".join(cell.source for cell in notebook.cells if cell.cell_type == kind) for kind in ("markdown", "code")
    )
    known = numbers(printed(notebook)) | numbers(code)
    derived = DERIVED.get(number, {})
    for result, formula in derived.items():
        assert numbers(formula) - ARITHMETIC <= known, formula
        assert f"{eval(formula):.{len(result.partition('.')[2])}f}" == result
    stated = re.findall(STATED, re.sub(r"\]\([^)]*\)", "]", prose))
    assert set(derived) <= set(stated)
    assert not [each for each in stated if each not in derived and float(each) not in known]


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
