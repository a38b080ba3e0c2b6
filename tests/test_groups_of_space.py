"""Samples and subgroups of the groups of space, and the memory of their bases."""

from __future__ import annotations

import numpy as np
import pytest
import volumes
from escnn import gspaces
from escnn import nn as enn
from escnn.group import InsufficientIrrepsException
from escnn.group.groups import _numerical_thomson, so3_utils

from escnn_relaxed import RelaxedR3Conv
from escnn_relaxed.group.elements import relative_elements, sample_group
from escnn_relaxed.group.frame import GroupFrame
from escnn_relaxed.group.kept_in_space import closed, kept_in_space
from escnn_relaxed.integral.stationary import ConvolutionGeometry
from escnn_relaxed.kernel import sampled_basis
from escnn_relaxed.layer.heavy_basis import basis_bytes, warn_of_heavy_basis

# escnn's matrices are products of quaternions in float64.
ROUNDING = 1e-14


def distances_to_sample(matrices: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """The distance of each matrix to the nearest one of a sample, in its largest entry."""
    differences = np.abs(matrices.reshape(-1, 1, 9) - sample.reshape(1, -1, 9))
    distances: np.ndarray = differences.max(-1).min(-1)
    return distances


@pytest.mark.parametrize("space", volumes.SPACES)
def test_improper_elements_are_the_inversion_or_a_mirror_times_a_rotation(space: str) -> None:
    sample = sample_group(volumes.gspace(space), 24)
    assert np.abs(sample.rotation @ sample.rotation.swapaxes(1, 2) - np.eye(3)).max() <= 1e-12
    assert np.allclose(np.linalg.det(sample.rotation), 1)
    mirror = np.where(sample.reflected[:, None, None] == 1, sample.reflection, np.eye(3))
    assert np.abs(sample.rotation @ mirror - sample.action).max() <= ROUNDING
    has_inversion = distances_to_sample(-np.eye(3), sample.action)[0] < 1e-6
    assert has_inversion == np.allclose(sample.reflection, -np.eye(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("space", ["octahedral", "full octahedral", "D4", "cone 4", "full cylinder 2"])
def test_relative_elements_are_escnns_products(space: str) -> None:
    sample = sample_group(volumes.gspace(space))
    numbers = relative_elements(sample)
    for row, column in [(0, 1), (1, 0), (3, 2), (len(sample) - 1, 1)]:
        product = ~sample.elements[row] @ sample.elements[column]
        assert sample.elements[numbers[row, column]] == product


@pytest.fixture
def few_steps_to_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """escnn takes twenty seconds to spread rotations evenly, and would keep on disk what it stopped at."""
    monkeypatch.setattr(so3_utils, "thomson_cube_so3", _numerical_thomson.thomson_cube_so3.func)
    monkeypatch.setattr(_numerical_thomson, "range", lambda steps: range(min(steps, 20)), raising=False)


@pytest.mark.usefixtures("few_steps_to_a_grid")
@pytest.mark.parametrize("samples", [24, 48])
def test_samples_of_rotations_are_closed_under_the_cube_from_the_left(samples: int) -> None:
    gspace = volumes.gspace("SO(3)")
    cube, sample = sample_group(gspace, 24), sample_group(gspace, samples)
    assert len(sample) == samples
    products = cube.action[:, None] @ sample.action
    assert distances_to_sample(products, sample.action).max() <= 1e-12  # refined from escnn's float32
    differences = np.abs(sample.action.reshape(-1, 1, 9) - sample.action.reshape(1, -1, 9)).max(-1)
    assert (differences + 2 * np.eye(samples)).min() > 0.1


def test_the_cube_is_exact_to_degree_three() -> None:
    """The mean of an irrep of SO(3) over the sample is 0, but for the trivial one; of degree 4 it is not."""
    gspace = gspaces.rot3dOnR3(4)
    sample = sample_group(gspace)
    means = [np.abs(sample.matrices(gspace.irrep(degree)).mean(0)).max() for degree in range(1, 5)]
    assert max(means[:3]) <= ROUNDING < 0.1 < means[3]


KEPT = {
    "about the axis": ("SO(3)", "SO(2)", 1, 4),
    "SO(2) by its id": ("SO(3)", (False, -1), 1, 4),
    "O(2) by its id": ("SO(3)", (True, -1), 2, 8),
    "octahedral": ("SO(3)", "octa", 24, 24),
    "cone": ("O(3)", ("cone", -1), 2, 8),
    "all rotations": ("O(3)", "so3", 1, 24),
    "quarter turns": ("octahedral", (False, 4), 4, 4),
}


@pytest.mark.parametrize(("space", "keep", "members", "voxels"), KEPT.values(), ids=KEPT)
def test_kept_groups_have_their_elements(space: str, keep: object, members: int, voxels: int) -> None:
    gspace = volumes.gspace(space)
    kept = kept_in_space(keep, gspace)
    assert len(kept.members) == members
    assert sum(kept.holds(action) for action in sample_group(gspace).action) == voxels
    assert kept_in_space(None, gspace) is GroupFrame(gspace, 24).kept


def test_closed_is_the_group_that_matrices_generate() -> None:
    quarter = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    assert len(closed(quarter[None])) == 4
    assert len(closed(np.stack([quarter, -np.eye(3)]))) == 8
    group = closed(sample_group(volumes.gspace("octahedral")).action[:3])
    assert distances_to_sample(group[:, None] @ group, group).max() <= ROUNDING


def test_memory_of_a_basis_is_known_before_it_is_spent() -> None:
    """As much as escnn's sampled basis then has; a gigabyte for the full octahedral group."""
    for space, kernel_size in (("C4", 5), ("D4", 3)):
        regular = volumes.gspace(space).regular_repr
        fields = enn.FieldType(volumes.gspace(space), [regular])
        expansion = enn.R3Conv(fields, fields, kernel_size).basisexpansion
        (pair,) = expansion._representations_pairs
        sampled = getattr(expansion, f"block_expansion_{expansion._escape_pair(pair)}").sampled_basis
        geometry = ConvolutionGeometry(kernel_size, (0, 0, 0))
        assert basis_bytes(regular, regular, geometry) == sampled.nbytes
    regular = gspaces.fullOctaOnR3().regular_repr
    fields = enn.FieldType(gspaces.fullOctaOnR3(), [regular])
    with pytest.warns(UserWarning, match=r"takes 1\.0 GB, and about 6\.\d GB while escnn samples it.*irreps"):
        warn_of_heavy_basis(fields, fields, ConvolutionGeometry(5, (0, 0, 0)))


def test_gspace_on_which_escnn_builds_no_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which irreps escnn lacks depends on the gspaces that were built before."""
    fields = volumes.fields("cone")

    def build(*arguments: object, **options: object) -> None:
        raise InsufficientIrrepsException(fields.fibergroup)

    monkeypatch.setitem(sampled_basis._CONVOLUTIONS, 3, build)
    with pytest.raises(ValueError, match="continuous dihedral and conical gspaces of space want maximum_frequency=6"):
        RelaxedR3Conv(fields, fields, 5)
