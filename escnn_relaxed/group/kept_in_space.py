"""A subgroup of a fiber group of space to which a layer stays exactly equivariant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .elements import NOTHING_KEPT, GroupSample, sample_group
from .rotation_grids import least_samples, sampled_elements

if TYPE_CHECKING:
    from escnn.gspaces import GSpace

__all__ = ["AXIS", "KeptInSpace", "closed", "kept_in_space", "subgroup_matrices"]

Array = NDArray[np.float64]

# All rotations about the third coordinate, the first axis of a volume.
AXIS = "SO(2)"
_SAME = 1e-6


@dataclass(frozen=True, eq=False)
class KeptInSpace:
    """A kept group: the products of a few elements with all rotations about an axis, if it has one.

    Attributes:
        name: the words of its user.
        members: the few elements, (L, 3, 3).
        axis: a vector along the axis, (3,), 0 where all rotations are kept; None for a finite group.
    """

    name: str
    members: Array
    axis: Array | None

    def __str__(self) -> str:
        return self.name

    def holds(self, element: Array) -> bool:
        """Return whether an element (3, 3) is in the group."""
        if self.axis is not None:
            alike = self.members[np.linalg.det(self.members) * np.linalg.det(element) > 0]
            distances = np.abs(alike @ self.axis - element @ self.axis)
        else:
            distances = np.abs(self.members - element).max(-1)
        return bool((distances.max(-1) < _SAME).any()) if len(distances) else False

    def holds_rotations(self, sample: GroupSample) -> bool:
        """Return whether all rotations of a sample are in the group."""
        return all(self.holds(rotation) for rotation in sample.rotation[sample.reflected == 0])


def kept_in_space(keep: Any, gspace: GSpace) -> KeptInSpace | Any:
    """Return the subgroup that ``keep`` names: None, ``"SO(2)"`` about the axis z, or escnn's id of a subgroup.

    Raises:
        ValueError: for what names no subgroup.
    """
    if keep is None:
        return NOTHING_KEPT
    if keep == AXIS:
        axis = np.array([0.0, 0.0, 1.0])
        rotations = [of for of in sample_group(gspace).rotation if np.abs(of @ axis - axis).max() < _SAME]
        if len(rotations) < 2:
            raise ValueError(f"keep={keep!r} needs rotations about the axis z, which {gspace.name} has not")
        return KeptInSpace(AXIS, np.eye(3)[None], axis)
    members, axis_of = subgroup_matrices("keep", keep, gspace)
    return KeptInSpace(str(keep), members, axis_of)


def subgroup_matrices(argument: str, identifier: Any, gspace: GSpace) -> tuple[Array, Array | None]:
    """Return the matrices of a subgroup by its id in escnn, with its axis where it is continuous.

    Args:
        argument: the name of the argument, for the error.
        identifier: as ``gspace.fibergroup.subgroup`` takes it.
        gspace: the symmetry.

    Raises:
        ValueError: for what is no id of a subgroup.
    """
    try:
        group, include, _ = gspace.fibergroup.subgroup(identifier)
        elements = sampled_elements(group, least_samples(group)) if group.continuous else group.elements
        matrices = np.stack([gspace.basespace_action(include(element)) for element in elements]).astype(np.float64)
    except (AssertionError, ValueError, TypeError, IndexError, KeyError, NotImplementedError) as error:
        raise ValueError(
            f"{argument} must be the id of a subgroup of {gspace.fibergroup.name}, as "
            f"gspace.fibergroup.subgroup takes it, or {AXIS!r}, got {identifier!r}"
        ) from error
    if not group.continuous:
        return matrices, None
    proper = np.linalg.det(matrices) > 0
    fixed = np.linalg.svd(np.concatenate(_turns_of(matrices[proper]) - np.eye(3)))
    axis = fixed[2][-1] if fixed[1][-1] < _SAME else np.zeros(3)
    axis = axis * np.sign(axis[np.argmax(np.abs(axis))]) if axis.any() else axis
    known: list[Array] = []
    for matrix in matrices:
        if not KeptInSpace("", np.array(known).reshape(-1, 3, 3), axis).holds(matrix):
            known.append(matrix)
    return np.stack(known), axis


def _turns_of(rotations: Array) -> Array:
    """Return the rotations that are not half turns: those about the axis of a group that has one."""
    traces = np.trace(rotations, axis1=1, axis2=2)
    turns: Array = rotations[traces > -1 + _SAME]
    return turns


def closed(members: Array) -> Array:
    """Return the group that some matrices (L, d, d) generate."""
    known = [np.eye(members.shape[-1])]
    for element in known:
        for member in members:
            product = member @ element
            if all(np.abs(product - other).max() > _SAME for other in known):
                known.append(product)
    return np.stack(known)
