"""Groups without a base space: the action by which their elements are rotations and reflections of the plane or space.

A soft map must know which elements are near each other, also where features have no positions. Nothing is built of
escnn's gspaces, since these would add irreps to the one group that all layers share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from escnn.group import O2, O3, SO2, SO3, CyclicGroup, DihedralGroup, Group, GroupElement, Icosahedral, Octahedral
from numpy.typing import NDArray

from .elements import factors, rotation_matrix

Array = NDArray[np.float64]

# Direct products of a group of space and the inversion, by escnn's names of them.
_FULL = ("FullOctahedral", "FullIcosahedral")


@dataclass(frozen=True)
class ActingGroup:
    """A group with its action on the plane or space: as much of a gspace as a domain needs."""

    fibergroup: Group
    dimensionality: int

    @property
    def name(self) -> str:
        """The name of the group."""
        return str(self.fibergroup.name)

    def basespace_action(self, element: GroupElement) -> Array:
        """Return the matrix of an element, (d, d)."""
        return _matrix(self.fibergroup, element)

    def __hash__(self) -> int:
        # escnn's groups have none.
        return hash((self.name, self.dimensionality))


def acting_group(group: Group) -> ActingGroup | None:
    """Return a group with its action, None of one that has no usual one."""
    if isinstance(group, (CyclicGroup, DihedralGroup, SO2, O2)):
        return ActingGroup(group, 2)
    if isinstance(group, (SO3, O3, Octahedral, Icosahedral)) or (factors(group) and group.name in _FULL):
        return ActingGroup(group, 3)
    return None


def no_action() -> ActingGroup:
    """Return the group of the identity alone, in place of a group of which no action is known."""
    return ActingGroup(CyclicGroup._generator(1), 2)


def _matrix(group: Any, element: GroupElement) -> Array:
    """Return the matrix by which an element acts."""
    if both := factors(group):
        # The inversion is the element of C2 that is not the identity.
        matrices = [
            np.eye(3) * (-1.0) ** part.to("int") if isinstance(factor, CyclicGroup) else _matrix(factor, part)
            for factor, part in zip(both, group.split_element(element), strict=True)
        ]
        product: Array = matrices[0] @ matrices[1]
        return product
    if isinstance(group, (CyclicGroup, SO2)):
        return rotation_matrix(element.to("radians"))
    if isinstance(group, (DihedralGroup, O2)):
        is_reflected, angle = element.to("radians")
        return rotation_matrix(angle) @ np.diag([1.0, -1.0 if is_reflected else 1.0])
    if isinstance(group, O3):
        is_inverted, matrix = element.to("MAT")
        return np.asarray(matrix, dtype=np.float64) * (-1.0) ** is_inverted
    return np.asarray(element.to("MAT"), dtype=np.float64)
