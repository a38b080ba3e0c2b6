"""The pages: their Python runs, their links lead somewhere, what they name is there, numbers are those of the logs."""

import importlib
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from escnn_relaxed import RelaxedR2Conv, RelaxedR2PointConv, RelaxedR3Conv

ROOT = Path(__file__).parents[1]
CLAIMS = Path(__file__).parent / "paper_by_sentence.md"
DOCS, README, CONTRIBUTING = ROOT / "docs", ROOT / "README.md", ROOT / "CONTRIBUTING.md"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
BLOCK = re.MULTILINE | re.DOTALL
FENCE = re.compile(r"^```python\n(.*?)^```(?:\n\n^```text\n(.*?)^```)?", BLOCK)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FIGURE = re.compile(r"^[:`]{3,4}\{figure\} (\S+)\n:alt: (.*)\n", re.MULTILINE)
PUBLIC_MODULES = (
    *("", ".measure", ".learning", ".learning.lightning_callbacks", ".plots", ".kernel", ".baselines", ".network"),
    *(".continuous", ".models"),
)
NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"

pytestmark = pytest.mark.skipif(not PAGES, reason="no docs beside the tests")


def text_of(*parts: str) -> str:
    return DOCS.joinpath(*parts).read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


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
    monkeypatch.syspath_prepend(ROOT / "docs")  # the files that pages give to readers
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, object] = {"__name__": "__docs__"}
    for line, code, output in blocks:
        capsys.readouterr()
        # What a page sets in the environment, as the address of a process group, would bring later tests to a halt.
        with mock.patch.dict(os.environ):
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)
        if output is None:
            continue
        printed, expected = (text.splitlines() for text in (capsys.readouterr().out, output))
        words = [[re.sub(rf"{NUMBER}| +", " ", row).split() for row in rows] for rows in (printed, expected)]
        assert words[0] == words[1], printed
        numbers = [[float(found) for found in re.findall(NUMBER, " ".join(rows))] for rows in (printed, expected)]
        # Of float32, printed with two digits.
        assert numbers[0] == pytest.approx(numbers[1], rel=0.1)


@pytest.mark.parametrize("page", [README, CONTRIBUTING, CLAIMS, *PAGES], ids=name_of)
def test_page_leads_to_what_is_there_and_its_code_fits_the_column(page: Path) -> None:
    """Also files that are named in the text. No registry has the package. Figures have words too."""
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
    assert page == CONTRIBUTING or not [line for block in blocks for line in block.splitlines() if len(line) > 88]
    figures = FIGURE.findall(text)
    assert len(figures) == len(re.findall(r"\{figure\} ", text))
    assert all((page.parent / file).exists() and len(alternative.split()) >= 8 for file, alternative in figures)


def test_every_test_that_the_table_of_the_paper_names_is_there() -> None:
    """In the last column of its tables: files, and names with spaces for underscores."""
    page = CLAIMS.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!the paper \|).* \| .* \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 40
    for row in rows:
        found = re.findall(r"`(test_\w+)`: ((?:[a-z0-9 ]|; (?!no ))+)", row)
        assert found or row.startswith("no test"), row
        for file, names in found:
            source = (ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8")
            tests = [name.strip().replace(" ", "_") for name in names.split(";")]
            missing = [name for name in tests if f"def test_{name}(" not in source]
            assert not missing, f"{file}: {missing}"


def test_every_room_is_on_the_page_of_the_architecture_and_no_other_file_is_named() -> None:
    page, package = text_of("design.md"), ROOT / "escnn_relaxed"
    rooms = [path.stem for path in package.glob("*.py") if path.stem[0] != "_"]
    rooms += [f"{path.parent.name}/" for path in package.glob("*/__init__.py")]
    assert not [room for room in rooms if f"`{room}`" not in page]
    folders = "|".join(room[:-1] for room in rooms if room[-1] == "/")
    paths = re.findall(rf"`((?:{folders})/\w+(?:\.py)?)`", page)
    assert paths
    assert not [path for path in paths if not (package / path.removesuffix(".py")).with_suffix(".py").exists()]
    tables = re.findall(r"^\*\*`(\w+)/`\*\*[^|]*\n\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert len(tables) >= 9
    for folder, table in tables:
        named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
        files = [path.stem for path in (package / folder).glob("*.py") if path.stem != "__init__"]
        assert sorted(named) == sorted(files)


def test_messages_that_a_page_explains_are_those_of_the_package() -> None:
    """What stands for a value is …; strings over several lines of source are joined."""
    tables = re.findall(r"^\|.*\|$", text_of("how-to", "messages.md"), re.MULTILINE)
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in tables]
    ours = [row for row in rows if row[0].startswith("`") and (len(row) == 2 or row[1].startswith("this package"))]
    messages = [row[0].strip("`") for row in ours]
    assert len(messages) > 70
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "escnn_relaxed").rglob("*.py"))
    joined = re.sub(r"\"\s*\n\s*f?\"", "", source)
    pieces = [piece.strip(" ='") for message in messages for piece in message.split("…")]
    assert not [piece for piece in pieces if piece not in joined]


def documented_names() -> list[tuple[str, str]]:
    """Module and name of each class and function that the reference describes."""
    reference = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("api/*.md"))
    return re.findall(r"\.\. auto(?:class|function):: ([\w.]+)\.(\w+)", reference)


def public_objects() -> Iterator[tuple[str, Any]]:
    """Classes and functions that users call, by their names; methods of the layers that the reference names."""
    for module in PUBLIC_MODULES:
        package = importlib.import_module(f"escnn_relaxed{module}")
        for name in package.__all__:
            if callable(getattr(package, name)):
                yield f"{package.__name__}.{name}", getattr(package, name)
    # Classes of results are on the pages and in no __all__.
    for module, name in documented_names():
        package = importlib.import_module(module)
        if name not in getattr(package, "__all__", ()):
            yield f"{module}.{name}", getattr(package, name)
    for name in re.findall(r"\.\. auto(?:method|property):: (\w+)", text_of("api", "layers.md") if PAGES else ""):
        layers = (RelaxedR2Conv, RelaxedR3Conv, RelaxedR2PointConv)
        layer = next(layer for layer in layers if hasattr(layer, name))
        yield f"{layer.__name__}.{name}", getattr(layer, name)


@pytest.mark.parametrize("documented", [pytest.param(found, id=name) for name, found in public_objects()])
def test_every_public_docstring_has_an_example_and_describes_each_argument_and_method(documented: Any) -> None:
    """That the example runs is for ``make doctest`` to see."""
    text = documented.__doc__ or ""
    assert ">>> " in text
    if "." not in getattr(documented, "__qualname__", "."):
        # The iterable is that of a report, which is a tuple of its rows.
        arguments = [name for name in inspect.signature(documented).parameters if name not in ("self", "iterable")]
        # Several may stand in one row: "stride, dilation: as in …".
        rows = re.findall(r"^\s+((?:\*{0,2}\w+, )*\*{0,2}\w+): \S", text, re.MULTILINE)
        named = {name.strip("*") for row in rows for name in row.split(", ")}
        assert not [name for name in arguments if name not in named]
    own = vars(documented).items() if inspect.isclass(documented) else ()
    methods = [name for name, found in own if name[0] != "_" and (inspect.isfunction(found) or type(found) is property)]
    assert not [name for name in methods if not getattr(documented, name).__doc__]


def test_reference_has_every_public_name() -> None:
    reference = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("api/*.md"))
    named = re.findall(r"\.\. (?:auto\w+|py:data):: ([\w.]+)", reference)
    for module in PUBLIC_MODULES:
        package = importlib.import_module(f"escnn_relaxed{module}")
        # Names at the top of the package are described once, under that path.
        names = set(package.__all__)
        if module in (".measure", ".learning"):
            # Classes of results, which no __all__ lists.
            names.update(name for name, value in vars(package).items() if inspect.isclass(value))
        for name in names:
            assert name[0] == "_" or {f"{package.__name__}.{name}", f"escnn_relaxed.{name}"}.intersection(named), name


@pytest.mark.slow
def test_every_picture_is_drawn_and_stands_on_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of networks that are trained for a few steps."""
    pyplot, pictures = pytest.importorskip("matplotlib.pyplot"), pytest.importorskip("pictures")
    for name, value in {"TRAINING": 1600, "BATCH": 400, "EPOCHS": 3}.items():
        monkeypatch.setattr(pictures.plots, name, value)
    page = text_of("how-to", "segmentation.md")
    assert "range(100)" in page
    (tmp_path / "segmentation.md").write_text(page.replace("range(100)", "range(2)"), encoding="utf-8")
    monkeypatch.setattr(pictures.pages, "HOW_TO", tmp_path)
    shown = {Path(file).name for page in PAGES for file, _ in FIGURE.findall(page.read_text("utf-8"))}
    for name, draw in pictures.PICTURES.items():
        figure = draw()
        figure.savefig(tmp_path / "picture.png", dpi=50)
        pyplot.close(figure)
        assert np.ptp(pyplot.imread(tmp_path / "picture.png")) > 0.5
        assert f"{name}.png" in shown
