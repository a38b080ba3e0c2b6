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
        return f"reflection along {_axis_in_words(axis)}"
    about = f" about {_axis_in_words(axis)}" if angle else ""
    return f"rotation {_degrees(angle)}{about}{', inverted' if subgroup == 'reflection' else ''}"


def _degrees(angle: float) -> str:
    return f"{math.degrees(angle):.4g}°"


def _axis_in_words(axis: Array) -> str:
    """Return x, y or z, or else the components of the axis, the largest of them 1 or −1."""
    scaled = axis / np.abs(axis).max()
    named = [name for name, component in zip("xyz", scaled, strict=True) if abs(component) > TOLERANCE]
    if len(named) == 1:
        return named[0]
    # 0.0 is added for what rounds to −0.
    return f"({', '.join(f'{round(component, 3) + 0.0:.3g}' for component in scaled)})".replace("-", "−")


def _turn(matrix: Array) -> tuple[float, Array]:
    """Return angle in [0, 2π) and axis (3,) of the rotation in an orthogonal matrix; the plane's axis is z.

    The first component of the axis that is not 0 is positive. It is 0 where nothing turns.
    """
    dimension = len(matrix)
    inside = np.eye(3)
    inside[:dimension, :dimension] = matrix @ _FLIPS[dimension] if np.linalg.det(matrix) < 0 else matrix
    cosine = (np.trace(inside) - 1) / 2
    twice_sine = np.array([inside[2, 1] - inside[1, 2], inside[0, 2] - inside[2, 0], inside[1, 0] - inside[0, 1]])
    # 2 (1 − cos α) n nᵀ, whose longest row is along the axis n. The sine is 0 for half a turn.
    squared = inside + inside.T - 2 * cosine * np.eye(3)
    axis: Array = squared[np.argmax(np.diag(squared))]
    length = np.linalg.norm(axis)
    if length < TOLERANCE**2:
        return 0.0, np.zeros(3)
    axis = axis / length
    axis = axis * np.sign(axis[np.argmax(np.abs(axis) > TOLERANCE)])
    angle = math.atan2(twice_sine @ axis / 2, cosine) % (2 * math.pi)
    return (0.0 if min(angle, 2 * math.pi - angle) < TOLERANCE else angle), axis
