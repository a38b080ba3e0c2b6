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
        if module.startswith("benchmarks.soft_part"):
            # Its cells are tasks of smoke, too.
            allowed = (*allowed, "benchmarks.smoke")
        if module.startswith("experiments"):
            allowed = ("experiments",)
        others = [name for name in imports if name.startswith(("benchmarks.", "experiments."))]
        assert not [name for name in others if not f"{name}.".startswith(tuple(f"{room}." for room in allowed))], module


def test_order_names_every_folder_and_file() -> None:
    assert {room(file) for file in PACKAGE.rglob("*.py")} == set(ORDER)


# Files of tests, and the modules beside those of their name that they are of.
HOLDS = {
    "test_against_loops.py": [
        *("continuous/steering", "group/elements"),
        *("group/fields", "group/means", "group/points", "kernel/kernel"),
    ],
    "test_arguments.py": ["checks"],
    "test_baselines.py": ["kernel/residual", "kernel/weighted"],
    "test_baselines_partial.py": ["kernel/partial"],
    "test_continuous_kernel.py": ["continuous/nets", "continuous/start"],
    "test_drop_in.py": ["layer/escnn_layer", "on_escnn/basis_elements"],
    "test_equivariance_of_networks.py": ["measure/measured_network"],
    "test_escnn_solutions.py": ["on_escnn/solutions"],
    "test_evidence.py": ["learning/posterior"],
    "test_exact_or_interpolated.py": ["measure/forward_probe"],
    "test_export_escnn.py": ["network/export_modules", "network/plain_modules"],
    "test_coordinates.py": ["group/position_functions"],
    "test_export.py": ["integral/factors"],
    "test_export_tools.py": ["torch_modes"],
    "test_mixed_precision.py": ["group/exact_constants"],
    "test_never_stale.py": ["layer/memo"],
    "test_plots.py": ["plots/charts"],
    "test_relaxed_r2conv.py": ["integral/geometry", "layer/convolution"],
    "test_relaxed_linear.py": ["group/acting_group"],
    "test_relaxed_r3conv.py": ["group/means"],
    "test_requirements.py": ["on_escnn/versions"],
    "test_softness.py": ["layer/soft_layer"],
    "test_softness_in_translation.py": ["kernel/position_modulation"],
    "test_state_dict.py": ["on_escnn/pickling"],
    "test_steerable_basis.py": [
        *("kernel/strict", "on_escnn/grid_exact_basis"),
        "on_escnn/sampled_basis",
    ],
    "test_summary.py": ["measure/reports"],
    "test_tied_kernel.py": ["group/domain", "kernel/modulation"],
}


def own_tests(file: Path) -> list[str]:
    """Files of tests whose names start with that of a module, or with its folder's and its own."""
    names = f"test_{file.stem}", f"test_{file.parent.name}_{file.stem}"
    return [test.name for test in TESTS.glob("test_*.py") if f"{test.stem}_".startswith(tuple(f"{n}_" for n in names))]


def test_every_module_has_its_file_of_tests() -> None:
    modules = {file.relative_to(PACKAGE).with_suffix("").as_posix(): file for file in PACKAGE.rglob("[!_]*.py")}
    held = [module for of in HOLDS.values() for module in of]
    assert {module for module, file in modules.items() if not own_tests(file)} <= set(held) <= set(modules)
    assert all((TESTS / holder).is_file() for holder in HOLDS)
