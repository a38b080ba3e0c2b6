"""Isometries of images and volumes, their angles and their names.

Coordinates are in escnn's order, x, y and of volumes z: the last axis of an image is x, and the axes before it point
against its rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from escnn.group import GroupElement
    from escnn.gspaces import GSpace

from ..group.elements import rotation_matrix
from ..group.points import image_axes
from ..group.rotation_axes import axis_and_angle, axis_in_words

__all__ = ["TOLERANCE", "Isometry", "rotation", "shift", "turn_or_flip"]

Array = NDArray[np.float64]

# Positions come from cosines and strides: what is this close to a pixel is on it.
TOLERANCE = 1e-6
# The reflection that a turn follows on, by the dimension: y → −y of the plane, the inversion of space.
_FLIPS = {2: np.diag([1.0, -1.0]), 3: -np.eye(3)}
# The axis of a sweep over angles, in words.
_ABOUT = {2: "", 3: " about z"}


@dataclass(frozen=True, eq=False)
class Isometry:
    """x → A x + τ, what is done to an image or a volume.

    Attributes:
        name: in words, degrees and pixels.
        subgroup: ``"rotation"``, ``"reflection"`` or ``"translation"``.
        matrix: A, (d, d), orthogonal.
        translation: τ in pixels, (d,).
    """

    name: str
    subgroup: str
    matrix: Array
    translation: Array

    @property
    def angle(self) -> float:
        """α in [0, 2π): A turns by α, a reflection after y → −y, or in space after the inversion."""
        return _turn(self.matrix)[0]

    @property
    def keeps_axes(self) -> bool:
        """Return whether A maps each axis of the grid to an axis."""
        return np.allclose(self.matrix, self.matrix.round(), rtol=0, atol=TOLERANCE)

    @property
    def pixels(self) -> tuple[int, ...]:
        """The translation along the axes of the image, rounded: rows down, columns to the right."""
        return tuple(round(step) for step in image_axes(len(self.matrix)) @ self.translation)

    def inverse(self) -> Isometry:
        """Return the isometry back."""
        return replace(self, matrix=self.matrix.T, translation=-self.matrix.T @ self.translation)


def rotation(angle: float, dimension: int = 2) -> Isometry:
    """Return the turn by an angle in radians, counter-clockwise; in space about the axis z."""
    matrix = np.eye(dimension)
    matrix[:2, :2] = rotation_matrix(angle)
    return Isometry(f"rotation {_degrees(angle)}{_ABOUT[dimension]}", "rotation", matrix, np.zeros(dimension))


def turn_or_flip(gspace: GSpace, element: GroupElement) -> Isometry:
    """Return the isometry by which an element of a fiber group acts on the base space."""
    matrix = np.asarray(gspace.basespace_action(element), dtype=np.float64)
    subgroup = "reflection" if np.linalg.det(matrix) < 0 else "rotation"
    return Isometry(_name(subgroup, matrix), subgroup, matrix, np.zeros(len(matrix)))


def shift(*pixels: int) -> Isometry:
    """Return the shift by pixels along the axes of the image: rows down and columns to the right."""
    dimension = len(pixels)
    translation = np.array(pixels, dtype=np.float64) @ image_axes(dimension)
    return Isometry(f"shift {', '.join(map(str, pixels))}", "translation", np.eye(dimension), translation)


def _name(subgroup: str, matrix: Array) -> str:
    """Return the words for a turn or a flip.

    In space "reflection along z" is z → −z, and "rotation 90° about z, inverted" is the turn of the inverted volume.
    """
    angle, axis = _turn(matrix)
    if len(matrix) == 2:
        return f"{subgroup} {_degrees(angle)}"
    if subgroup == "reflection" and angle == 0:
        return "inversion"
    if subgroup == "reflection" and abs(angle - math.pi) < TOLERANCE:
        return f"reflection along {axis_in_words(axis)}"
    about = f" about {axis_in_words(axis)}" if angle else ""
    return f"rotation {_degrees(angle)}{about}{', inverted' if subgroup == 'reflection' else ''}"


def _degrees(angle: float) -> str:
    return f"{math.degrees(angle):.4g}°"


def _turn(matrix: Array) -> tuple[float, Array]:
    """Return angle in [0, 2π) and axis (3,) of the rotation in an orthogonal matrix; the plane's axis is z."""
    dimension = len(matrix)
    inside = np.eye(3)
    inside[:dimension, :dimension] = matrix @ _FLIPS[dimension] if np.linalg.det(matrix) < 0 else matrix
    axis, angle = axis_and_angle(inside)
    return angle, axis
