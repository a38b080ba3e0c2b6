"""Makes the notebooks of examples/notebooks from the tutorials, docs/tutorials, and executes them.

    python scripts/notebooks.py [TUTORIAL …]    # numbers; by default those whose code has changed. Or: make notebooks

A tutorial is kept as text, and the site runs it when it is built. Its notebook is the same cells with their outputs and
two cells more: one installs the package where it is missing, and a folded one has the code of docs/tutorials/tools.py
where the tutorial imports it. So a notebook runs alone.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import jupytext
import nbclient
import nbformat
from nbformat import NotebookNode

# What a notebook gives to pip: the folder two above it, or once there is one the address, as "git+https://…".
REPOSITORY = "../.."
ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
NOTEBOOKS = ROOT / "examples" / "notebooks"

INSTALL = """# Installs what is missing of what this notebook imports.
# REPOSITORY is the folder of the package, with setup.py in it, or "git+https://…".
# If this notebook lies elsewhere, as in Colab, set REPOSITORY before you run this cell.
import importlib.util
from pathlib import Path

REPOSITORY = "{repository}"
PACKAGE = {package}
OTHERS = {others}


def is_missing(module):
    return importlib.util.find_spec(module) is None


if any(map(is_missing, PACKAGE)):
    if "://" not in REPOSITORY and not Path(REPOSITORY, "setup.py").exists():
        raise FileNotFoundError(
            f"set REPOSITORY to the folder with setup.py in it, not {{REPOSITORY!r}}"
        )
    COMPAT = REPOSITORY + ("#subdirectory=" if "://" in REPOSITORY else "/") + "compat"
    %pip install -q torch scipy {{COMPAT}} pymanopt autograd joblib einops
    %pip install -q --no-deps escnn {{REPOSITORY}}
MISSING = " ".join(OTHERS[module] for module in OTHERS if is_missing(module))
if MISSING:
    %pip install -q {{MISSING}}
"""
# What pip calls the package of each module that no line above installs.
PACKAGES = {
    "matplotlib": "matplotlib",
    "sklearn": "scikit-learn",
    "phi": "phiflow",
    "torch_geometric": "torch_geometric",
}
OF_THE_PACKAGE = ("torch", "numpy", "scipy", "escnn", "lie_learn", "escnn_relaxed")
TOOLS = re.compile(r"^from tools import (?:\([^)]*\)|.*)\n+", re.MULTILINE)
# Links of a page to its notebook, and code of the tools, which a notebook has.
OF_THE_PAGE = re.compile(r"^\{download\}[^\n]*\n+|^```\{literalinclude\}.*?^```\n*", re.MULTILINE | re.DOTALL)
ENVIRONMENT = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "MATPLOTLIBRC": str(ROOT / "docs" / "matplotlibrc"),
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Said on import: by escnn of what only its 3D groups use, by tqdm of its bars of progress.
    "PYTHONWARNINGS": "ignore:`py3nj` package not found:UserWarning,ignore:IProgress not found",
}


def notebook_of(tutorial: Path) -> NotebookNode:
    """The notebook of a page, not executed: without the links to itself, and with links that lead on from it."""
    notebook, tools = jupytext.read(tutorial), None
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            source = OF_THE_PAGE.sub("", cell.source)
            cell.source = re.sub(r"(?<=\]\()(?!https?:)[^)\s]+", lambda link: link_from_notebook(link.group()), source)
        elif TOOLS.search(cell.source):
            cell.source = TOOLS.sub("", cell.source)
            tools = nbformat.v4.new_code_cell((TUTORIALS / "tools.py").read_text(encoding="utf-8").strip())
            tools.metadata["tags"] = ["hide-input"]
    if tools is not None:
        notebook.cells.insert(1, tools)
    for cell in notebook.cells:
        if "hide-input" in cell.metadata.get("tags", ()):
            cell.metadata["jupyter"] = {"source_hidden": True}
    others = imported(notebook) - set(OF_THE_PACKAGE)
    install = INSTALL.format(
        repository=REPOSITORY,
        package=json.dumps(OF_THE_PACKAGE),
        others=json.dumps({module: PACKAGES[module] for module in sorted(others)}, indent=4),
    )
    notebook.cells.insert(1, nbformat.v4.new_code_cell(install.strip()))
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # by itself it is drawn at random
    return notebook


def imported(notebook: NotebookNode) -> set[str]:
    """The modules that the cells import, but for those of Python."""
    found: set[str] = set()
    for cell in notebook.cells:
        for node in ast.walk(ast.parse(cell.source)) if cell.cell_type == "code" else ():
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).partition(".")[0])
    return found - sys.stdlib_module_names


def link_from_notebook(link: str) -> str:
    """Where a link of a tutorial leads, seen from its notebook: to other notebooks, or to the pages."""
    page = TUTORIALS / link
    return f"{page.stem}.ipynb" if page.parent == TUTORIALS else os.path.relpath(page, NOTEBOOKS)


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Fill in the outputs, in place; the folder is the one to run in."""
    os.environ.update(ENVIRONMENT)
    nbclient.NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=None,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute()


def without_noise(notebook: NotebookNode) -> NotebookNode:
    """The same without what differs between machines and is not to be read."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = NotebookNode(kernelspec=kernel, language_info={"name": "python"})
    for cell in notebook.cells:
        unseen = {tag.removeprefix("remove-") for tag in cell.metadata.get("tags", ())}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") not in unseen]
    return notebook


def take_outputs(notebook: NotebookNode, file: Path) -> bool:
    """Take the outputs of the notebook as it was, if its code is the same."""
    if not file.exists():
        return False
    now, before = (
        [cell for cell in cells if cell.cell_type == "code"]
        for cells in (notebook.cells, nbformat.read(file, as_version=4).cells)
    )
    if [cell.source for cell in now] != [cell.source for cell in before]:
        return False
    for cell, old in zip(now, before, strict=True):
        cell.outputs, cell.execution_count = old.outputs, old.execution_count
    return True


def main(numbers: list[str]) -> None:
    """Bring all notebooks up to date, and run these, or those whose code has changed."""
    NOTEBOOKS.mkdir(exist_ok=True)
    for tutorial in sorted(TUTORIALS.glob("[0-9]-*.md")):
        notebook, output = notebook_of(tutorial), NOTEBOOKS / f"{tutorial.stem}.ipynb"
        if tutorial.name[0] in numbers or not take_outputs(notebook, output):
            with tempfile.TemporaryDirectory() as folder:
                execute(notebook, Path(folder))
        nbformat.write(without_noise(notebook), output)
        print(f"notebooks: {output.relative_to(ROOT)}, {output.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
