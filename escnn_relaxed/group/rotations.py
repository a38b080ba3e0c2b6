"""Rotations of space as axes, angles and words, and the element of a group that acts by a matrix."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .elements import factors, is_of_space, sample_group

if TYPE_CHECKING:
    from escnn.group import Group, GroupElement
    from escnn.gspaces import GSpace

Array = NDArray[np.float64]

_SAME = 1e-6


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
            found = _rotation(gspace, rotation) @ element
            if np.allclose(gspace.basespace_action(found), action, rtol=0, atol=_SAME):
                return found
    return None


def _rotation(gspace: GSpace, rotation: Array) -> GroupElement:
    """Return the rotation of a continuous group that acts by a matrix, if one does, else any."""
    from escnn.group import O3

    group = gspace.fibergroup
    if is_of_space(group):
        return group.element((0, rotation) if isinstance(group, O3) else rotation, param="MAT")
    quarter = np.asarray(gspace.basespace_action(_turn(group, math.pi / 2)), dtype=np.float64)
    # The rotations are I + sin α G + (1 − cos α) G².
    generator = (quarter - quarter.T) / 2
    sine, cosine = (generator * rotation).sum() / 2, (np.trace(rotation) - len(rotation) + 2) / 2
    return _turn(group, math.atan2(sine, cosine))


def _turn(group: Group, angle: float) -> GroupElement:
    """Return the rotation by an angle of SO(2), O(2), or a direct product of one with a finite group."""
    from escnn.group import O2

    if parts := factors(group):
        turned = [_turn(part, angle) if part.continuous else part.identity for part in parts]
        return group.pair_elements(*turned)
    return group.element((0, angle) if isinstance(group, O2) else angle, param="radians")
