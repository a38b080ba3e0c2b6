"""A subgroup of a fiber group of space to which a layer stays exactly equivariant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .elements import NOTHING_KEPT, GroupSample, sample_group
from .rotation_grids import least_samples, sampled_elements

if TYPE_CHECKING:
    from escnn.group import GroupElement
    from escnn.gspaces import GSpace

__all__ = ["AXIS", "KeptInSpace", "closed", "kept_in_space", "subgroup_elements"]

Array = NDArray[np.float64]

# All rotations about the third coordinate, the first axis of a volume.
AXIS = "SO(2)"
_SAME = 1e-6
# Elements of the largest finite group that elements may generate.
_LARGEST = 120


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
    """Return the subgroup that ``keep`` names: None, ``"SO(2)"`` about the axis z, escnn's id, or generating elements.

    Raises:
        ValueError: for what names no subgroup.
    """
    if keep is None:
        return NOTHING_KEPT
    if keep == AXIS:
        axis = np.array([0.0, 0.0, 1.0])
        sample = sample_group(gspace)
        rotations = sample.rotation[sample.reflected == 0]
        if (np.abs(rotations @ axis - axis).max(-1) < _SAME).sum() < 2:
            raise ValueError(f"keep={keep!r} needs rotations about the axis z, which {gspace.name} has not")
        return KeptInSpace(AXIS, np.eye(3)[None], axis)
    elements, axis_of = subgroup_elements("keep", keep, gspace)
    members = np.stack([gspace.basespace_action(element) for element in elements]).astype(np.float64)
    return KeptInSpace(str(keep), members, axis_of)


def subgroup_elements(argument: str, identifier: Any, gspace: GSpace) -> tuple[list[GroupElement], Array | None]:
    """Return the elements of a subgroup; of a continuous one a few of them, and its axis.

    A continuous subgroup is the products of these few with all rotations about the axis, 0 where it has all rotations.

    Args:
        argument: the name of the argument, for the error.
        identifier: as ``gspace.fibergroup.subgroup`` takes it; or elements of a finite group, which generate it.
        gspace: the symmetry.

    Raises:
        ValueError: for what is no id of a subgroup.
    """
    if isinstance(identifier, (list, tuple)) and identifier and all(map(_is_element, identifier)):
        return _generated(argument, identifier, gspace), None
    try:
        group, include, _ = gspace.fibergroup.subgroup(identifier)
        members = sampled_elements(group, least_samples(group)) if group.continuous else group.elements
        elements = [include(element) for element in members]
    except (AssertionError, ValueError, TypeError, IndexError, KeyError, NotImplementedError) as error:
        raise ValueError(
            f"{argument} must be the id of a subgroup of {gspace.fibergroup.name}, as "
            f"gspace.fibergroup.subgroup takes it, got {identifier!r}"
        ) from error
    if not group.continuous:
        return elements, None
    matrices = np.stack([gspace.basespace_action(element) for element in elements]).astype(np.float64)
    proper = np.linalg.det(matrices) > 0
    fixed = np.linalg.svd(np.concatenate(_turns_of(matrices[proper]) - np.eye(3)))
    axis = fixed[2][-1] if fixed[1][-1] < _SAME else np.zeros(3)
    axis = axis * np.sign(axis[np.argmax(np.abs(axis))]) if axis.any() else axis
    known: list[int] = []
    for number, matrix in enumerate(matrices):
        if not KeptInSpace("", matrices[known], axis).holds(matrix):
            known.append(number)
    return [elements[number] for number in known], axis


def _is_element(value: object) -> bool:
    from escnn.group import GroupElement

    return isinstance(value, GroupElement)


def _generated(argument: str, generators: Sequence[GroupElement], gspace: GSpace) -> list[GroupElement]:
    """Return all products of some elements."""
    group = gspace.fibergroup
    if any(element.group != group for element in generators):
        raise ValueError(f"{argument} must be elements of {group.name}, got {generators!r}")
    known = [group.identity]
    for element in known:
        known += [product for of in generators if (product := of @ element) not in known]
        if len(known) > _LARGEST:
            raise ValueError(f"{argument} must generate a finite group, got {generators!r}")
    return known


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
