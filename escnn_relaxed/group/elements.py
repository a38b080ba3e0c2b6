"""Group elements as arrays, and samples of continuous groups: the only module that reads escnn's parametrisations.

Everything here is float64 NumPy, angles in radians. Rotations of space are sampled by the 24 of the cube, or 24·n
closed under them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from escnn.group import (
    O2,
    O3,
    SO2,
    SO3,
    CyclicGroup,
    DihedralGroup,
    DirectProductGroup,
    Group,
    GroupElement,
    Icosahedral,
    Octahedral,
    Representation,
)
from escnn.gspaces import GSpace
from numpy.typing import NDArray
from scipy.linalg import block_diag

from ..checks import FIBER_SUBGROUPS, WHOLE_GROUP
from .faithful import separating_irreps
from .points import Array

# The number of rotations of the cube.
CUBE = 24
# Matrices that differ by less are the same.
_SAME = 1e-6
# escnn optimises its grids in float32.
_SAME_ROTATION = 1e-2
# Direct products of a group of space and the inversion, by escnn's names of them.
_FULL = ("FullOctahedral", "FullIcosahedral")


def least_samples(group: Group) -> int:
    """Return the number of samples of a continuous group that are the symmetries of a grid of pixels."""
    return CUBE if is_of_space(group) else 4


def sampled_elements(group: Group, samples: int) -> list[GroupElement]:
    """Return escnn's grid of a continuous group: N rotations, and as many elements that reflect where it has some."""
    if both := factors(group):
        grids = [sampled_elements(factor, samples) if factor.continuous else list(factor.elements) for factor in both]
        products: Any = group
        return [products.pair_elements(*pair) for pair in itertools.product(*grids)]
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
    turned: list[Array] = []
    for element in group.grid(type="thomson_cube", N=samples // CUBE):
        matrix = matrices(element)
        if np.linalg.det(matrix) > 0 and not any(np.abs(other - matrix).max() < _SAME_ROTATION for other in turned):
            points.append(element)
            turned += [matrices(turn @ element) for turn in cube]
    return [turn @ point for point in points for turn in cube]


def factors(group: Group) -> tuple[Group, ...]:
    """Return the two factors of a direct product; an empty tuple for other groups."""
    return (group.G1, group.G2) if isinstance(group, DirectProductGroup) else ()


def is_of_space(group: Group) -> bool:
    """Return whether a group is SO(3) or O(3)."""
    return isinstance(group, (SO3, O3))


@dataclass(frozen=True)
class GroupSample:
    """A finite sample of a fiber group as arrays: M elements g = r fˢ in d dimensions."""

    elements: tuple[GroupElement, ...]
    action: Array  # their matrices on the base space, (M, d, d)
    rotation: Array  # the matrix of r for each element, (M, d, d)
    reflected: NDArray[np.int64]  # s, 1 where the element reflects, else 0, (M,)
    reflection: Array  # the matrix of f, (d, d): the inversion of space where the group has it; 1 without reflections
    is_abstract: bool = False  # whether elements are no rotations and reflections; all are called rotations here
    _matrices: dict[Representation, Array] = field(default_factory=dict, compare=False, repr=False)

    def matrices(self, representation: Representation) -> Array:
        """Return ρ(g) for each element, (M, size, size); cached, so do not write to it."""
        if representation not in self._matrices:
            matrices = [np.asarray(representation(element)) for element in self.elements]
            self._matrices[representation] = np.stack(matrices).astype(np.float64)
        return self._matrices[representation]

    def __len__(self) -> int:
        return len(self.elements)

    @property
    def rotations(self) -> Array:
        """The rotations of the sample, (N, d, d)."""
        return self.rotation[self.reflected == 0]

    @property
    def subgroups(self) -> tuple[str, ...]:
        """The subgroups of the fiber group that have more than the identity."""
        if self.is_abstract:
            return (WHOLE_GROUP,) if len(self) > 1 else ()
        has = {"rotation": len(self.rotations) > 1, "reflection": self.reflected.any()}
        return tuple(name for name in FIBER_SUBGROUPS if has[name])


def elements_on_features(group: Group) -> list[GroupElement]:
    """Return all elements of a finite group, or enough elements of SO(2) and O(2) for exact means of features."""
    if not group.continuous:
        return list(group.elements)
    is_of_circle = not (is_of_space(group) or factors(group))
    return sampled_elements(group, 2 * group._maximum_frequency + 1 if is_of_circle else least_samples(group))


@functools.lru_cache(maxsize=64)
def sample_group(gspace: GSpace, samples: int | None = None) -> GroupSample:
    """Return all elements of a finite fiber group, or N rotations of another, by default those of a pixel grid."""
    group = gspace.fibergroup
    count = least_samples(group) if samples is None else samples
    grid = sampled_elements(group, count) if group.continuous else group.elements
    action = np.stack([gspace.basespace_action(element) for element in grid]).astype(np.float64)
    if is_abstract(gspace):
        return GroupSample(tuple(grid), action, action, np.zeros(len(action), np.int64), np.eye(action.shape[-1]), True)
    reflected = (np.linalg.det(action) < 0).astype(np.int64)
    # The inversion of space commutes with all rotations. Elsewhere escnn lists f first among the elements that reflect.
    identity = np.eye(action.shape[-1])
    reflection = action[reflected.argmax()] if reflected.any() else identity
    if (np.abs(action + identity)[reflected == 1].max((1, 2)) < _SAME).any():
        reflection = -identity
    rotation = np.where(reflected[:, None, None] == 1, action @ reflection.T, action)
    return GroupSample(tuple(grid), action, rotation, reflected, reflection)


def rotation_matrix(angle: float) -> Array:
    """Return the 2×2 matrix of a rotation by an angle in radians."""
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.array([[cosine, -sine], [sine, cosine]])


def rotation_about(axis: Array, angle: float) -> Array:
    """Return the matrix of the rotation of space about an axis by an angle in radians (Rodrigues' formula)."""
    x, y, z = axis / np.linalg.norm(axis)
    generator = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + math.sin(angle) * generator + (1 - math.cos(angle)) * generator @ generator


def principal_angle(rotation: Array) -> Array:
    """Return the angle of each 2×2 rotation matrix in (−π, π]."""
    return principal_value(np.arctan2(rotation[..., 1, 0], rotation[..., 0, 0]))


def principal_value(angle: Array) -> Array:
    """Return the value in (−π, π] of angles; a half turn is +π whatever the sign of its rounding error."""
    wrapped = angle - 2 * np.pi * np.round(angle / (2 * np.pi))
    return np.where(wrapped <= -np.pi + 1e-9, np.pi, wrapped)


def moved_elements(sample: GroupSample, action: Array) -> NDArray[np.int64] | None:
    """Return the index of h⁻¹g for each g of a sample, (M,), given the matrix of h; None if one is outside."""
    distances = np.abs((action.T @ sample.action)[:, None] - sample.action).max((-1, -2))
    numbers: NDArray[np.int64] = distances.argmin(1)
    return numbers if distances.min(1).max() < _SAME else None


def grid_symmetries(
    gspace: GSpace, taps: Array, elements: Sequence[GroupElement] | None = None
) -> list[tuple[GroupElement, list[int]]]:
    """Return the elements that map the grid of taps to itself, each with the index of the tap g⁻¹d for every tap d."""
    if gspace.dimensionality == 0:
        return [(element, [0]) for element in elements or elements_on_features(gspace.fibergroup)]
    corner = np.abs(2 * taps).max() + 1
    digits = (2 * corner) ** np.arange(taps.shape[1])
    numbers = np.round((2 * taps + corner) @ digits)
    order = np.argsort(numbers)
    symmetries: list[tuple[GroupElement, list[int]]] = []
    for element in sample_group(gspace).elements if elements is None else elements:
        action = np.asarray(gspace.basespace_action(element), dtype=np.float64)
        if np.allclose(action, action.round(), rtol=0, atol=1e-9):
            steered = np.round((2 * taps @ action.round() + corner) @ digits)
            symmetries.append((element, order[np.searchsorted(numbers[order], steered)].tolist()))
    return symmetries


@dataclass(frozen=True)
class ActingGroup:
    """A group without a base space, with its usual action on the plane or space, or else a faithful one.

    It is as much of a gspace as a domain needs.
    """

    # None of escnn's gspaces, since these would add irreps to the one group that all layers share.

    fibergroup: Group
    dimensionality: int
    # Whether the matrices are those of a faithful representation, and elements no rotations and reflections.
    is_abstract: bool = False
    irreps: tuple[Any, ...] = ()  # the ids of those that such a representation is a sum of, of a finite group

    @property
    def name(self) -> str:
        """The name of the group."""
        return str(self.fibergroup.name)

    def basespace_action(self, element: GroupElement) -> Array:
        """Return the matrix of an element, (d, d)."""
        if self.irreps:
            matrices = [self.fibergroup.irrep(*key)(element) for key in self.irreps]
            return np.asarray(block_diag(*matrices), dtype=np.float64)
        return _factors_apart(self.fibergroup, element) if self.is_abstract else _matrix(self.fibergroup, element)

    def __hash__(self) -> int:
        # escnn's groups have none.
        return hash((self.name, self.dimensionality))


def acting_group(group: Group) -> ActingGroup | None:
    """Return a group with its usual action, else a faithful one; None for a continuous group without a known one."""
    if isinstance(group, (CyclicGroup, DihedralGroup, SO2, O2)):
        return ActingGroup(group, 2)
    if isinstance(group, (SO3, O3, Octahedral, Icosahedral)) or (factors(group) and group.name in _FULL):
        return ActingGroup(group, 3)
    if not group.continuous:
        elements = list(group.elements)
        irreps = separating_irreps(list(group.irreps()), elements, np.array([e == group.identity for e in elements]))
        return ActingGroup(group, sum(irrep.size for irrep in irreps), True, tuple(irrep.id for irrep in irreps))
    parts = [acting_group(factor) for factor in factors(group)]
    sizes = [part.dimensionality for part in parts if part is not None]
    return ActingGroup(group, sum(sizes), True) if parts and len(sizes) == len(parts) else None


def is_abstract(gspace: GSpace | ActingGroup) -> bool:
    """Return whether the elements of a group are not rotations and reflections of a plane or of space."""
    return isinstance(gspace, ActingGroup) and gspace.is_abstract


def _factors_apart(group: Any, element: GroupElement) -> Array:
    """Return the matrix of an element of a direct product, those of its factors along the diagonal."""
    matrices = []
    for factor, part in zip(factors(group), group.split_element(element), strict=True):
        acting = acting_group(factor)
        matrices.append(np.eye(0) if acting is None else acting.basespace_action(part))
    return np.asarray(block_diag(*matrices), dtype=np.float64)


def _matrix(group: Any, element: GroupElement) -> Array:
    """Return the matrix by which an element acts."""
    if both := factors(group):
        # The inversion is the element of C2 that is not the identity.
        matrices = [
            np.eye(3) * (-1.0) ** part.to("int") if isinstance(factor, CyclicGroup) else _matrix(factor, part)
            for factor, part in zip(both, group.split_element(element), strict=True)
        ]
        return matrices[0] @ matrices[1]
    if isinstance(group, (CyclicGroup, SO2)):
        return rotation_matrix(element.to("radians"))
    if isinstance(group, (DihedralGroup, O2)):
        is_reflected, angle = element.to("radians")
        return rotation_matrix(angle) @ np.diag([1.0, -1.0 if is_reflected else 1.0])
    if isinstance(group, O3):
        is_inverted, matrix = element.to("MAT")
        return np.asarray(matrix, dtype=np.float64) * (-1.0) ** is_inverted
    return np.asarray(element.to("MAT"), dtype=np.float64)


def axis_in_words(axis: Array) -> str:
    """Return x, y or z, or else the components of an axis, the largest of them 1 or −1."""
    scaled = axis / np.abs(axis).max()
    named = [name for name, component in zip("xyz", scaled, strict=True) if abs(component) > _SAME]
    if len(named) == 1:
        return named[0]
    # 0.0 is added for what rounds to −0.
    return f"({', '.join(f'{round(component, 3) + 0.0:.3g}' for component in scaled)})".replace("-", "−")


def axis_and_angle(rotation: Array) -> tuple[Array, float]:
    """Return the axis (3,) of a rotation of space, 0 of the identity, and the angle about it in [0, 2π)."""
    cosine = (np.trace(rotation) - 1) / 2
    skew = rotation - rotation.T
    # 2 (1 − cos α) u uᵀ, whose longest row is along the axis u. The sine is 0 for half a turn.
    squared = rotation + rotation.T - 2 * cosine * np.eye(3)
    axis: Array = squared[np.argmax(np.diag(squared))]
    length = np.linalg.norm(axis)
    if length < _SAME**2:
        return np.zeros(3), 0.0
    axis = axis / length
    axis = axis * np.sign(axis[np.argmax(np.abs(axis) > _SAME)])
    angle = math.atan2(np.array([skew[2, 1], skew[0, 2], skew[1, 0]]) @ axis / 2, cosine) % (2 * math.pi)
    return axis, 0.0 if min(angle, 2 * math.pi - angle) < _SAME else angle


def element_with_action(gspace: GSpace, action: Array) -> GroupElement | None:
    """Return the element of a fiber group that acts on the base space by a matrix (d, d), or None."""
    sample = sample_group(gspace)
    if not gspace.fibergroup.continuous:
        matches = np.abs(sample.action - action).max((1, 2)) < _SAME
        return sample.elements[np.argmax(matches)] if matches.any() else None
    # A continuous group is the products of its rotations with the elements of a sample.
    for element, matrix in zip(sample.elements, sample.action, strict=True):
        rotation = action @ matrix.T
        if np.linalg.det(rotation) > 0:
            candidate = _rotation(gspace, rotation) @ element
            if np.allclose(gspace.basespace_action(candidate), action, rtol=0, atol=_SAME):
                return candidate
    return None


def _rotation(gspace: GSpace, rotation: Array) -> GroupElement:
    """Return the rotation of a continuous group that acts by a matrix; any rotation if none does."""
    group = gspace.fibergroup
    if is_of_space(group):
        return group.element((0, rotation) if isinstance(group, O3) else rotation, param="MAT")
    quarter = np.asarray(gspace.basespace_action(turn(group, math.pi / 2)), dtype=np.float64)
    # The rotations are I + sin α G + (1 − cos α) G².
    generator = (quarter - quarter.T) / 2
    sine, cosine = (generator * rotation).sum() / 2, (np.trace(rotation) - len(rotation) + 2) / 2
    return turn(group, math.atan2(sine, cosine))


def turn(group: Group, angle: float) -> GroupElement:
    """Return the rotation by an angle of SO(2), O(2), or a direct product of one with a finite group."""
    if both := factors(group):
        turned = [turn(factor, angle) if factor.continuous else factor.identity for factor in both]
        return group.pair_elements(*turned)
    return group.element((0, angle) if isinstance(group, O2) else angle, param="radians")
