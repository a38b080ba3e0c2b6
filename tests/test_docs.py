"""The site's pages: their Python runs, their links lead somewhere, they render."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from escnn_relaxed import RelaxedR2Conv, RelaxedR3Conv

ROOT = Path(__file__).parents[1]
DOCS, README = ROOT / "docs", ROOT / "README.md"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
TUTORIALS = sorted(DOCS.glob("tutorials/[0-9]*.md"))
BLOCK = re.MULTILINE | re.DOTALL
FENCE = re.compile(r"^```python\n(.*?)^```(?:\n\n^```text\n(.*?)^```)?", BLOCK)
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
    ".continuous",
    ".models",
)
NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"

pytestmark = pytest.mark.skipif(not PAGES, reason="no docs beside the tests")


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


def python_blocks(page: Path) -> list[tuple[int, str, str | None]]:
    """Line and text of every Python block, and the output below it where the page has it."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)) + 1, match.group(1), match.group(2)) for match in FENCE.finditer(text)]


# torch's own warning, when it exports and compiles.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
@pytest.mark.parametrize(
    ("page", "blocks"),
    [pytest.param(page, python_blocks(page), id=name_of(page)) for page in PAGES if python_blocks(page)]
    + [pytest.param(README, [block], id=f"README, line {block[0]}") for block in python_blocks(README)],
)
def test_python_of_a_page_runs_and_prints_what_the_page_says(
    page: Path,
    blocks: list[tuple[int, str, str | None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In an empty directory: blocks of a page in one namespace, as a reader would type them; of the README alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, object] = {"__name__": "__docs__"}
    for line, code, output in blocks:
        capsys.readouterr()
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)
        if output is None:
            continue
        printed, expected = (text.splitlines() for text in (capsys.readouterr().out, output))
        words = [[re.sub(rf"{NUMBER}| +", " ", row).split() for row in rows] for rows in (printed, expected)]
        assert words[0] == words[1], printed
        numbers = [[float(of) for of in re.findall(NUMBER, " ".join(rows))] for rows in (printed, expected)]
        # Of float32, printed with two digits.
        assert numbers[0] == pytest.approx(numbers[1], rel=0.1)


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.stem)
def test_page_leads_to_what_is_there_and_its_code_fits_the_column(page: Path) -> None:
    """No registry has the package; and files that were moved are found in the text, too."""
    text = page.read_text(encoding="utf-8")
    for match in LINK.finditer(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        target = urlsplit(match.group(1) or match.group(2))
        if not target.scheme and target.path:
            assert (page.parent / unquote(target.path)).exists(), f"{page.name} links to {target.path}"
    folders = "escnn_relaxed|experiments|tests|benchmarks|examples|docs|scripts"
    files = re.findall(rf"`((?:{folders})/[\w/-]+\.\w+)[`:]", text)
    assert not [name for name in files if not (ROOT / name).exists()]
    assert not re.search(r"pip install [\"']?escnn_relaxed", text)
    blocks = re.findall(r"^```(?:python|bash|\{code-cell\})\n(.*?)^```", text, BLOCK)
    assert page.stem == "CONTRIBUTING" or not [line for of in blocks for line in of.splitlines() if len(line) > 88]


def test_readme_has_code_by_line_27() -> None:
    """Behind one picture and two lines to install."""
    assert python_blocks(README)[0][0] <= 27


def test_readme_has_the_output_of_the_letters() -> None:
    """Its second table, whole."""
    output = (DOCS / "outputs" / "letters.txt").read_text(encoding="utf-8")
    assert output.partition("\n\n")[2].strip() in README.read_text(encoding="utf-8")


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
    known = {
        "escnn",
        "escnn_relaxed",
        "matplotlib",
        "numpy",
        "phi",
        "sklearn",
        "tools",
        "torch",
        *sys.stdlib_module_names,
    }
    assert {module.partition(".")[0] for module in modules} <= known


def test_equations_keep_the_numbers_that_the_code_knows_them_by() -> None:
    """A new one goes to the end of the page, or its number into every comment."""
    page = (DOCS / "concepts" / "mathematics.md").read_text(encoding="utf-8")
    labels = "operator steered-average factors fourier-features kernel-net projection softness bound hybrid"
    assert re.findall(r"^:label: (\S+)$", page, re.MULTILINE)[:9] == labels.split()


def test_every_test_that_the_page_of_the_paper_names_is_there() -> None:
    """In the last column of its table: files, and names with spaces for underscores."""
    page = (DOCS / "how-to" / "reproduce.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\| (.*) \|$", page.partition("## Each sentence")[2], re.MULTILINE)[1:]
    assert len(rows) > 40
    for row in rows:
        found = re.findall(r"`(test_\w+)`: ((?:[a-z0-9 ]|; (?!no ))+)", row)
        assert found or row.startswith(("no test", "the same")), row
        for file, names in found:
            source = (ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8")
            tests = [name.strip().replace(" ", "_") for name in names.split(";")]
            missing = [name for name in tests if f"def test_{name}(" not in source]
            assert not missing, f"{file}: {missing}"


def test_every_room_has_its_place_on_the_page_of_the_architecture_and_no_other_file_is_named() -> None:
    page = (DOCS / "design.md").read_text(encoding="utf-8")
    package = ROOT / "escnn_relaxed"
    rooms = [path.stem for path in package.glob("*.py") if path.stem[0] != "_"]
    rooms += [f"{path.parent.name}/" for path in package.glob("*/__init__.py")]
    assert not [room for room in rooms if f"`{room}`" not in page]
    folders = "|".join(room[:-1] for room in rooms if room[-1] == "/")
    paths = re.findall(rf"`((?:{folders})/\w+(?:\.py)?)`", page)
    assert paths
    assert not [path for path in paths if not (package / path.removesuffix(".py")).with_suffix(".py").exists()]


def test_cost_of_soft_translation_is_that_of_the_table() -> None:
    """The first table of the page has the least and the largest ratios of the others; no other page has them."""
    page = (DOCS / "results" / "cost.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\| \*\*(\d\.\d+)\*\* .*\| (\d\.\d+) \|$", page, re.MULTILINE)
    assert len(rows) > 10
    training, memory = ([float(row[column]) for row in rows] for column in (0, 1))
    for ratios, what in ((training, "the time"), (memory, "its peak memory")):
        words = f"{min(ratios):.1f} to {max(ratios):.1f} times {what}"
        others = [README, *(other for other in PAGES if other.name != "cost.md")]
        assert words in page
        assert not [other.name for other in others if words in " ".join(other.read_text(encoding="utf-8").split())]


def test_messages_that_the_page_of_questions_explains_are_those_of_the_package() -> None:
    """What stands for a value is …; strings over several lines of source are joined."""
    page = (DOCS / "how-to" / "faq.md").read_text(encoding="utf-8")
    tables = re.findall(r"^## What does this (warning|error) mean\?\n\n(.*?)\n\n", page, BLOCK)
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for _, table in tables for row in table.splitlines()[2:]]
    messages = [row[0].strip("`") for row in rows if len(row) == 2 or row[1].startswith("this package")]
    assert len(messages) > 5
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "escnn_relaxed").rglob("*.py"))
    joined = re.sub(r"\"\s*\n\s*f?\"", "", source)
    pieces = [piece.strip(" ='") for message in messages for piece in message.split("…")]
    assert not [piece for piece in pieces if piece not in joined]


def test_address_of_the_repository_is_the_same_everywhere() -> None:
    """If this fails, run ``python scripts/repository.py``."""
    script = ROOT / "scripts" / "repository.py"
    if not script.exists():
        pytest.skip("no scripts beside the tests")
    repository = runpy.run_path(str(script))
    for name in repository["PAGES"]:
        page = (ROOT / name).read_text(encoding="utf-8")
        assert repository["sentence"]() in page
        assert repository["with_address"](page) == page


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
    # The iterable is that of a report, which is a tuple of its rows.
    arguments = [name for name in inspect.signature(documented).parameters if name not in ("self", "iterable")]
    # Several may stand in one row: "stride, dilation: as in …".
    rows = re.findall(r"^\s+((?:\*{0,2}\w+, )*\*{0,2}\w+): \S", text, re.MULTILINE)
    named = {name.strip("*") for row in rows for name in row.split(", ")}
    assert not [name for name in arguments if name not in named]
    own = vars(documented).items() if inspect.isclass(documented) else ()
    methods = [name for name, found in own if name[0] != "_" and (inspect.isfunction(found) or type(found) is property)]
    assert not [name for name in methods if not getattr(documented, name).__doc__]


# Way → how the page of volumes calls it.
OF_FLOW = {
    "Conv3d": "`Conv3d`",
    "strict": "`R3Conv`",
    "strict, up as an input": "`R3Conv`, the vertical as an input",
    "strict about the axis": "`R3Conv`, turns about the vertical alone",
    "soft": "`RelaxedR3Conv`",
    "evidence": "`RelaxedR3Conv`, evidence",
    "soft, exact about the axis": '`RelaxedR3Conv(keep="SO(2)")`',
}


def test_tables_of_the_flow_on_the_page_of_volumes_are_those_of_the_log() -> None:
    from benchmarks.shared.run_log import Log
    from benchmarks.volumes import buoyancy

    page = (DOCS / "results" / "volumes.md").read_text()
    log = Log(ROOT / "benchmarks" / "results" / "volumes" / "buoyancy.jsonl")

    def row(way: str, measure: Callable[[dict[str, Any]], float], decimals: int) -> str:
        cells = []
        for value in (0.0, 0.125, 0.25, 0.5):
            found = [100 * measure(log.runs[str(buoyancy.Run(value, way, 2000, seed))]) for seed in range(6)]
            error = statistics.stdev(found) / len(found) ** 0.5
            cells.append(f"{statistics.fmean(found):.{decimals}f} ± {error:.{decimals}f}")
        return " | ".join(cells)

    for way in buoyancy.WAYS:
        run = log.runs[str(buoyancy.Run(0.0, way, 2000, 0))]
        before = f"| {OF_FLOW[way]} | {run['parameters']:,} | "
        assert f"{before}{row(way, lambda run: run['error'], 1)} |" in page
        if "softness" in run:
            assert f"| {OF_FLOW[way]} | {row(way, lambda run: max(run['softness']), 2)} |" in page
    assert f"| `RelaxedR3Conv`, hardened | 1,208 | {row('soft', lambda run: run['hardened error'], 1)} |" in page
