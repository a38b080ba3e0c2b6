"""The notebooks of examples/notebooks are the tutorials as they are now, with outputs, and run by themselves."""

from __future__ import annotations

import importlib.util
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


def name_of(tutorial: Path) -> str:
    return tutorial.stem


def test_there_is_a_notebook_for_each_tutorial_and_no_other() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {tutorial.stem for tutorial in TUTORIALS}
    assert sum(path.stat().st_size for path in NOTEBOOKS.glob("*.ipynb")) < 3e6


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=name_of)
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


def test_notebooks_install_as_the_install_page_says() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    for install in {saved(tutorial).cells[1].source for tutorial in TUTORIALS}:
        package, escnn, *_ = re.findall(r"%pip install -q (.*)", install)
        assert f"pip install {package.replace('{COMPAT}', './compat')}\n" in page
        assert f"pip install {escnn.replace('{REPOSITORY}', '.')}\n" in page
        assert (NOTEBOOKS / re.findall(r'^REPOSITORY = "(.*)"', install, re.MULTILINE)[0] / "setup.py").exists()


def test_install_cell_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, where the package is missing; pip is noted, not run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    cell = re.sub(r"%pip (.*)", lambda line: f"pip(f{line[1]!r})", saved(TUTORIALS[0]).cells[1].source)
    typed: list[str] = []
    with pytest.raises(FileNotFoundError, match=r"set REPOSITORY to the folder with setup\.py in it"):
        exec(cell, {"pip": typed.append})
    assert not typed
    for repository, compat in (
        (str(ROOT), f"{ROOT}/compat"),
        ("git+https://host/it.git", "git+https://host/it.git#subdirectory=compat"),
    ):
        exec(re.sub(r'REPOSITORY = ".*"', f'REPOSITORY = "{repository}"', cell), {"pip": typed.append})
        assert f"install -q torch scipy {compat} pymanopt autograd joblib einops" in typed
        assert f"install -q --no-deps escnn {repository}" in typed


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=name_of)
def test_notebook_runs_by_itself(
    tutorial: Path, script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own that starts in an empty folder."""
    if tutorial.name[0] == "7":
        pytest.importorskip("phi")
    for name, value in {**script["ENVIRONMENT"], "ESCNN_RELAXED_SMOKE": "1", "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    notebook = saved(tutorial)
    for cell in notebook.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    script["execute"](notebook, tmp_path)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize(("tags", "left"), [([], ["stdout", "stderr"]), (["remove-stdout"], ["stderr"])])
def test_noise_is_left_out_where_a_tag_says_so(tags: list[str], left: list[str], script: dict[str, Any]) -> None:
    """Of escnn, which says on a stream that it loads a file."""
    streams = [nbformat.v4.new_output("stream", name=name, text="noise") for name in ("stdout", "stderr")]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("1", outputs=streams, metadata={"tags": tags})]
    )
    assert [output.name for output in script["without_noise"](notebook).cells[0].outputs] == left


@pytest.mark.parametrize(("code", "is_kept"), [("1 + 1", True), ("1 + 2", False)])
def test_outputs_are_kept_where_text_alone_has_changed(
    code: str, is_kept: bool, script: dict[str, Any], tmp_path: Path
) -> None:
    before, now = nbformat.v4.new_notebook(), nbformat.v4.new_notebook()
    output = nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=1)
    before.cells = [nbformat.v4.new_code_cell("1 + 1", outputs=[output], execution_count=1)]
    nbformat.write(before, tmp_path / "before.ipynb")
    now.cells = [nbformat.v4.new_markdown_cell("A sum."), nbformat.v4.new_code_cell(code)]
    assert script["take_outputs"](now, tmp_path / "before.ipynb") is is_kept
    assert bool(now.cells[1].outputs) is is_kept
