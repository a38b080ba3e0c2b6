"""The site's pages: their Python runs, their links lead somewhere, they render."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from escnn_relaxed import RelaxedR2Conv, RelaxedR3Conv

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
TABLES = sorted((DOCS.parent / "benchmarks" / "results" / "tables").glob("*.md"))
TUTORIALS = sorted(DOCS.glob("tutorials/[0-9]*.md"))
BLOCK = re.MULTILINE | re.DOTALL
FENCE = re.compile(r"^```python\n(.*?)^```", BLOCK)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
PUBLIC_MODULES = (
    "",
    ".measure",
    ".learning",
    ".learning.lightning_callbacks",
    ".plots",
    ".kernel",
    ".baselines",
    ".network",
    ".models",
)
# A mean and its standard error.
VALUE = r"(−?\d+\.\d+) ± (\d+\.\d+)"

pytestmark = pytest.mark.skipif(not PAGES, reason="no docs beside the tests")


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """Line and text of every Python block."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in FENCE.finditer(text)]


# torch's own warning, when it exports and compiles.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=name_of)
def test_python_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a page in one namespace, as a reader would type them, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, object] = {"__name__": "__docs__"}
    for line, code in python_blocks(page):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_links_to_exist(page: Path) -> None:
    for match in LINK.finditer(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)):
        target = urlsplit(match.group(1) or match.group(2))
        if not target.scheme and target.path:
            assert (page.parent / unquote(target.path)).exists(), f"{name_of(page)} links to {target.path}"


def cells_of(tutorial: Path) -> list[str]:
    """Python of each cell, without its tags."""
    cells = re.findall(r"^```\{code-cell\}\n(.*?)^```", tutorial.read_text(encoding="utf-8"), BLOCK)
    return [re.sub(r"^:tags:.*\n", "", cell) for cell in cells]


@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_cells_of_a_tutorial_are_python_that_imports_nothing_beside_it(page: Path) -> None:
    """That they run is seen when the site is built; here that they parse, and that no output was left in the text."""
    cells = cells_of(page)
    assert cells
    imported = [node for cell in cells for node in ast.walk(ast.parse(cell, str(page)))]
    modules = {node.module or "" for node in imported if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in imported if isinstance(node, ast.Import) for name in node.names}
    known = {"escnn", "escnn_relaxed", "matplotlib", "numpy", "phi", "sklearn", "torch", *sys.stdlib_module_names}
    assert {module.partition(".")[0] for module in modules} <= known


def test_functions_of_one_name_are_the_same_in_all_tutorials_on_digits() -> None:
    """Tutorials stand by themselves, so that they have copies of each other's code; smoke is trained otherwise."""
    sources: dict[str, str] = {}
    for page in DOCS.glob("tutorials/[0-6]-*.md"):
        code = "\n".join(cells_of(page))
        for node in ast.parse(code).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                source = ast.get_source_segment(code, node) or ""
                assert sources.setdefault(node.name, source) == source, f"{name_of(page)}: {node.name}"
    assert {"digits", "turned", "train", "accuracy", "SteerableCNN"} <= set(sources)


@pytest.mark.parametrize("page", [DOCS.parent / "README.md", *PAGES], ids=lambda page: page.stem)
def test_code_of_a_page_fits_its_column(page: Path) -> None:
    blocks = re.findall(r"^```(?:python|bash|\{code-cell\})\n(.*?)^```", page.read_text(encoding="utf-8"), BLOCK)
    assert not [line for block in blocks for line in block.splitlines() if len(line) > 88]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_code_can_be_read_against_its_background(scheme: str) -> None:
    """A contrast of 4.5 : 1 is what WCAG 2 asks of text."""
    styles = pytest.importorskip("pygments.styles")
    conf = (DOCS / "conf.py").read_text(encoding="utf-8")
    chosen = re.search(rf'"pygments_{scheme}_style": "(.+?)"', conf)
    assert chosen
    try:
        style = styles.get_style_by_name(chosen.group(1))
    except styles.ClassNotFound:
        pytest.skip("of the docs: make docs")
    contrasts = {
        str(token): contrast(found["color"], (found["bgcolor"] or style.background_color).lstrip("#"))
        for token, found in style
        if found["color"]
    }
    assert len(contrasts) > 20
    assert min(contrasts.values()) >= 4.5, min(contrasts, key=lambda token: contrasts[token])


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours rrggbb, after WCAG 2."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[first : first + 2], 16) / 255 for first in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_equations_keep_the_numbers_that_the_code_knows_them_by() -> None:
    """A new one goes to the end of the page, or its number into every comment."""
    page = (DOCS / "concepts" / "mathematics.md").read_text(encoding="utf-8")
    labels = "operator steered-average permutation-fields fourier-features kernel-net projection softness bound hybrid"
    assert re.findall(r"^:label: (\S+)$", page, re.MULTILINE)[:9] == labels.split()


def test_every_module_has_its_place_on_the_page_of_the_architecture() -> None:
    page = (DOCS / "design.md").read_text(encoding="utf-8")
    package = DOCS.parent / "escnn_relaxed"
    modules = [path.stem for path in package.glob("*.py") if path.stem[0] != "_"]
    modules += [f"{path.parent.name}/" for path in package.glob("*/__init__.py")]
    outside = ("plots", "baselines")
    modules += [path.stem for path in package.glob("*/*.py") if path.stem[0] != "_" and path.parent.name not in outside]
    assert not [module for module in modules if f"`{module}`" not in page]


def test_cost_of_soft_translation_is_that_of_the_table() -> None:
    """Every page that names the ratios has those between the least and the largest of docs/results/cost.md."""
    table = re.search(
        r"\| fields, channels \|.*?\n\n", (DOCS / "results" / "cost.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert table
    cells = [line.strip("| ").split("|") for line in table.group().strip().splitlines()[2:]]
    training = [float(row[3].split("**")[1]) for row in cells]
    memory = [float(row[-1]) for row in cells]
    names = ("README.md", "docs/index.md", "docs/limits.md", "docs/design.md", "docs/results/cost.md")
    for page in (DOCS.parent / name for name in names):
        text = " ".join(page.read_text(encoding="utf-8").split())
        for ratios, what in ((training, "the time"), (memory, "its peak memory")):
            assert f"{min(ratios):.1f} to {max(ratios):.1f} times {what}" in text, f"{page.name}: {what}"


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_accuracies_of_the_first_page_are_those_of_the_page_of_accuracies(name: str) -> None:
    """Rounded to as many digits as are quoted."""
    page = (DOCS / "results" / "accuracy.md").read_text(encoding="utf-8").replace("*", "")
    measured = {
        tuple(f"{float(part):.{digits}f}" for part in pair) for pair in re.findall(VALUE, page) for digits in (1, 2)
    }
    quoted = re.findall(VALUE, (DOCS.parent / name).read_text(encoding="utf-8").replace("*", ""))
    assert quoted
    assert not [pair for pair in quoted if pair not in measured]


def test_differences_between_strict_and_soft_are_those_of_the_pages_that_measure() -> None:
    """Differences are soft less strict for accuracies, strict less soft for errors. Standard errors add in squares."""
    page = (DOCS / "results" / "ways.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| .* \| (accuracy|error), % \| {VALUE} \| {VALUE} \| {VALUE} \|$", page, re.MULTILINE)
    assert len(rows) == 9
    sources = "".join((DOCS / "results" / f"{name}.md").read_text("utf-8") for name in ("accuracy", "smoke"))
    measured = re.findall(VALUE, sources.replace("*", ""))
    for measure, *numbers in rows:
        strict, soft = tuple(numbers[:2]), tuple(numbers[2:4])
        assert strict in measured
        assert soft in measured
        sign = 1 if measure == "accuracy" else -1
        assert float(numbers[4].replace("−", "-")) == pytest.approx(
            sign * (float(soft[0]) - float(strict[0])), abs=1e-9
        )
        assert float(numbers[5]) == pytest.approx(math.hypot(float(strict[1]), float(soft[1])), abs=0.0051)


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_tables_that_scripts_write_stand_on_a_page_as_they_are(file: Path) -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("results/*.md"))
    tables = re.findall(r"(?:^\|.*\n)+", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert tables
    assert not [table for table in tables if table not in pages]


@pytest.mark.parametrize("page", [DOCS.parent / "README.md", *PAGES], ids=lambda page: page.stem)
def test_page_installs_from_a_clone_and_names_files_that_exist(page: Path) -> None:
    """No registry has the package; and files that were moved are found in the text, too."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"pip install [\"']?escnn_relaxed", text)
    files = re.findall(
        r"`((?:escnn_relaxed|experiments|tests|benchmarks|examples|docs|scripts)/[\w/-]+\.\w+)[`:]", text
    )
    assert not [name for name in files if not (DOCS.parent / name).exists()]


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    package = importlib.import_module(f"escnn_relaxed{module}")
    reference = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("api/*.md"))
    named = re.findall(r"\.\. (?:auto\w+|py:data):: ([\w.]+)", reference)
    # Names at the top of the package are described once, under that path.
    missing = [
        name
        for name in package.__all__
        if name[0] != "_" and not {f"{package.__name__}.{name}", f"escnn_relaxed.{name}"}.intersection(named)
    ]
    assert not missing


def test_reference_names_nothing_that_is_gone() -> None:
    for page in DOCS.glob("api/*.md"):
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"(?:\.\. auto(?:class|function):: |\{py:\w+\}`~)(escnn_relaxed[\w.]*)", text):
            module, _, member = name.rpartition(".")
            assert member in importlib.import_module(module).__all__, f"{name_of(page)}: {name}"


def public_objects() -> Iterator[tuple[str, Any]]:
    """Classes and functions that users call, by their names."""
    for module in PUBLIC_MODULES:
        package = importlib.import_module(f"escnn_relaxed{module}")
        for name in package.__all__:
            if callable(getattr(package, name)):
                yield f"{package.__name__}.{name}", getattr(package, name)


def methods_in_the_reference() -> Iterator[tuple[str, Any]]:
    """Those of the layers that the reference names."""
    page = (DOCS / "api" / "layer.md").read_text(encoding="utf-8") if PAGES else ""
    for name in re.findall(r"\.\. auto(?:method|property):: (\w+)", page):
        of = RelaxedR2Conv if hasattr(RelaxedR2Conv, name) else RelaxedR3Conv
        yield f"{of.__name__}.{name}", getattr(of, name)


@pytest.mark.parametrize(
    "documented", [pytest.param(found, id=name) for name, found in (*public_objects(), *methods_in_the_reference())]
)
def test_every_public_docstring_has_an_example(documented: Any) -> None:
    """That it runs is for ``make doctest`` to see."""
    assert ">>> " in (documented.__doc__ or "")


@pytest.mark.parametrize("documented", [pytest.param(found, id=name) for name, found in public_objects()])
def test_every_public_docstring_describes_each_argument_and_method(documented: Any) -> None:
    text = documented.__doc__ or ""
    arguments = [name for name in inspect.signature(documented).parameters if name != "self"]
    missing = [name for name in arguments if not re.search(rf"^\s+\*{{0,2}}{name}: \S", text, re.MULTILINE)]
    assert not missing
    own = vars(documented).items() if inspect.isclass(documented) else ()
    methods = [name for name, found in own if name[0] != "_" and (inspect.isfunction(found) or type(found) is property)]
    assert not [name for name in methods if not getattr(documented, name).__doc__]


def test_no_colon_in_the_first_line_of_a_property() -> None:
    """The reference would take what is before it for a type."""
    members = [found for _, owner in public_objects() if inspect.isclass(owner) for found in vars(owner).values()]
    members += [found for _, found in methods_in_the_reference()]
    lines = [(found.__doc__ or "").partition("\n")[0] for found in members if type(found) is property]
    assert lines
    assert not [line for line in lines if ": " in line]
