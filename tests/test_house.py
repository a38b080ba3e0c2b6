"""Folders import one way, from themselves and from those that data meet before them; each module has its tests."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PACKAGE = ROOT / "escnn_relaxed"
ORDER = (
    "_version",
    "torch_modes",
    "checks",
    "on_escnn",
    "group",
    "kernel",
    "continuous",
    "integral",
    "layer",
    "baselines",
    "network",
    "measure",
    "learning",
    "plots",
    "models",
    "__init__",
)


def imported(file: Path) -> Iterator[str]:
    """Yield the imports of a file from the package, each as the first part of its path."""
    own = file.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = own[: len(own) - node.level + 1]
            parts = (*above, *(node.module or "").split("."))
            yield from [next(part for part in parts if part)] if any(parts) else [name.name for name in node.names]


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_file_imports_from_its_own_folder_and_those_above(file: Path) -> None:
    above = ORDER[: ORDER.index(room(file)) + 1]
    assert not [name for name in imported(file) if name not in above]


def imported_modules(file: Path) -> set[str]:
    """The modules that a file of ``benchmarks/`` or ``experiments/`` imports, by their full names."""
    folder = ".".join(file.relative_to(ROOT).parent.parts)
    found = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    modules = {f"{folder}.{node.module}" if node.level else str(node.module) for node in found}
    return modules | {f"{node.module}.{name.name}" for node in found for name in node.names}


def test_benchmarks_and_experiments_import_in_no_circle_and_from_no_other_room() -> None:
    files = [*ROOT.glob("benchmarks/*/*.py"), *ROOT.glob("experiments/*.py")]
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts): imported_modules(file) for file in files}
    graphlib.TopologicalSorter(modules).prepare()
    for module, imports in modules.items():
        allowed = (module.rpartition(".")[0], "benchmarks.shared", "experiments")
        if module.startswith("experiments"):
            allowed = ("experiments",)
        others = [name for name in imports if name.startswith(("benchmarks.", "experiments."))]
        assert not [name for name in others if not f"{name}.".startswith(tuple(f"{room}." for room in allowed))], module


def test_order_names_every_folder_and_file() -> None:
    assert {room(file) for file in PACKAGE.rglob("*.py")} == set(ORDER)


def test_files_of_the_package_import_in_no_circle() -> None:
    """Imports for types count too."""
    modules = {}
    for file in PACKAGE.rglob("*.py"):
        own = file.relative_to(PACKAGE).with_suffix("").parts
        targets = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                start = own[: len(own) - node.level]
                parts = (*start, *(node.module or "").split(".")) if node.module else start
                targets |= {"/".join(parts), *("/".join((*parts, name.name)) for name in node.names)}
        modules["/".join(own)] = targets - {"/".join(own)}
    graphlib.TopologicalSorter(modules).prepare()
