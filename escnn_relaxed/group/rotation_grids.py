"""Samples of continuous groups; of the rotations of space the 24 of the cube, or 24·n closed under them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from escnn.group import Group, GroupElement

__all__ = ["CUBE", "factors", "is_of_space", "least_samples", "sampled_elements"]

# The number of rotations of the cube.
CUBE = 24
# escnn optimises its grids in float32.
_SAME = 1e-2


def least_samples(group: Group) -> int:
    """Return the number of samples of a continuous group that are the symmetries of a grid of pixels."""
    return CUBE if is_of_space(group) else 4


def sampled_elements(group: Group, samples: int) -> list[GroupElement]:
    """Return escnn's grid of a continuous group: N rotations, and as many elements that reflect where it has some."""
    if both := factors(group):
        parts = [sampled_elements(of, samples) if of.continuous else list(of.elements) for of in both]
        return [_product(group, *pair) for pair in itertools.product(*parts)]
    if not is_of_space(group):
        return list(group.grid(type="regular", N=samples))
    if samples % CUBE:
        below = samples // CUBE * CUBE
        right = f"{below} or {below + CUBE}" if below else f"{CUBE}"
        raise ValueError(f"samples of {group.name} must be a multiple of {CUBE}, the rotations of the cube: {right}")
    cube = list(group.grid(type="cube"))
    if samples == CUBE:
        return cube
    # Each point stands for the 24 that the cube makes of it, which escnn's grid holds to its precision.
    points: list[GroupElement] = []
    matrices = group.standard_representation()
    turned: list[Any] = []
    for element in group.grid(type="thomson_cube", N=samples // CUBE):
        matrix = matrices(element)
        if np.linalg.det(matrix) > 0 and not any(np.abs(of - matrix).max() < _SAME for of in turned):
            points.append(element)
            turned += [matrices(turn @ element) for turn in cube]
    return [turn @ point for point in points for turn in cube]


def factors(group: Group) -> tuple[Group, ...]:
    """Return the two groups of a direct product, none of another group."""
    from escnn.group import DirectProductGroup

    return (group.G1, group.G2) if isinstance(group, DirectProductGroup) else ()


def _product(group: Any, first: GroupElement, second: GroupElement) -> GroupElement:
    element: GroupElement = group.pair_elements(first, second)
    return element


def is_of_space(group: Group) -> bool:
    """Return whether a group is SO(3) or O(3)."""
    from escnn.group import O3, SO3

    return isinstance(group, (SO3, O3))
