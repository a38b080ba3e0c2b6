"""Folders import one way, from themselves and from those that data meet before them; each module has its tests."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "escnn_relaxed"
ORDER = (
    *("_version", "torch_modes", "checks", "on_escnn", "group", "kernel", "continuous", "integral", "layer"),
    *("baselines", "network", "measure", "learning", "plots", "models", "__init__"),
)


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def imports(file: Path) -> set[str]:
    """The modules that a file imports from, and the names that it imports, by their full names; for types too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            above = module_of(file).split(".")[: -node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{name.name}" for name in node.names)}
    return found - {module_of(file)}


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_order_names_every_folder_and_file() -> None:
    assert {room(file) for file in PACKAGE.rglob("*.py")} == set(ORDER)


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_file_imports_from_its_own_folder_and_those_above(file: Path) -> None:
    rooms = {name.split(".")[1] for name in imports(file) if name.startswith("escnn_relaxed.")}
    assert rooms <= set(ORDER[: ORDER.index(room(file)) + 1])


@pytest.mark.parametrize("patterns", [("escnn_relaxed/**/*.py",), ("benchmarks/*/*.py", "experiments/*.py")], ids=str)
def test_files_import_in_no_circle(patterns: tuple[str, ...]) -> None:
    files = [file for pattern in patterns for file in ROOT.glob(pattern)]
    graphlib.TopologicalSorter({module_of(file): imports(file) for file in files}).prepare()


def test_benchmarks_and_experiments_import_from_no_other_room() -> None:
    """What both share stands above both."""
    for file in [*ROOT.glob("benchmarks/*/*.py"), *ROOT.glob("experiments/*.py")]:
        own = module_of(file).rpartition(".")[0]
        above = {"benchmarks.shared": (), "experiments": ("benchmarks.shared",)}
        allowed = (own, *above.get(own, ("benchmarks.shared", "experiments")))
        others = [name for name in imports(file) if name.startswith(("benchmarks.", "experiments."))]
        assert not [name for name in others if not f"{name}.".startswith(tuple(f"{of}." for of in allowed))], file
