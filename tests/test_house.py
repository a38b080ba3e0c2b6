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
    "_requirements",
    "group",
    "checks",
    "kernel",
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


# Modules that no file of tests is named after, and the one that holds theirs.
HELD_BY = {
    "layer/heavy_basis.py": "test_groups_of_space.py",
    "group/kept_in_space.py": "test_groups_of_space.py",
    "group/rotation_grids.py": "test_groups_of_space.py",
    "kernel/basis_elements.py": "test_drop_in.py",
    "kernel/steered_average.py": "test_steering.py",
    "layer/default_device.py": "test_devices.py",
    "kernel/filter_bank.py": "test_special_cases.py",
    "kernel/grid_exact_basis.py": "test_steerable_basis.py",
    "kernel/sampled_basis.py": "test_steerable_basis.py",
    "integral/plain_layers.py": "test_export.py",
    "torch_modes.py": "test_export_tools.py",
    "layer/escnn_globals.py": "test_state_dict.py",
    "layer/convolution.py": "test_relaxed_r2conv.py",
    "layer/remembering.py": "test_filter_bank_cache.py",
    "layer/softened_convolution.py": "test_relaxed_r2conv.py",
    "kernel/centred_kernel.py": "test_soft_part.py",
    "kernel/modulation_maps.py": "test_tied_kernel.py",
    "layer/projection.py": "test_relaxed_r3conv.py",
    "layer/voxel_check.py": "test_relaxed_r3conv.py",
    "kernel/domain_means.py": "test_nets.py",
    "kernel/single_kernel.py": "test_soft_part.py",
    "kernel/partial.py": "test_baselines_partial.py",
    "kernel/residual.py": "test_baselines.py",
    "kernel/weighted.py": "test_baselines.py",
    "kernel/orthogonal_basis.py": "test_baselines_softness.py",
    "network/export_modules.py": "test_export_escnn.py",
    "network/plain_modules.py": "test_export_escnn.py",
    "learning/penalties.py": "test_penalty.py",
    "measure/forward_probe.py": "test_exact_or_interpolated.py",
    "measure/measured_network.py": "test_equivariance_of_networks.py",
    "measure/reports.py": "test_tables.py",
    "plots/charts.py": "test_plots_curves.py",
    "plots/style.py": "test_plots_bars.py",
}


def own_tests(file: Path) -> list[str]:
    """Files of tests whose names start with that of a module, or with its folder's and its own."""
    names = f"test_{file.stem}", f"test_{file.parent.name}_{file.stem}"
    return [test.name for test in TESTS.glob("test_*.py") if f"{test.stem}_".startswith(tuple(f"{n}_" for n in names))]


def test_every_module_has_its_file_of_tests() -> None:
    modules = {file.relative_to(PACKAGE).as_posix(): file for file in PACKAGE.rglob("[!_]*.py")}
    without = {module for module, file in modules.items() if module not in HELD_BY and not own_tests(file)}
    assert not without
    assert set(HELD_BY) <= set(modules)
    assert all((TESTS / held_by).is_file() for held_by in HELD_BY.values())
