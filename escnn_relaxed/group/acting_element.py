"""The element of a fiber group that acts on the base space by a given matrix."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .elements import sample_group
from .rotation_grids import factors, is_of_space

if TYPE_CHECKING:
    from escnn.group import Group, GroupElement
    from escnn.gspaces import GSpace

__all__ = ["element_with_action"]

Array = NDArray[np.float64]

_SAME = 1e-6


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
