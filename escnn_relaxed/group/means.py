"""Means over subgroups: on a sampled group they are choices among its own elements, and so matrices (M, M)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .elements import GroupSample
from .kept import KeptGroup

__all__ = ["mean_matrix", "translates"]


def translates(sample: GroupSample, subgroups: Sequence[str], kept: KeptGroup) -> NDArray[np.int64]:
    """Return the numbers of the elements hg of a sample, (M, L), h in subgroups and a kept group."""
    steps = sample.action @ sample.action[:, None].swapaxes(-1, -2)
    group = kept.with_element(sample.reflection) if "reflection" in subgroups and sample.reflected.any() else kept
    if "rotation" in subgroups:
        is_held = np.linalg.det(steps) > 0
        size = len(sample.rotations) * (1 + group.has_reflections)
        is_held |= group.has_reflections
    else:
        is_held = group.holds(steps)
        # No sample holds a kept group with an axis: these are the elements of the sample in Hg.
        size = int(is_held[0].sum()) if group.axis is not None else len(group.members)
    if (is_held.sum(1) != size).any():
        raise ValueError(
            f"keep must be a group whose elements map the {len(sample)} sampled elements to each other, got {kept}: "
            f"SO(3) and O(3) are sampled by the rotations of the cube, which hold turns by 90°, 120° and 180°"
        )
    return np.nonzero(is_held)[1].reshape(len(sample), size)


def mean_matrix(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the matrix that takes values at M elements to their means over translates (M, L), (M, M)."""
    matrix = np.zeros((len(numbers), len(numbers)))
    np.put_along_axis(matrix, numbers, 1 / numbers.shape[1], axis=1)
    return matrix
