"""Sampled group elements and their coordinates, in any dimension of the base space."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from escnn.gspaces import GSpace
from numpy.typing import NDArray
from torch import Tensor

from ..checks import FIBER_SUBGROUPS, WHOLE_GROUP
from .elements import GroupSample, is_abstract, sample_group
from .exact_constants import ExactConstants
from .faithful import coset_coordinates, separating_irreps
from .kept import KeptGroup
from .points import Array

# The side in pixels of the image for which softness in translation is reported, and its weights are scaled.
REFERENCE_SIDE = 8
# The choices of subgroups of the fiber group over which a mean may be taken.
AVERAGES: tuple[tuple[str, ...], ...] = ((), ("rotation",), ("reflection",), FIBER_SUBGROUPS)


class Domain:
    """The domain of a kernel: sampled group elements g, and positions x, with their coordinates a(g, x)."""

    def __init__(self, gspace: GSpace, samples: int, kept: KeptGroup) -> None:
        self.gspace = gspace
        self.samples = samples
        self.kept = kept
        self.dimension = gspace.dimensionality
        # The size in pixels of the image whose softness is reported.
        self.reference_size = (REFERENCE_SIDE,) * self.dimension
        self.is_abstract = is_abstract(gspace)
        # The subgroups of the fiber group that may be soft, and the choices of them over which a mean may be taken.
        self.fiber_subgroups = (WHOLE_GROUP,) if self.is_abstract else FIBER_SUBGROUPS
        self.averages = ((), self.fiber_subgroups) if self.is_abstract else AVERAGES

    @cached_property
    def sample(self) -> GroupSample:
        """The sampled elements."""
        return sample_group(self.gspace, self.samples)

    @property
    def kept_subgroups(self) -> tuple[str, ...]:
        """The subgroups that the kept group contains."""
        rotations, reflection = self.kept.holds(self.sample.rotations), self.kept.holds(self.sample.reflection)
        is_kept = {"rotation": rotations.all(), "reflection": reflection.all(), WHOLE_GROUP: rotations.all()}
        return tuple(name for name in self.sample.subgroups if is_kept[name])

    def translates(self, subgroups: Sequence[str]) -> NDArray[np.int64]:
        """Return the indices of the elements hg of the sample, (M, L), h in the subgroups and the kept group."""
        steps = self.sample.action @ self.sample.action[:, None].swapaxes(-1, -2)
        group = self.kept
        if self.is_abstract and WHOLE_GROUP in subgroups:
            return np.tile(np.arange(len(self.sample)), (len(self.sample), 1))
        if "reflection" in subgroups and self.sample.reflected.any():
            group = group.with_element(self.sample.reflection)
        if "rotation" in subgroups and not self.is_abstract:
            is_held = np.linalg.det(steps) > 0
            size = len(self.sample.rotations) * (1 + group.has_reflections)
            is_held |= group.has_reflections
        else:
            is_held = group.holds(steps)
            # No sample holds a kept group with an axis: these are the elements of the sample in Hg.
            size = int(is_held[0].sum()) if group.axis is not None else len(group.members)
        if (is_held.sum(1) != size).any():
            raise ValueError(
                f"keep must be a group whose elements map the {len(self.sample)} sampled elements to each other, got "
                f"{self.kept}: SO(3) and O(3) are sampled by the rotations of the cube, which hold turns by 90°, 120° "
                f"and 180°"
            )
        return np.nonzero(is_held)[1].reshape(len(self.sample), size)

    def mean_matrix(self, subgroups: Sequence[str]) -> Array:
        """Return the matrix (M, M) of the mean over subgroups, acting on values at the M elements."""
        numbers = self.translates(subgroups)
        matrix = np.zeros((len(numbers), len(numbers)))
        np.put_along_axis(matrix, numbers, 1 / numbers.shape[1], axis=1)
        return matrix

    def elements(self, subgroups: Sequence[str]) -> Array:
        """Return the coordinates of the elements of the sample, those of the subgroups side by side, (M, D)."""
        if self.is_abstract:
            coordinates = {WHOLE_GROUP: self._of_cosets}
        else:
            coordinates = self._domain_coordinates(self.sample.rotation, self.sample.reflected)
        nothing = np.zeros((len(self.sample), 0))
        return np.concatenate([nothing, *(coordinates[name] for name in subgroups if name in coordinates)], axis=1)

    def columns(self, subgroups: Sequence[str]) -> list[str]:
        """Return the subgroup of each coordinate of the domain."""
        if self.is_abstract:
            sizes = {WHOLE_GROUP: self._of_cosets.shape[-1]}
        else:
            of_identity = self._domain_coordinates(np.eye(self.dimension), 0)
            sizes = {name: values.shape[-1] for name, values in of_identity.items()}
        return [name for name in subgroups for _ in range(sizes.get(name, self.dimension))]

    @cached_property
    def _of_cosets(self) -> Array:
        """The coordinates of the elements of a finite group without a usual action: those of their cosets, (M, D)."""
        if self.gspace.fibergroup.continuous:
            return np.zeros((len(self.sample), 0))  # no channels belong to its elements
        elements, held = self.sample.elements, self.kept.holds(self.sample.action)
        irreps = separating_irreps(list(self.gspace.fibergroup.irreps()), elements, held)
        return coset_coordinates(irreps, elements, held)

    @property
    def rotations_in_a_turn(self) -> float:
        """The number N of sampled rotations in a turn, over those of the kept group; in space 2π over their step."""
        rotations = self.sample.rotations
        others = ~np.eye(len(rotations), dtype=bool)
        traces = np.einsum("aij,bij->ab", rotations, rotations)[others] - (self.dimension - 2)
        count = 2 * np.pi / np.arccos(np.clip(traces.max() / 2, -1, 1)) if len(traces) else 1.0
        # The angles come from matrices: N is a whole number but for rounding.
        return round(float(count), 9) / self.fold

    def _domain_coordinates(self, rotation: Array, reflected: NDArray[np.int64] | int) -> dict[str, Array]:
        """Return the coordinates a(g) of elements g = r fˢ, invariant to the kept group."""
        coordinates = self.coordinates(np.linalg.matrix_power(rotation, self.fold), reflected)
        if self.kept.axis is not None:
            # r⁻¹u of the axis u: the chord of two axes is as long as that of two rotations of the plane.
            coordinates["rotation"] = np.einsum("...ji,j->...i", rotation, self.kept.axis)
        return coordinates

    @property
    def fold(self) -> int:
        """The number n of kept rotations about the only axis: coordinates are those of the n-th power of a rotation."""
        has_one_axis = self.dimension == 2 or np.linalg.matrix_rank(self.sample.rotations.mean(0), tol=1e-6) == 1
        return int((np.linalg.det(self.kept.members) > 0).sum()) if has_one_axis and self.kept.axis is None else 1

    def coordinates(self, rotation: Array, reflected: NDArray[np.int64] | int) -> dict[str, Array]:
        """Return the coordinates of elements r fˢ by subgroup, (…, d, d), (…) → (…, coordinates)."""
        return {"rotation": self._of_rotation(rotation), "reflection": np.asarray(reflected)[..., None] / 2}

    def _of_rotation(self, rotation: Array) -> Array:
        """Return the coordinates of rotations: (cos θ, sin θ); in space the matrix over √2, of the same distances."""
        if self.dimension > 2:
            return rotation.reshape(*rotation.shape[:-2], -1) / np.sqrt(2)
        return rotation[..., 0]


def of_fiber_group(subgroups: Sequence[str], known: Sequence[str] = FIBER_SUBGROUPS) -> tuple[str, ...]:
    """Return the given subgroups that belong to the fiber group, in its order: a key of a domain's averages."""
    return tuple([name for name in known if name in subgroups])


class GroupMeans(ExactConstants):
    """A matrix (n, M) on the functions of M group elements, times the mean over some subgroups."""

    matrices: dict[tuple[str, ...], Tensor]

    def __init__(self, domain: Domain, matrix: NDArray[np.float64]) -> None:
        super().__init__()
        self._known = domain.fiber_subgroups
        self.set_constant("matrices", {names: matrix @ domain.mean_matrix(names) for names in domain.averages})

    def averaged(self, subgroups: Sequence[str] = ()) -> Tensor:
        """Return the matrix for functions that are averaged over some subgroups first, (n, M)."""
        return self.matrices[of_fiber_group(subgroups, self._known)]
