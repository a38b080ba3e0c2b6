"""Isometries of images and volumes: their angles and names, and their action on the channels of fields.

Coordinates are in escnn's order, x, y and of volumes z: the last axis of an image is x, and the axes before it point
against its rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from escnn.group import Group, GroupElement
from escnn.gspaces import GSpace
from escnn.nn import FieldType
from numpy.typing import NDArray
from torch import Tensor

from ..checks import WHOLE_GROUP, check_sequence
from ..group.elements import (
    ActingGroup,
    acting_group,
    axis_and_angle,
    axis_in_words,
    element_with_action,
    factors,
    is_abstract,
    least_samples,
    rotation_matrix,
    sample_group,
)
from ..group.points import Array, centred_grid, image_axes

# Positions come from cosines and strides: what is this close to a pixel is on it.
TOLERANCE = 1e-6
# The reflection that a turn follows on, by the dimension: y → −y of the plane, the inversion of space.
_FLIPS = {2: np.diag([1.0, -1.0]), 3: -np.eye(3)}
# Rotations that a continuous group is measured on, if those of the grid are fewer.
_ROTATIONS = 16


@dataclass(frozen=True, eq=False)
class Isometry:
    """The isometry x → A x + τ of an image or a volume; for features without a base space, a group element."""

    name: str  # in words, degrees and pixels
    subgroup: str  # "rotation", "reflection" or "translation"; "group" of elements that are none of these
    matrix: Array  # A, (d, d), orthogonal
    translation: Array  # τ in pixels, (d,)
    element: GroupElement | None = None  # the element, where there is no base space

    @property
    def angle(self) -> float:
        """α in [0, 2π): A turns by α, a reflection after y → −y, or in space after the inversion."""
        return 0.0 if self.subgroup == WHOLE_GROUP else _turn(self.matrix)[0]

    @property
    def degrees(self) -> float:
        """The angle α in degrees, in [0, 360), as in reports; rounded to whole numbers up to rounding errors."""
        return round(math.degrees(self.angle), 9) % 360

    @property
    def axis(self) -> Array:
        """The axis of the rotation, (3,); 0 if there is none."""
        return _turn(self.matrix)[1]

    @property
    def keeps_axes(self) -> bool:
        """True if A maps each axis of the grid to an axis, or there is no grid."""
        return self.element is not None or np.allclose(self.matrix, self.matrix.round(), rtol=0, atol=TOLERANCE)

    @property
    def pixels(self) -> tuple[int, ...]:
        """The translation along the axes of the image, rounded: rows down, columns to the right."""
        return tuple(round(step) for step in image_axes(len(self.matrix)) @ self.translation)

    def inverse(self) -> Isometry:
        """Return the inverse isometry."""
        back = None if self.element is None else ~self.element
        return replace(self, matrix=self.matrix.T, translation=-self.matrix.T @ self.translation, element=back)


def rotation(angle: float, dimension: int = 2) -> Isometry:
    """Return the rotation by an angle in radians, counter-clockwise; in space about the z axis."""
    matrix = np.eye(dimension)
    matrix[:2, :2] = rotation_matrix(angle)
    return _turn_or_flip(matrix)


def turn_or_flip(gspace: GSpace | ActingGroup, element: GroupElement) -> Isometry:
    """Return the isometry by which an element of a fiber group acts on the base space, or else in its usual action."""
    matrix = np.asarray(gspace.basespace_action(element), dtype=np.float64)
    if is_abstract(gspace):
        return Isometry(_in_words(element), WHOLE_GROUP, matrix, np.zeros(len(matrix)))
    return _turn_or_flip(matrix)


def _in_words(element: Any) -> str:
    """Return an element as text; of a direct product by the values of its parts, as "element (0, 1)"."""
    return f"element {_value(element)}"


def _value(element: Any) -> Any:
    if not factors(element.group):
        return element.value
    return tuple(_value(part) for part in element.group.split_element(element))


def _without_space(group: Group, elements: Sequence[GroupElement] | None) -> list[Isometry]:
    """Return how elements of a group without a base space act on features: as those of ``isometries_of``."""
    acting = acting_group(group)
    if acting is None:
        chosen = [group.sample() for _ in range(_ROTATIONS)] if elements is None else elements
        return [Isometry(_in_words(each), WHOLE_GROUP, np.eye(0), np.zeros(0), each) for each in chosen]
    if elements is None:
        elements = _others(sample_group(acting, max(_ROTATIONS, least_samples(group))).elements)
    return [replace(turn_or_flip(acting, element), element=element) for element in elements]


def _turn_or_flip(matrix: Array) -> Isometry:
    subgroup = "reflection" if np.linalg.det(matrix) < 0 else "rotation"
    return Isometry(_name(subgroup, matrix), subgroup, matrix, np.zeros(len(matrix)))


def shift(*pixels: int) -> Isometry:
    """Return the shift by pixels along the axes of the image: rows down and columns to the right."""
    dimension = len(pixels)
    translation = np.array(pixels, dtype=np.float64) @ image_axes(dimension)
    return Isometry(f"shift {', '.join(map(str, pixels))}", "translation", np.eye(dimension), translation)


def isometries_of(gspace: GSpace, elements: Sequence[GroupElement] | None) -> list[Isometry]:
    """Return the isometries of elements, by default all but the identity; a sample for continuous groups."""
    group = gspace.fibergroup
    for element in () if elements is None else check_sequence("elements", elements, "elements of the fiber group"):
        if not isinstance(element, GroupElement) or element.group != group:
            raise TypeError(f"elements must be of {group.name}, got {element!r}")
    if gspace.dimensionality == 0:
        return _without_space(group, elements)
    if elements is None:
        elements = _others(sample_group(gspace, max(_ROTATIONS, least_samples(group))).elements)
    return [turn_or_flip(gspace, element) for element in elements]


def _others(elements: Sequence[GroupElement]) -> list[GroupElement]:
    """Return the elements but the identity."""
    return [element for element in elements if element != element.group.identity]


def on_fibers(
    features: Tensor, field_type: FieldType, isometry: Isometry, end: str, space: GSpace | None = None
) -> Tensor:
    """Apply ρ(g) to channels (batch, C, …), where g acts on the base space, or else on ``space``, as the isometry."""
    if isometry.subgroup == "translation" or all(field.is_trivial() for field in field_type.representations):
        return features
    if isometry.element is not None and isometry.element.group == field_type.fibergroup:
        return field_type.transform_fibers(features, isometry.element)
    acting = field_type.gspace
    if acting.dimensionality == 0 and space is not None and acting.fibergroup == space.fibergroup:
        acting = space
    element = element_with_action(acting, isometry.matrix) if acting.dimensionality else None
    if element is None:
        raise ValueError(
            f"angles and elements: the fields of the {end} are of {field_type.gspace.name}, which holds no "
            f"{isometry.name}{_nearest_elements(field_type.gspace, isometry)}; take its own elements, or an input and "
            f"an output of trivial fields or without space"
        )
    return field_type.transform_fibers(features, element)


def _nearest_elements(gspace: GSpace, isometry: Isometry) -> str:
    """Return as text the two elements of a finite group nearest to an isometry; empty for other groups."""
    if gspace.fibergroup.continuous or not gspace.dimensionality:
        return ""
    moves = [turn_or_flip(gspace, element) for element in gspace.fibergroup.elements]
    alike = [move for move in moves if move.subgroup == isometry.subgroup]
    nearest = sorted(alike, key=lambda move: np.linalg.norm(move.matrix - isometry.matrix).round(6))[:2]
    return f": the nearest are {' and '.join(move.name for move in nearest)}" if nearest else ""


def _name(subgroup: str, matrix: Array) -> str:
    """Return the name of an isometry: "reflection along x" is x → −x; other directions are given by an angle."""
    angle, axis = _turn(matrix)
    degrees = math.degrees(angle)
    if len(matrix) == 2 and subgroup == "reflection":
        # y → −y and a turn by α reverse the direction at α/2 from y.
        direction = round(degrees / 2 + 90, 6) % 180
        return "reflection along " + {0.0: "x", 90.0: "y"}.get(direction, f"{direction:.4g}°")
    about = f" about {axis_in_words(axis)}" if len(matrix) == 3 and angle else ""
    if subgroup == "rotation":
        return f"rotation {degrees:.4g}°{about}"
    if angle == 0:
        return "inversion"
    is_mirror = abs(angle - math.pi) < TOLERANCE
    return f"reflection along {axis_in_words(axis)}" if is_mirror else f"rotation {degrees:.4g}°{about}, inverted"


def _turn(matrix: Array) -> tuple[float, Array]:
    """Return the angle in [0, 2π) and axis (3,) of the rotation in an orthogonal matrix; in the plane the axis is z."""
    dimension = len(matrix)
    inside = np.eye(3)
    inside[:dimension, :dimension] = matrix @ _FLIPS[dimension] if np.linalg.det(matrix) < 0 else matrix
    axis, angle = axis_and_angle(inside)
    return angle, axis


@dataclass(frozen=True)
class PixelGrid:
    """The pixels of a feature map in d dimensions, (height, width) or (depth, height, width)."""

    size: tuple[int, ...]  # pixels along each axis of the map
    spacing: tuple[float, ...]  # distance of neighbours along these axes in pixels of the image, the strides so far
    centre: tuple[float, ...]  # middle of the map from that of the image, (x, y, …); not 0 where a stride does not fit
    is_guess: bool = False  # whether something has changed the size in an unknown way

    @classmethod
    def of_image(cls, *size: int) -> PixelGrid:
        """Return the grid of an image itself."""
        return cls(size, len(size) * (1.0,), len(size) * (0.0,))

    def positions(self) -> Array:
        """Return the position of each pixel, (height, width, 2) or (depth, height, width, 3)."""
        positions = centred_grid(self.size) * np.array(self.spacing)[::-1] + np.array(self.centre)
        return positions.reshape(*self.size, -1)

    def index(self, positions: Array) -> Array:
        """Return the index of each position along the axes of the map, fractional between pixels, (…, d)."""
        along_axes = (positions - np.array(self.centre)) @ image_axes(len(self.size)).T
        return along_axes / np.array(self.spacing) + (np.array(self.size) - 1) / 2

    def covers(self, image: PixelGrid) -> bool:
        """Return whether the map is a full strided grid of an image, so that on the torus it is a torus, too."""
        sides = np.array(self.size) * np.array(self.spacing) - np.array(image.size)
        return bool(np.abs(sides).max() < TOLERANCE)

    def resized(self, size: tuple[int, ...]) -> PixelGrid:
        """Return a grid of another size over the same area; exact for integer factors, else a guess."""
        sides = zip(self.spacing, self.size, size, strict=True)
        spacing = np.array([step * old / max(new, 1) for step, old, new in sides])
        factors = np.maximum(spacing, 1 / np.maximum(spacing, TOLERANCE))
        is_guess = bool(np.abs(factors - factors.round()).max() > TOLERANCE)
        return replace(self, size=size, spacing=tuple(spacing.tolist()), is_guess=is_guess)

    def part(self, first: NDArray[Any], step: NDArray[Any], size: tuple[int, ...]) -> PixelGrid:
        """Return the sub-grid of a given size, start (may be outside) and step along each axis."""
        middle = first + step * (np.array(size) - 1) / 2 - (np.array(self.size) - 1) / 2
        spacing = np.array(self.spacing)
        centre = np.array(self.centre) + middle * spacing @ image_axes(len(size))
        return replace(self, size=size, spacing=tuple((spacing * step).tolist()), centre=tuple(centre.tolist()))

    def is_carried_to(self, other: PixelGrid, isometry: Isometry) -> bool:
        """Return whether an isometry of the image maps pixels to pixels of another map."""
        index = self.index((other.positions() - isometry.translation) @ isometry.matrix)
        return not (self.is_guess or other.is_guess) and bool(np.abs(index - index.round()).max() < TOLERANCE)

    def of_moved_image(self, isometry: Isometry) -> PixelGrid:
        """Return the grid of an image after an isometry: a quarter turn swaps height and width."""
        if not isometry.keeps_axes or not self.size:
            return self
        axes = image_axes(len(self.size))
        swaps = np.abs(axes @ isometry.matrix.round() @ axes.T)
        return PixelGrid.of_image(*(int(count) for count in swaps @ np.array(self.size)))


def moved(
    features: Tensor, source: PixelGrid, target: PixelGrid, isometry: Isometry, on_torus: bool
) -> tuple[Tensor, Tensor]:
    """Return the transformed features f(A⁻¹(x − τ)), (batch, C, …), and the mask of pixels with a source."""
    index = source.index((target.positions() - isometry.translation) @ isometry.matrix)  # rows p become A⁻¹p
    nearest = index.round()
    is_exact = bool(np.abs(index - nearest).max() < TOLERANCE)
    size = np.array(source.size)
    inside = np.ones(target.size, dtype=bool)
    if on_torus:
        index, nearest = index % size, nearest % size
    else:
        inside = ((index > -TOLERANCE) & (index < size - 1 + TOLERANCE)).all(axis=-1)
    result = _at(features, nearest) if is_exact else _interpolated(features, index, on_torus)
    return result, torch.from_numpy(inside).to(features.device)


def _at(features: Tensor, index: Array) -> Tensor:
    """Return the features (batch, C, …) at integer indices (…, d), clamped to the image."""
    size = features.shape[2:]
    clipped = np.clip(index, 0, np.array(size) - 1).astype(np.int64)
    pixels = np.ravel_multi_index(tuple(np.moveaxis(clipped, -1, 0)), size)
    values = features.flatten(2).index_select(2, torch.from_numpy(pixels.ravel()).to(features.device))
    return values.view(*features.shape[:2], *pixels.shape)


def _interpolated(features: Tensor, index: Array, on_torus: bool) -> Tensor:
    """Return Keys' cubic convolution (a = −½) at fractional indices (…, d)."""
    size = np.array(features.shape[2:])
    # Off the torus the outermost pixels go on for ever, so that constant fields stay constant.
    if not on_torus:
        index = np.clip(index, 0, size - 1)
    low = np.floor(index)
    weights = _keys_weights(index - low)
    result = torch.zeros(*features.shape[:2], *index.shape[:-1], dtype=features.dtype, device=features.device)
    for neighbour in itertools.product(range(4), repeat=len(size)):
        at = low + np.array(neighbour) - 1
        weight = np.prod([weights[step][..., axis] for axis, step in enumerate(neighbour)], axis=0)
        result += _at(features, at % size if on_torus else at) * torch.from_numpy(weight).to(features)
    return result


def _keys_weights(fraction: Array) -> list[Array]:
    """Return the weights of the neighbours at −1, 0, 1, 2 of a point at a fraction of a step behind 0 (Keys 1981)."""
    distance = [1 + fraction, fraction, 1 - fraction, 2 - fraction]
    near = [1.5 * d**3 - 2.5 * d**2 + 1 for d in distance]
    far = [-0.5 * d**3 + 2.5 * d**2 - 4 * d + 2 for d in distance]
    return [far[0], near[1], near[2], far[3]]
