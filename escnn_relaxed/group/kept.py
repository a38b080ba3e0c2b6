"""A kept group: the subgroup of a fiber group to which a layer stays exactly equivariant, however soft it is."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from escnn.group import GroupElement
from escnn.gspaces import GSpace
from numpy.typing import NDArray

from .elements import ActingGroup, is_abstract, least_samples, rotation_matrix, sample_group, sampled_elements
from .points import Array

# All rotations about the third coordinate, the first axis of a volume.
AXIS = "SO(2)"
_NAME = re.compile(r"([CD])([1-9]\d*)")
_SAME = 1e-6
# Elements of the largest finite group that elements may generate.
_LARGEST = 120


@dataclass(frozen=True, eq=False)
class KeptGroup:
    """The products of a few elements with all rotations about an axis, if it has one."""

    name: str  # the words of its user; empty where nothing is kept
    members: Array  # the few elements, (L, d, d)
    axis: Array | None = None  # along the axis, (3,), 0 where all rotations are kept; None for a finite group

    def __str__(self) -> str:
        return self.name or "C1"

    @property
    def has_reflections(self) -> bool:
        """True if an element reflects."""
        return bool((np.linalg.det(self.members) < 0).any())

    def holds(self, elements: Array) -> NDArray[np.bool_]:
        """Return whether each element (…, d, d) is in the group."""
        others = elements[..., None, :, :]
        if self.axis is None:
            distances = np.abs(self.members - others).max((-1, -2))
        else:
            distances = np.abs((self.members - others) @ self.axis).max(-1)
            distances += np.linalg.det(self.members) * np.linalg.det(others) < 0
        return distances.min(-1, initial=1.0) < _SAME

    def with_element(self, element: Array) -> KeptGroup:
        """Return the group that this one and an element (d, d) generate."""
        return replace(self, members=_closed(np.stack([*self.members, element])))


def kept_group(keep: object, gspace: GSpace, samples: int) -> KeptGroup:
    """Return the kept group that a layer's argument ``keep`` names, for a sample of the given number of rotations."""
    if keep is None:
        return KeptGroup("", np.eye(gspace.dimensionality)[None])
    # A group without a base space may be one of space whose subgroups have ids.
    is_of_plane = gspace.dimensionality == 2 and not is_abstract(gspace)
    if is_of_plane and (isinstance(keep, str) or not isinstance(gspace, ActingGroup)):
        return _kept_in_plane(keep, gspace, samples)
    if keep == AXIS and not is_abstract(gspace):
        axis = np.array([0.0, 0.0, 1.0])
        if (np.abs(sample_group(gspace).rotations @ axis - axis).max(-1) < _SAME).sum() < 2:
            raise ValueError(f"keep={keep!r} needs rotations about the axis z, but {gspace.name} has none")
        return KeptGroup(AXIS, np.eye(3)[None], axis)
    if isinstance(keep, (bool, float)):
        raise TypeError(f"keep must be the id of a subgroup or elements that generate it, got {keep!r}")
    return KeptGroup(str(keep), *_subgroup(keep, gspace))


def _kept_in_plane(keep: object, gspace: GSpace, samples: int) -> KeptGroup:
    if not isinstance(keep, str):
        raise TypeError(f"keep must be the name of a group, as 'C4' or 'D4', or None, got {keep!r}")
    name = _NAME.fullmatch(keep)
    if name is None:
        raise ValueError(f"keep must be 'C' or 'D' and a number of rotations, as 'C4' or 'D4', got {keep!r}")
    count, sample = int(name[2]), sample_group(gspace, samples)
    has_flip = name[1] == "D"
    if has_flip and not sample.reflected.any():
        raise ValueError(f"keep={keep!r} has a reflection, but {gspace.name} has none: use 'C{count}'")
    if len(sample.rotations) % count:
        raise ValueError(
            f"keep={keep!r} must have a number of rotations that divides {len(sample.rotations)}, those of the layer"
        )
    turns = np.stack([rotation_matrix(2 * np.pi * turn / count) for turn in range(count)])
    kept = KeptGroup("" if keep == "C1" else keep, turns)
    return kept.with_element(sample.reflection) if has_flip else kept


def _subgroup(keep: object, gspace: GSpace) -> tuple[Array, Array | None]:
    """Return the matrices of a subgroup; of a continuous one a few, to multiply by rotations about its axis."""
    if isinstance(keep, (list, tuple)) and keep and all(isinstance(element, GroupElement) for element in keep):
        if any(element.group != gspace.fibergroup for element in keep):
            raise ValueError(f"keep must be elements of {gspace.fibergroup.name}, got {keep!r}")
        generated = _closed(_actions(keep, gspace), most=_LARGEST)
        if len(generated) > _LARGEST:
            raise ValueError(f"keep must generate a finite group, got {keep!r}")
        return generated, None
    try:
        group, include, _ = gspace.fibergroup.subgroup(keep)
        members = sampled_elements(group, least_samples(group)) if group.continuous else group.elements
        matrices = _actions([include(element) for element in members], gspace)
    except (AssertionError, ValueError, TypeError, IndexError, KeyError, ArithmeticError, NotImplementedError) as error:
        raise ValueError(
            f"keep must be the id of a subgroup of {gspace.fibergroup.name}, as "
            f"gspace.fibergroup.subgroup takes it, elements that generate it, or {AXIS!r} for turns about z, "
            f"got {keep!r}{_named_as_in_plane(keep, gspace)}"
        ) from error
    if not group.continuous:
        return matrices, None
    if gspace.dimensionality == 2 or is_abstract(gspace):
        raise ValueError(f"keep must be a finite subgroup of {gspace.fibergroup.name}, got {keep!r}")
    # Rotations that are not half turns are about the axis of a group that has one.
    is_turn = (np.linalg.det(matrices) > 0) & (np.trace(matrices, axis1=1, axis2=2) > -1 + _SAME)
    fixed = np.linalg.svd(np.concatenate(matrices[is_turn] - np.eye(3)))
    axis = fixed[2][-1] if fixed[1][-1] < _SAME else np.zeros(3)
    axis = axis * np.sign(axis[np.argmax(np.abs(axis))]) if axis.any() else axis
    known = matrices[:0]
    for matrix in matrices:
        if not KeptGroup("", known, axis).holds(matrix):
            known = np.append(known, matrix[None], axis=0)
    return known, axis


def _named_as_in_plane(keep: object, gspace: GSpace) -> str:
    """Return for a message the id of the subgroup of space for a name of the plane, such as 'C4'."""
    name = _NAME.fullmatch(keep) if isinstance(keep, str) else None
    if name is None or gspace.dimensionality == 2 or is_abstract(gspace):
        return ""
    is_dihedral, count = name[1] == "D", int(name[2])
    # The ids of escnn's groups: SO(3) and the octahedral group, O(3), SO(2), and O(2) or a dihedral group.
    for key in ((is_dihedral, count), (False, is_dihedral, count), count, (0.0 if is_dihedral else None, count)):
        with contextlib.suppress(ValueError):
            members, _ = _subgroup(key, gspace)
            if len(members) == count * (1 + is_dihedral) and (is_dihedral or (np.linalg.det(members) > 0).all()):
                return f": keep={key!r} is {keep} here"
    return ""


def _actions(elements: Sequence[GroupElement], gspace: GSpace) -> Array:
    """Return the matrices of elements on the base space, (L, d, d)."""
    return np.stack([gspace.basespace_action(element) for element in elements]).astype(np.float64)


def _closed(members: Array, most: float = np.inf) -> Array:
    """Return the group that matrices (L, d, d) generate; the search stops beyond ``most`` elements."""
    known = [np.eye(members.shape[-1])]
    for element in known:
        for product in members @ element:
            if all(np.abs(product - other).max() > _SAME for other in known):
                known.append(product)
        if len(known) > most:
            break
    return np.stack(known)
