"""Isometries of images and volumes: their angles and names, and their action on the channels of fields.

Coordinates are in escnn's order, x, y and of volumes z: the last axis of an image is x, and the axes before it point
against its rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from escnn.group import GroupElement
from escnn.gspaces import GSpace
from escnn.nn import FieldType
from numpy.typing import NDArray
from torch import Tensor

from ..checks import check_sequence
from ..group.acting_element import element_with_action
from ..group.elements import rotation_matrix, sample_group
from ..group.points import image_axes
from ..group.rotation_axes import axis_and_angle, axis_in_words
from ..group.rotation_grids import least_samples

__all__ = ["TOLERANCE", "Isometry", "isometries_of", "on_fibers", "rotation", "shift", "turn_or_flip"]

Array = NDArray[np.float64]

# Positions come from cosines and strides: what is this close to a pixel is on it.
TOLERANCE = 1e-6
# The reflection that a turn follows on, by the dimension: y → −y of the plane, the inversion of space.
_FLIPS = {2: np.diag([1.0, -1.0]), 3: -np.eye(3)}
# The axis of a sweep over angles, in words.
_ABOUT = {2: "", 3: " about z"}
# Rotations that a continuous group is measured on, if those of the grid are fewer.
_ROTATIONS = 16


@dataclass(frozen=True, eq=False)
class Isometry:
    """x → A x + τ, which an image or a volume is moved by."""

    name: str  # in words, degrees and pixels
    subgroup: str  # "rotation", "reflection" or "translation"
    matrix: Array  # A, (d, d), orthogonal
    translation: Array  # τ in pixels, (d,)

    @property
    def angle(self) -> float:
        """α in [0, 2π): A turns by α, a reflection after y → −y, or in space after the inversion."""
        return _turn(self.matrix)[0]

    @property
    def keeps_axes(self) -> bool:
        """Whether A maps each axis of the grid to an axis."""
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


def isometries_of(gspace: GSpace, elements: Sequence[GroupElement] | None) -> list[Isometry]:
    """Return the isometries of elements: by default of all but the identity, of a continuous group of a sample."""
    group = gspace.fibergroup
    if elements is None:
        sample = sample_group(gspace, max(_ROTATIONS, least_samples(group)))
        elements = [element for element in sample.elements if element != group.identity]
    for element in check_sequence("elements", elements, "elements of the fiber group"):
        if not isinstance(element, GroupElement) or element.group != group:
            raise TypeError(f"elements must be of {group.name}, got {element!r}")
    return [turn_or_flip(gspace, element) for element in elements]


def on_fibers(features: Tensor, field_type: FieldType, isometry: Isometry, place: str) -> Tensor:
    """Apply ρ(g) to the channels (batch, C, …) of the input or the output, g the element that acts as the isometry."""
    fields = field_type.representations
    if isometry.subgroup == "translation" or all(field.is_trivial() for field in fields):
        return features
    element = element_with_action(field_type.gspace, isometry.matrix)
    if element is None:
        raise ValueError(
            f"angles and elements: the fields of the {place} are of {field_type.gspace.name}, which holds no "
            f"{isometry.name}; take its own elements, or an input and an output of trivial fields or without space"
        )
    matrices = {field: torch.from_numpy(np.asarray(field(element))).to(features) for field in set(fields)}
    parts = features.split([field.size for field in fields], dim=1)
    pairs = zip(fields, parts, strict=True)
    return torch.cat([torch.einsum("oc,bc...->bo...", matrices[field], part) for field, part in pairs], dim=1)


def _name(subgroup: str, matrix: Array) -> str:
    """Return a turn or a flip in words: in space "reflection along z" is z → −z."""
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
