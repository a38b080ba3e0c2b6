"""The group as a kernel sees it: sampled elements and their coordinates, in any dimension of the base space."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .elements import (
    NOTHING_KEPT,
    GroupSample,
    KeptGroup,
    principal_angle,
    relative_elements,
    rotation_matrix,
    sample_group,
)
from .kept_in_space import KeptInSpace, closed

if TYPE_CHECKING:
    from escnn.gspaces import GSpace

__all__ = ["FIBER_SUBGROUPS", "GroupFrame", "Translates"]

Array = NDArray[np.float64]

# The subgroups of a fiber group that can be soft.
FIBER_SUBGROUPS = ("rotation", "reflection")


@dataclass(frozen=True)
class Translates:
    """The elements hg for each sampled g and each h of a subgroup, M × L of them.

    Attributes:
        action: their matrices on the base space, (M, L, d, d).
        coordinates: their coordinates by subgroup, (M, L, …).
    """

    action: Array
    coordinates: dict[str, Array]


class GroupFrame:
    """The sampled elements of a fiber group, with the coordinates in which a kernel sees them.

    Args:
        gspace: a symmetry of the base space.
        samples: number of rotations by which a continuous group is sampled.
        form: coordinates of a rotation of the plane: ``"circle"``, the point (cos θ, sin θ); ``"log"``, the paper's
            principal angle over 2π. In space they are its matrix over √2, whose distances are the same chords.
        kept: the subgroup to which kernels are equivariant in any case.
        offset: angle in radians by which the sampled grid of a continuous group is turned.
        sees_cosets: whether the coordinate of a rotation is that of its coset of the n kept ones, an n-fold angle.

    Example:
        >>> from escnn import gspaces
        >>> frame = GroupFrame(gspaces.flipRot2dOnR2(4), samples=16)
        >>> frame.dimension, frame.rotations, frame.subgroups
        (2, 4, ('rotation', 'reflection'))
    """

    def __init__(
        self,
        gspace: GSpace,
        samples: int,
        form: str = "circle",
        kept: KeptGroup | KeptInSpace = NOTHING_KEPT,
        offset: float = 0.0,
        sees_cosets: bool = False,
    ) -> None:
        self.gspace = gspace
        self.samples = samples
        self.form = form
        self.kept = kept
        self.offset = offset
        self.sees_cosets = sees_cosets

    @cached_property
    def sample(self) -> GroupSample:
        """The sampled elements."""
        return sample_group(self.gspace, self.samples, self.offset)

    @property
    def dimension(self) -> int:
        """The dimension d of the base space."""
        return self.sample.dimension

    @property
    def rotations(self) -> int:
        """Number of rotations in the sample."""
        return int((self.sample.reflected == 0).sum())

    @property
    def subgroups(self) -> tuple[str, ...]:
        """The subgroups that have more than the identity."""
        has = {"rotation": self.rotations > 1, "reflection": self.rotations < len(self.sample)}
        return tuple(name for name in FIBER_SUBGROUPS if has[name])

    @property
    def kept_subgroups(self) -> tuple[str, ...]:
        """The subgroups all of which is in the kept group."""
        if isinstance(self.kept, KeptInSpace):
            is_kept = {"rotation": self.kept.holds_rotations(self.sample)}
            is_kept["reflection"] = self.kept.holds(self.sample.reflection)
        else:
            is_kept = {"rotation": self.kept.rotations == self.rotations, "reflection": self.kept.reflection}
        return tuple(name for name in self.subgroups if is_kept[name])

    def turned(self, offset: float) -> GroupFrame:
        """Return the same frame with the grid of a continuous group turned by an angle in radians."""
        return GroupFrame(self.gspace, self.samples, self.form, self.kept, offset, self.sees_cosets)

    def without_escnn(self) -> GroupFrame:
        """Return a frame with the same offset that holds no object of escnn, and so no elements."""
        frame = copy.copy(self)
        frame.__dict__ = {**self.__dict__, "gspace": None}
        frame.__dict__.pop("sample", None)
        return frame

    def coordinate_sizes(self) -> dict[str, int]:
        """Number of coordinates of a position and of a relative element of each subgroup."""
        return self._sizes(self._coordinates(np.eye(self.dimension)[None], np.zeros(1)))

    def domain_sizes(self) -> dict[str, int]:
        """Number of coordinates of a position and of an element of each subgroup in the domain."""
        return self._sizes(self._domain_coordinates(np.eye(self.dimension)[None], np.zeros(1)))

    def _sizes(self, coordinates: dict[str, Array]) -> dict[str, int]:
        sizes = {name: values.shape[-1] for name, values in coordinates.items()}
        return {"position": self.dimension, "translation": self.dimension, **sizes}

    def resolved_frequency(self) -> float:
        """The largest ω′ of rotation that the samples resolve.

        With N samples of the circle, log coordinates turn a feature ω′ times: the limit is N/2. In circle coordinates
        exp(2πi ω′ w·(cos θ, sin θ)) holds the harmonics up to about 2π ω′ |w| (Jacobi–Anger), and |w| is of order one:
        the limit is N/4π. In space N is 2π over the smallest angle between two samples.
        """
        rotations = self.sample.rotation[self.sample.reflected == 0]
        others = ~np.eye(len(rotations), dtype=bool)
        traces = np.einsum("aij,bij->ab", rotations, rotations)[others] - (self.dimension - 2)
        count = 2 * np.pi / np.arccos(np.clip(traces.max() / 2, -1, 1)) if len(traces) else 1.0
        # The angles come from matrices: N is a whole number but for rounding.
        steps = round(float(count), 9) / self._fold
        return steps / 2 if self.form == "log" else steps / (4 * np.pi)

    def relative_coordinates(self, subgroups: Sequence[str]) -> list[Array]:
        """Coordinates of g′⁻¹g of a finite group by subgroup, entry [g′, g], each (M, M, …)."""
        of_elements = self._coordinates(self.sample.rotation, self.sample.reflected)
        numbers = relative_elements(self.sample) if subgroups else None
        return [of_elements[name][numbers] for name in subgroups]

    def translates(self, subgroups: Sequence[str]) -> Translates:
        """Return hg for every sampled g and every h of H, which some subgroups and the kept group make up.

        Args:
            subgroups: any of ``"rotation"``, all rotations of the sample, and ``"reflection"``, the identity and f.
                f is turned with the grid, so that H maps the sample to itself.

        Example:
            >>> from escnn import gspaces
            >>> frame = GroupFrame(gspaces.flipRot2dOnR2(4), samples=16)
            >>> of_f = frame.translates(["reflection"]).coordinates["reflection"]
            >>> of_f[:2, :, 0].tolist()  # f turns a rotation into a reflection
            [[0.0, 0.5], [0.0, 0.5]]
        """
        sample = self.sample
        if "rotation" in subgroups:
            # All rotations of the sample. Where it is a group, these are its turns; a finer grid of space is none.
            has_flip = bool(np.linalg.det(self._kept_members(subgroups)).min() < 0)
            parity = np.arange(2)[: 1 + has_flip]
            reflected = (sample.reflected[:, None] + np.repeat(parity, self.rotations)) % 2
            rotation = np.tile(sample.rotation[sample.reflected == 0], (len(sample), len(parity), 1, 1))
            action = np.where(reflected[..., None, None] == 1, rotation @ sample.reflection, rotation)
        else:
            members = self._kept_members(subgroups)
            action = members @ sample.action[:, None]
            reflected = (sample.reflected[:, None] + (np.linalg.det(members) < 0)) % 2
            rotation = np.where(reflected[..., None, None] == 1, action @ sample.reflection.T, action)
        return Translates(action, self._domain_coordinates(rotation, reflected))

    def _kept_members(self, subgroups: Sequence[str]) -> Array:
        """The elements of the group that the kept group and maybe f generate, but for the kept rotations of an axis."""
        flips = [self.sample.flip] if "reflection" in subgroups and self.sample.reflected.any() else []
        if isinstance(self.kept, KeptInSpace):
            return closed(np.stack([*self.kept.members, *flips]))
        if self.kept.reflection and not flips:
            flips = [self.sample.flip]
        members = self._kept_turns()[:, None] @ np.stack([np.eye(self.dimension), *flips])
        return members.reshape(-1, self.dimension, self.dimension)

    def _kept_turns(self) -> Array:
        """The rotations of a kept group of the plane, (rotations, d, d)."""
        if isinstance(self.kept, KeptInSpace) or self.kept.rotations == 1:
            return np.eye(self.dimension)[None]
        turns = np.arange(self.kept.rotations) * 2 * np.pi / self.kept.rotations
        return np.stack([rotation_matrix(turn) for turn in turns])

    def _domain_coordinates(self, rotation: Array, reflected: NDArray[np.int64] | Array) -> dict[str, Array]:
        """Coordinates in which the domain knows elements r fˢ: what a kept axis or coset does not see is left out."""
        coordinates = self._coordinates(np.linalg.matrix_power(rotation, self._fold), reflected)
        if isinstance(self.kept, KeptInSpace) and self.kept.axis is not None:
            # r⁻¹u of the axis u: the chord of two axes is as long as that of two rotations of the plane.
            coordinates["rotation"] = np.einsum("...ji,j->...i", rotation, self.kept.axis)
        return coordinates

    @property
    def _fold(self) -> int:
        """The number n of kept rotations about the only axis: coordinates are those of the n-th power of a rotation."""
        if not self.sees_cosets:
            return 1
        if isinstance(self.kept, KeptGroup):
            return self.kept.rotations
        rotations = self.sample.rotation[self.sample.reflected == 0]
        has_one_axis = np.linalg.matrix_rank(rotations.mean(0), tol=1e-6) == 1
        return int((np.linalg.det(self.kept.members) > 0).sum()) if has_one_axis else 1

    def _coordinates(self, rotation: Array, reflected: NDArray[np.int64] | Array) -> dict[str, Array]:
        """Coordinates of elements r fˢ by subgroup, (…, d, d), (…) → (…, coordinates).

        See docs/concepts/mathematics.md, "Coordinates".
        """
        if self.dimension > 2:
            of_rotation = rotation.reshape(*rotation.shape[:-2], -1) / np.sqrt(2)
        elif self.form == "log":
            of_rotation = principal_angle(rotation)[..., None] / (2 * np.pi)
        else:
            of_rotation = rotation[..., 0]
        return {"rotation": of_rotation, "reflection": reflected[..., None] / 2}
