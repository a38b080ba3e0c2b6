"""Group elements as arrays, and samples of continuous groups: the only module that reads escnn's parametrisations.

Everything here is float64 NumPy, angles in radians. Rotations of space are sampled by the 24 of the cube, or 24·n
closed under them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from escnn.group import Group, GroupElement, Representation
    from escnn.gspaces import GSpace

Array = NDArray[np.float64]

# The number of rotations of the cube.
CUBE = 24
_SAME = 1e-6
# escnn optimises its grids in float32.
_SAME_ROTATION = 1e-2


def least_samples(group: Group) -> int:
    """Return the number of samples of a continuous group that are the symmetries of a grid of pixels."""
    return CUBE if is_of_space(group) else 4


def sampled_elements(group: Group, samples: int) -> list[GroupElement]:
    """Return escnn's grid of a continuous group: N rotations, and as many elements that reflect where it has some."""
    if both := factors(group):
        parts = [sampled_elements(factor, samples) if factor.continuous else list(factor.elements) for factor in both]
        products: Any = group
        return [products.pair_elements(*pair) for pair in itertools.product(*parts)]
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
        if np.linalg.det(matrix) > 0 and not any(np.abs(other - matrix).max() < _SAME_ROTATION for other in turned):
            points.append(element)
            turned += [matrices(turn @ element) for turn in cube]
    return [turn @ point for point in points for turn in cube]


def factors(group: Group) -> tuple[Group, ...]:
    """Return the two groups of a direct product, none of another group."""
    from escnn.group import DirectProductGroup

    return (group.G1, group.G2) if isinstance(group, DirectProductGroup) else ()


def is_of_space(group: Group) -> bool:
    """Return whether a group is SO(3) or O(3)."""
    from escnn.group import O3, SO3

    return isinstance(group, (SO3, O3))


@dataclass(frozen=True)
class GroupSample:
    """A finite sample of a fiber group as arrays: M elements g = r fˢ in d dimensions."""

    elements: tuple[GroupElement, ...]
    action: Array  # their matrices on the base space, (M, d, d)
    rotation: Array  # the matrix of r for each element, (M, d, d)
    reflected: NDArray[np.int64]  # s, 1 where the element reflects, else 0, (M,)
    reflection: Array  # the matrix of f, (d, d): the inversion of space where the group has it; 1 without reflections
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
    def rotations(self) -> Array:
        """The rotations of the sample, (N, d, d)."""
        rotations: Array = self.rotation[self.reflected == 0]
        return rotations


def has_subgroup(gspace: GSpace, subgroup: str) -> bool:
    """Whether a fiber group contains more than the identity of ``subgroup``, rotation or reflection."""
    sample = sample_group(gspace)
    count = int((sample.reflected == 0).sum())
    return count > 1 if subgroup == "rotation" else count < len(sample)


def elements_on_features(group: Group) -> list[GroupElement]:
    """Return all elements of a finite group; of SO(2) and O(2) so many that means of features are exact."""
    if not group.continuous:
        return list(group.elements)
    is_of_circle = not (is_of_space(group) or factors(group))
    return sampled_elements(group, 2 * group._maximum_frequency + 1 if is_of_circle else least_samples(group))


def sample_group(gspace: GSpace, samples: int | None = None) -> GroupSample:
    """Return all elements of a finite fiber group, or N rotations of another, by default those of a pixel grid."""
    return _sampled(gspace, least_samples(gspace.fibergroup) if samples is None else samples)


@functools.lru_cache(maxsize=64)
def _sampled(gspace: GSpace, count: int) -> GroupSample:
    group = gspace.fibergroup
    grid = sampled_elements(group, count) if group.continuous else group.elements
    action = np.stack([gspace.basespace_action(element) for element in grid]).astype(np.float64)
    reflected = (np.linalg.det(action) < 0).astype(np.int64)
    # The inversion of space commutes with all rotations. Elsewhere escnn lists f first among the elements that reflect.
    identity = np.eye(action.shape[-1])
    reflection = action[reflected.argmax()] if reflected.any() else identity
    if (np.abs(action + identity)[reflected == 1].max((1, 2)) < _SAME).any():
        reflection = -identity
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
    return np.stack([np.argmax(matrices @ action.T, axis=1) for matrices in relative]).astype(np.int64)


def moved_elements(sample: GroupSample, action: Array) -> NDArray[np.int64] | None:
    """Return the number of h⁻¹g for each g of a sample, (M,), given the matrix of h; None where one is not in it."""
    distances = np.abs((action.T @ sample.action)[:, None] - sample.action).max((-1, -2))
    numbers: NDArray[np.int64] = distances.argmin(1)
    return numbers if distances.min(1).max() < _SAME else None


def grid_symmetries(
    gspace: GSpace, taps: Array, elements: Sequence[GroupElement] | None = None
) -> list[tuple[GroupElement, list[int]]]:
    """Return the elements that map the grid of taps to itself, each with the number of the tap g⁻¹d for every tap d."""
    if gspace.dimensionality == 0:
        return [(element, [0]) for element in elements or elements_on_features(gspace.fibergroup)]
    tried = sample_group(gspace).elements if elements is None else elements
    steered = [
        (each, steered_taps(np.asarray(gspace.basespace_action(each), dtype=np.float64), taps)) for each in tried
    ]
    return [(element, numbers) for element, numbers in steered if numbers is not None]


def steered_taps(action: Array, taps: Array) -> list[int] | None:
    """Return the number of the tap g⁻¹d for every tap d, (T, d); None where g, (d, d), moves taps off their grid."""
    if not np.allclose(action, action.round(), rtol=0, atol=1e-9):
        return None
    corner = np.abs(2 * taps).max() + 1
    places = (2 * corner) ** np.arange(taps.shape[1])
    numbers = np.round((2 * taps + corner) @ places)
    order = np.argsort(numbers)
    found = order[np.searchsorted(numbers[order], np.round((2 * taps @ action.round() + corner) @ places))]
    steered: list[int] = found.tolist()
    return steered
