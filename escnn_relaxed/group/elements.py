"""Group elements as arrays: the only module that reads escnn's element parametrisations and lie_learn.

Everything here is float64 NumPy, angles in radians.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .rotation_grids import least_samples, sampled_elements

if TYPE_CHECKING:  # exported layers come here too, and run without escnn and lie_learn
    from escnn.group import GroupElement, Representation
    from escnn.gspaces import GSpace

__all__ = [
    "NOTHING_KEPT",
    "SUBGROUPS",
    "GroupSample",
    "KeptGroup",
    "grid_symmetries",
    "has_subgroup",
    "principal_angle",
    "relative_elements",
    "rotation_matrix",
    "sample_group",
    "steer",
    "steered_taps",
]


Array = NDArray[np.float64]


_SAME = 1e-6

SUBGROUPS = ("rotation", "reflection", "translation")


@dataclass(frozen=True)
class GroupSample:
    """A finite sample of a fiber group as arrays: M elements g = r fˢ in d dimensions.

    Attributes:
        elements: escnn's group elements.
        action: their matrices on the base space, (M, d, d).
        rotation: the matrix of r for each element, (M, d, d).
        reflected: s, 1 where the element reflects, else 0, (M,).
        reflection: the matrix of f, (d, d): the inversion of space where the group has it; the identity without
            reflections.
    """

    elements: tuple[GroupElement, ...]
    action: Array
    rotation: Array
    reflected: NDArray[np.int64]
    reflection: Array
    _matrices: dict[Representation, Array] = field(default_factory=dict, compare=False, repr=False)

    def matrices(self, representation: Representation) -> Array:
        """Return ρ(g) for each element, (M, size, size), which nothing may change: computed once."""
        if representation not in self._matrices:
            found = [np.asarray(representation(element)) for element in self.elements]
            self._matrices[representation] = np.stack(found).astype(np.float64)
        return self._matrices[representation]

    def __len__(self) -> int:
        return len(self.elements)

    @property
    def dimension(self) -> int:
        """The dimension d of the base space."""
        return self.action.shape[-1]

    @property
    def angle(self) -> Array:
        """The angle of r for each element of the plane in radians, principal, in (−π, π], (M,)."""
        return principal_angle(self.rotation)

    @property
    def turns(self) -> Array:
        """The rotations that map the sample to itself from the left, (rotations, d, d)."""
        rotations = self.rotation[self.reflected == 0]
        turns: Array = rotations @ rotations[0].T
        return turns

    @property
    def flip(self) -> Array:
        """The reflection that maps the sample to itself from the left, (d, d): f, turned with the grid."""
        offset = self.rotation[0]
        flip: Array = offset @ self.reflection @ offset.T
        return flip


class KeptGroup(NamedTuple):
    """A subgroup of a planar fiber group to which a layer stays exactly equivariant, however soft it is.

    Attributes:
        rotations: number of its rotations.
        reflection: whether it has the reflection f.
    """

    rotations: int = 1
    reflection: bool = False

    def __str__(self) -> str:
        return f"{'D' if self.reflection else 'C'}{self.rotations}"


NOTHING_KEPT = KeptGroup()


def has_subgroup(gspace: GSpace, subgroup: str) -> bool:
    """Whether the symmetries of ``gspace`` contain more than the identity of ``subgroup``.

    Example:
        >>> from escnn import gspaces
        >>> (
        ...     has_subgroup(gspaces.rot2dOnR2(4), "reflection"),
        ...     has_subgroup(gspaces.rot2dOnR2(4), "rotation"),
        ... )
        (False, True)
    """
    if subgroup == "translation":
        return True
    sample = sample_group(gspace)
    count = int((sample.reflected == 0).sum())
    return count > 1 if subgroup == "rotation" else count < len(sample)


def sample_group(gspace: GSpace, samples: int | None = None, offset: float = 0.0) -> GroupSample:
    """Return all elements of a finite fiber group, or escnn's regular grid of a continuous one.

    Args:
        gspace: a symmetry of the base space.
        samples: number N of rotations sampled where the group is continuous (2N elements of O(2)); by default those
            that map a grid of pixels to itself.
        offset: angle in radians by which the grid of a continuous group is turned.

    Example:
        >>> from escnn import gspaces
        >>> sample = sample_group(gspaces.rot2dOnR2(4), samples=16)
        >>> principal_angle(sample.rotation).round(2).tolist()
        [0.0, 1.57, 3.14, -1.57]
    """
    count = least_samples(gspace.fibergroup) if samples is None else samples
    # A grid that is turned at random is a new one each time.
    return _sampled(gspace, count, offset) if offset else _known_sample(gspace, count)


@functools.lru_cache(maxsize=64)
def _known_sample(gspace: GSpace, count: int) -> GroupSample:
    return _sampled(gspace, count, 0.0)


def _sampled(gspace: GSpace, count: int, offset: float) -> GroupSample:
    group = gspace.fibergroup
    grid = sampled_elements(group, count) if group.continuous else group.elements
    action = np.stack([gspace.basespace_action(element) for element in grid]).astype(np.float64)
    reflected = (np.linalg.det(action) < 0).astype(np.int64)
    # The inversion of space commutes with all rotations. Elsewhere escnn lists f first among the elements that reflect.
    inversion = -np.eye(action.shape[-1])
    improper = action[reflected == 1]
    is_inversion = np.abs(improper - inversion).max((1, 2)) < _SAME
    first = improper[:1] if reflected.any() else np.eye(action.shape[-1])[None]
    reflection = inversion if is_inversion.any() else first[0]
    if offset:
        action = rotation_matrix(offset) @ action
        turn = group.element((0, offset) if reflected.any() else offset, param="radians")
        grid = [turn @ element for element in grid]
    rotation = np.where(reflected[:, None, None] == 1, action @ reflection.T, action)
    return GroupSample(tuple(grid), action, rotation, reflected, reflection)


def rotation_matrix(angle: float) -> Array:
    """The 2×2 matrix of a rotation by an angle in radians."""
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.array([[cosine, -sine], [sine, cosine]])


def principal_angle(rotation: Array) -> Array:
    """The angle of each 2×2 rotation matrix in (−π, π]; a half turn is +π whatever the sign of its rounding error."""
    angle = np.arctan2(rotation[..., 1, 0], rotation[..., 0, 0])
    return np.where(angle <= -np.pi + 1e-9, np.pi, angle)


def relative_elements(sample: GroupSample) -> NDArray[np.int64]:
    """Index of the relative element g′⁻¹g in a finite group: entry [g′, g], (M, M)."""
    action = sample.action.reshape(len(sample), -1)
    relative = [(element.T @ sample.action).reshape(len(sample), -1) for element in sample.action]
    # The products of two orthogonal matrices are largest where these are equal.
    return np.stack([np.argmax(of @ action.T, axis=1) for of in relative]).astype(np.int64)


def grid_symmetries(gspace: GSpace, taps: Array) -> list[tuple[GroupElement, list[int]]]:
    """Return the elements that map the grid of taps to itself, each with the number of the tap g⁻¹d for every tap d.

    Args:
        gspace: the symmetry. Only the quarter turns of a continuous group, and those of the cube, are tried.
        taps: offsets in pixels, (T, d).
    """
    sample = sample_group(gspace)
    steered = [steered_taps(action, taps) for action in sample.action]
    return [(element, of) for element, of in zip(sample.elements, steered, strict=True) if of is not None]


def steered_taps(action: Array, taps: Array) -> list[int] | None:
    """Return the number of the tap g⁻¹d for every tap d, (T, d); None where g, (d, d), moves taps off their grid.

    Example:
        >>> steered_taps(np.array([[-1.0]]), np.array([[-1.0], [0.0], [1.0]]))
        [2, 1, 0]
    """
    if not np.allclose(action, action.round(), rtol=0, atol=1e-9):
        return None
    corner = np.abs(2 * taps).max() + 1
    places = (2 * corner) ** np.arange(taps.shape[1])
    numbers = np.round((2 * taps + corner) @ places)
    order = np.argsort(numbers)
    found = order[np.searchsorted(numbers[order], np.round((2 * taps @ action.round() + corner) @ places))]
    steered: list[int] = found.tolist()
    return steered


def steer(sample: GroupSample, points: Array) -> Array:
    """g⁻¹p for each element and point: (M, d, d), (P, d) → (M, P, d)."""
    steered: Array = np.einsum("mji,pj->mpi", sample.action, points)
    return steered
