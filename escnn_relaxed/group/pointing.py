"""Vectors that break a symmetry: irreps that can point, vectors that a subgroup fixes, the symmetry of a vector.

A vector v is in a direct sum of representations, ρ. Its symmetry is the subgroup of all g with ρ(g)v = v.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property

import numpy as np
from escnn.group import Group, GroupElement, Representation
from escnn.gspaces import GSpace

from .domain import AVERAGES
from .elements import (
    ActingGroup,
    acting_group,
    axis_and_angle,
    axis_in_words,
    element_with_action,
    is_of_space,
    rotation_about,
    sample_group,
    turn,
)
from .fields import block_diagonal
from .kept import KeptGroup
from .points import Array

# Rotations of a circle by which means are exact for irreps of all lower frequencies.
_TURNS = 64
# A part of a vector that is smaller is rounding, of single precision too.
_ROUNDING = 1e-5
# Entries of a mean that are smaller are rounding.
_TINY = 1e-12
# A rotation that is in no finite group, in radians.
_ANY_ANGLE = 1.0
# The most mirrors that a vector of O(2) may have: twice the largest frequency.
_MOST_FOLD = 32


def space_that_acts(gspace: GSpace) -> GSpace | ActingGroup | None:
    """Return the gspace; without a base space the group with its action, or None where no action is known."""
    return gspace if gspace.dimensionality else acting_group(gspace.fibergroup)


class Pointing:
    """Some fields on a gspace: their matrices, means over subgroups, and the symmetry of their vectors."""

    def __init__(self, space: GSpace | ActingGroup, fields: Sequence[Representation]) -> None:
        self.space, self.fields = space, tuple(fields)
        self.size = sum(field.size for field in fields)

    @property
    def group(self) -> Group:
        """The fiber group."""
        return self.space.fibergroup

    def matrix(self, element: GroupElement) -> Array:
        """Return ρ(g), (C, C)."""
        return block_diagonal([np.asarray(field(element), dtype=np.float64) for field in self.fields])

    def mean(self, elements: Iterable[GroupElement]) -> Array:
        """Return the mean of ρ over some elements, (C, C)."""
        return np.mean([self.matrix(element) for element in elements], axis=0)

    @cached_property
    def over_rotations(self) -> Array:
        """The mean of ρ over all rotations."""
        if is_of_space(self.group):
            # The irreps with one dimension are those that rotations leave alone.
            return block_diagonal([_projection(field) for field in self.fields])
        sample = sample_group(self.space, _TURNS if self.group.continuous else None)
        return self.mean(
            element for element, flipped in zip(sample.elements, sample.reflected, strict=True) if not flipped
        )

    @cached_property
    def over_reflection(self) -> Array:
        """The mean of ρ over the identity and the reflection, the identity matrix where there is none."""
        reflection = element_with_action(self.space, sample_group(self.space).reflection)
        return self.mean([self.group.identity, reflection or self.group.identity])

    def over(self, subgroups: Collection[str]) -> Array:
        """Return the mean of ρ over subgroups of the fiber group."""
        mean = np.eye(self.size)
        if "rotation" in subgroups:
            mean = self.over_rotations @ mean
        return self.over_reflection @ mean if "reflection" in subgroups else mean

    def means(self) -> dict[tuple[str, ...], Array]:
        """Return the means over each choice of subgroups."""
        means = {names: self.over(names) for names in AVERAGES}
        # What vanishes is to be 0, so that a network without its vector is strict to the last bit.
        return {names: np.where(np.abs(mean) < _TINY, 0, mean) for names, mean in means.items()}

    def fixed_vectors(self, subgroups: Collection[str], kept: KeptGroup) -> Array:
        """Return an orthonormal basis of the vectors that some subgroups and a kept group fix, as columns (C, n)."""
        if "reflection" in subgroups and sample_group(self.space).reflected.any():
            kept = kept.with_element(sample_group(self.space).reflection)
        mean = self.over_rotations if "rotation" in subgroups else np.eye(self.size)
        if kept.axis is not None and not kept.axis.any():
            mean = self.over_rotations
        turns = [np.eye(self.space.dimensionality)]
        if kept.axis is not None and kept.axis.any():
            turns = [rotation_about(kept.axis, 2 * math.pi * number / _TURNS) for number in range(_TURNS)]
        elements = [element_with_action(self.space, turned @ member) for turned in turns for member in kept.members]
        mean = mean @ self.mean([element for element in elements if element is not None])
        is_axis = np.isclose(np.diag(mean), 1, rtol=0, atol=_ROUNDING)
        if np.allclose(mean, np.diag(is_axis.astype(np.float64)), rtol=0, atol=_ROUNDING):
            return np.eye(self.size)[:, is_axis]
        left, sizes, _ = np.linalg.svd(mean)
        basis: Array = left[:, sizes > 0.5]
        return basis * np.sign(basis[np.abs(basis).argmax(0), range(basis.shape[1])])

    # --- the symmetry of a vector -----------------------------------------------------------------------------------

    def is_fixed(self, vector: Array, element: GroupElement) -> bool:
        """Return whether an element fixes a vector (C,)."""
        return bool(np.linalg.norm(self.matrix(element) @ vector - vector) <= _ROUNDING * np.linalg.norm(vector))

    def direction(self, vector: Array) -> Array | None:
        """Return where the first of the fields that is a vector of the plane or of space points; None where none is."""
        start, dimension = 0, self.space.dimensionality
        for field in self.fields:
            part = vector[start : start + field.size]
            start += field.size
            points = self._as_points(field) if field.size in (dimension, 2) and len(field.irreps) == 1 else None
            if points is not None and np.linalg.norm(part) > 0:
                return points @ part
        return None

    def _as_points(self, field: Representation) -> Array | None:
        """Return an equivariant map (d, size) from a field to the base space, None where there is none."""
        if isinstance(self.space, ActingGroup):
            # Vectors of these groups are written in the axes of their usual matrices.
            sample, eye = sample_group(self.space), np.eye(self.space.dimensionality, field.size)
            mean: Array = np.mean(sample.action @ eye @ np.linalg.inv(sample.matrices(field)), axis=0)
            return mean if np.linalg.norm(mean - eye) < _ROUNDING else None
        action, start = self.space.basespace_action, 0
        for name in action.irreps:
            size = action.group.irrep(*name).size
            if name == field.irreps[0]:
                points: Array = action.change_of_basis[:, start : start + size] @ field.change_of_basis_inv
                return points
            start += size
        return None

    def kept_in_words(self, vector: Array) -> str:
        """Return the symmetry of a vector (C,) in words."""
        if not np.linalg.norm(vector):
            return str(self.group.name)
        if not self.group.continuous:
            return self._finite_in_words(vector)
        return self._in_plane_in_words(vector) if self.space.dimensionality == 2 else self._in_space_in_words(vector)

    def _finite_in_words(self, vector: Array) -> str:
        sample = sample_group(self.space)
        held = np.array([self.is_fixed(vector, element) for element in sample.elements])
        if held.all():
            return str(self.group.name)
        rotations, mirrors = sample.action[held & (sample.reflected == 0)], sample.action[held & (sample.reflected > 0)]
        if self.space.dimensionality == 2:
            return _of_plane(len(rotations), mirrors)
        return _of_space(rotations, mirrors)

    def _in_plane_in_words(self, vector: Array) -> str:
        if self.is_fixed(vector, turn(self.group, _ANY_ANGLE)):
            # Only all mirrors or none are left.
            reflection = element_with_action(self.space, sample_group(self.space).reflection)
            is_whole = reflection is None or self.is_fixed(vector, reflection)
            return str(self.group.name) if is_whole else "SO(2)"
        fold = max(n for n in range(1, _MOST_FOLD) if self.is_fixed(vector, turn(self.group, 2 * math.pi / n)))
        mirrors = [self.space.basespace_action(each) for each in self._mirrors(vector)]
        return _of_plane(fold, np.array(mirrors))

    def _mirrors(self, vector: Array) -> list[GroupElement]:
        """Return a reflection of O(2) that fixes a vector, if one does."""
        reflection = element_with_action(self.space, sample_group(self.space).reflection)
        if not sample_group(self.space).reflected.any() or reflection is None:
            return []
        # ‖ρ(t)ρ(f)v − v‖² is a sum of waves in the angle of the turn t, of frequencies up to that of ρ.
        flipped = self.matrix(reflection) @ vector

        def distance(angle: float) -> float:
            return float(np.linalg.norm(self.matrix(turn(self.group, angle)) @ flipped - vector))

        grid = np.arange(720) * (2 * math.pi / 720)
        start = min(grid, key=distance)
        step = grid[1]
        while step > 1e-12:
            near = (start - step, start, start + step)
            nearest = min(near, key=distance)
            start, step = nearest, step if nearest != start else step / 2
        found = turn(self.group, start) @ reflection
        return [found] if self.is_fixed(vector, found) else []

    def _in_space_in_words(self, vector: Array) -> str:
        if not is_of_space(self.group):
            if self.is_fixed(vector, turn(self.group, _ANY_ANGLE)):
                return "turns about z"
            fold = max(n for n in range(1, _MOST_FOLD) if self.is_fixed(vector, turn(self.group, 2 * math.pi / n)))
            return f"C{fold} about z" if fold > 1 else "nothing"
        step = 1e-4
        moves = []
        for axis in np.eye(3):
            ends = [self._rotation(rotation_about(axis, angle)) for angle in (step, -step)]
            moves.append((self.matrix(ends[0]) - self.matrix(ends[1])) @ vector / (2 * step))
        _, sizes, rows = np.linalg.svd(np.stack(moves, axis=1))
        still = rows[sizes < _ROUNDING * np.linalg.norm(vector)]
        if len(still) == 3:
            inversion = element_with_action(self.space, -np.eye(3))
            return str(self.group.name) if inversion is None or self.is_fixed(vector, inversion) else "SO(3)"
        if len(still) == 0:
            return self._without_axis_in_words(vector, rows)
        # An axis has no sign, and that of an SVD is another one with another NumPy.
        axis = still[0] * np.sign(next(part for part in still[0] if abs(part) > _ROUNDING))
        words = f"turns about {axis_in_words(axis)}"
        normal = np.cross(still[0], np.eye(3)[np.abs(still[0]).argmin()])
        normal /= np.linalg.norm(normal)
        mirror = element_with_action(self.space, np.eye(3) - 2 * np.outer(normal, normal))
        return f"{words}, mirrors through it" if mirror and self.is_fixed(vector, mirror) else words

    def _without_axis_in_words(self, vector: Array, axes: Array) -> str:
        """Return a finite symmetry of a vector in words: of the cube's elements and those of order two about axes.

        An element that fixes v turns a × v, a rotation's first order, as it turns a. So it keeps the axes of the
        quadratic form ‖a × v‖², its singular vectors, where these are no choice. Two vectors have their normal among
        them, so that the mirror through both is found.
        """
        sample, eye = sample_group(self.space), np.eye(3)
        held = [self.is_fixed(vector, element) for element in sample.elements]
        actions = list(sample.action[held])
        halves = [2 * np.outer(axis, axis) - eye for axis in axes]
        for action in (*halves, *(-half for half in halves), -eye):
            element = element_with_action(self.space, action)
            is_new = all(np.abs(action - known).max() > _ROUNDING for known in actions)
            if element is not None and is_new and self.is_fixed(vector, element):
                actions.append(action)
        if len(actions) == sum(held) > 2:
            return f"{len(actions)} of the cube's {len(held)} symmetries"
        are_rotations = np.linalg.det(actions) > 0
        return _of_space(np.stack(actions)[are_rotations], np.stack(actions)[~are_rotations])

    def _rotation(self, action: Array) -> GroupElement:
        found = element_with_action(self.space, action)
        assert found is not None  # SO(3) and O(3) have all rotations
        return found


def pointing_fields(space: GSpace | ActingGroup, fixing: Callable[[Representation], bool]) -> list[Representation]:
    """Return the fields of the smallest vector that points: irreps of the base space, or another, by ``fixing``.

    They are the irreps of the base space on which the group acts; where none has vectors that may be kept, the first
    of the group's other irreps that has.
    """
    found = [irrep for irrep in _irreps_of_space(space) if not irrep.is_trivial() and fixing(irrep)]
    if found:
        return found
    others = sorted(space.fibergroup.irreps(), key=lambda irrep: irrep.size)
    return next(([irrep] for irrep in others if not irrep.is_trivial() and fixing(irrep)), [])


def _irreps_of_space(space: GSpace | ActingGroup) -> list[Representation]:
    """Return the irreps of the base space, each once."""
    group = space.fibergroup
    if not isinstance(space, ActingGroup):
        return [group.irrep(*name) for name in dict.fromkeys(space.basespace_action.irreps)]
    sample = sample_group(space, _TURNS if group.continuous and not is_of_space(group) else None)
    of_space, found = np.trace(sample.action, axis1=1, axis2=2), list[Representation]()
    for irrep in group.irreps():
        characters = np.trace(sample.matrices(irrep), axis1=1, axis2=2)
        # Irreps of higher frequencies look alike on a sample: those that fill the space are the first.
        is_full = sum(each.size for each in found) >= space.dimensionality
        if not is_full and (of_space * characters).mean() > 0.5:
            found.append(irrep)
    return found


def _projection(field: Representation) -> Array:
    """Return the projection of a field of SO(3) or O(3) on the vectors that all rotations fix."""
    irreps = [field.group.irrep(*name) for name in field.irreps]
    flags = np.concatenate([np.full(irrep.size, float(irrep.size == 1)) for irrep in irreps])
    projection: Array = field.change_of_basis @ np.diag(flags) @ field.change_of_basis_inv
    return projection


def _of_plane(fold: int, mirrors: Array) -> str:
    """Return the name of a group of the plane, with the axis of one mirror, given its number of turns and mirrors."""
    if not len(mirrors):
        return f"C{fold}" if fold > 1 else "nothing"
    angles = [math.degrees(math.atan2(mirror[1, 0], mirror[0, 0]) / 2) % 180 for mirror in mirrors]
    first = min(round(angle, 1) % 180 for angle in angles)
    mirror = f"the mirror along {first:g}°"
    return mirror if fold == 1 else f"D{fold} with {mirror}"


def _of_space(rotations: Array, mirrors: Array) -> str:
    """Return the name of a finite group of space, given its matrices."""
    axes = [axis_and_angle(matrix)[0] for matrix in rotations]
    turning = [axis for axis in axes if axis.any()]
    count = len(rotations) + len(mirrors)
    if count == 1:
        return "nothing"
    if count == 2 and len(mirrors):
        normal = axis_and_angle(-mirrors[0])[0]
        return f"the mirror across {axis_in_words(normal)}" if normal.any() else "the inversion"
    if turning and all(np.abs(np.cross(axis, turning[0])).max() < _ROUNDING for axis in turning):
        words = f"C{len(rotations)} about {axis_in_words(turning[0])}"
        return f"{words} and {len(mirrors)} mirrors" if len(mirrors) else words
    return f"{len(rotations)} rotations" + (f", {len(mirrors)} mirrors" if len(mirrors) else "")
