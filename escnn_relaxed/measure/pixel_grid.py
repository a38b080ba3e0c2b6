"""The grid of a feature map's pixels on the image, and isometries of the image, which move them.

Positions are in pixels of the image from its centre, y up as in escnn; float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from escnn.group import GroupElement
    from escnn.gspaces import GSpace2D

from ..group.elements import rotation_matrix

__all__ = ["Isometry", "PixelGrid", "moved", "rotation", "shift", "turn_or_flip"]

Array = NDArray[np.float64]

# Positions come from cosines and strides: what is this close to a pixel is on it.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Isometry:
    """x → A x + τ, what is done to an image.

    Attributes:
        name: in words, degrees and pixels.
        subgroup: ``"rotation"``, ``"reflection"`` or ``"translation"``.
        matrix: A, (2, 2), orthogonal.
        translation: τ in pixels, x and y.
    """

    name: str
    subgroup: str
    matrix: Array
    translation: tuple[float, float] = (0.0, 0.0)

    @property
    def angle(self) -> float:
        """α in [0, 2π) where A turns by α, or mirrors y → −y and then turns by α."""
        angle = math.atan2(self.matrix[1, 0], self.matrix[0, 0]) % (2 * math.pi)
        return 0.0 if 2 * math.pi - angle < _TOLERANCE else angle

    @property
    def keeps_axes(self) -> bool:
        """Return whether A maps each axis of the grid to an axis."""
        return np.allclose(self.matrix, self.matrix.round(), rtol=0, atol=_TOLERANCE)

    @property
    def swaps_axes(self) -> bool:
        """Return whether A exchanges the axes, and with them height and width."""
        return self.keeps_axes and round(self.matrix[0, 0]) == 0

    def inverse(self) -> Isometry:
        """Return the isometry back."""
        back = -self.matrix.T @ np.array(self.translation)
        return replace(self, matrix=self.matrix.T, translation=(back[0], back[1]))


def rotation(angle: float) -> Isometry:
    """Return the turn by an angle in radians, counter-clockwise."""
    matrix = rotation_matrix(angle)
    return Isometry(f"rotation {math.degrees(angle):.4g}°", "rotation", matrix)


def turn_or_flip(gspace: GSpace2D, element: GroupElement) -> Isometry:
    """Return the isometry of the plane by which an element of a fiber group acts."""
    matrix = np.asarray(gspace.basespace_action(element), dtype=np.float64)
    subgroup = "reflection" if np.linalg.det(matrix) < 0 else "rotation"
    isometry = Isometry("", subgroup, matrix)
    return replace(isometry, name=f"{subgroup} {math.degrees(isometry.angle):.4g}°")


def shift(rows: int, columns: int) -> Isometry:
    """Return the shift by rows down and columns to the right, in pixels."""
    return Isometry(f"shift {rows}, {columns}", "translation", np.eye(2), (float(columns), float(-rows)))


@dataclass(frozen=True)
class PixelGrid:
    """The pixels of a feature map.

    Attributes:
        rows: height of the map.
        columns: its width.
        spacing: distance of neighbours along rows and columns in pixels of the image, the strides so far.
        centre: middle of the map from that of the image, x and y; not 0 where a stride does not fit the size.
    """

    rows: int
    columns: int
    spacing: tuple[float, float] = (1.0, 1.0)
    centre: tuple[float, float] = (0.0, 0.0)

    def positions(self) -> Array:
        """Return the position of each pixel, (rows, columns, 2)."""
        y, x = np.meshgrid(
            ((self.rows - 1) / 2 - np.arange(self.rows)) * self.spacing[0] + self.centre[1],
            (np.arange(self.columns) - (self.columns - 1) / 2) * self.spacing[1] + self.centre[0],
            indexing="ij",
        )
        return np.stack([x, y], axis=-1)

    def index(self, positions: Array) -> Array:
        """Return row and column of each position, fractional between pixels, (…, 2)."""
        row = (self.rows - 1) / 2 - (positions[..., 1] - self.centre[1]) / self.spacing[0]
        column = (positions[..., 0] - self.centre[0]) / self.spacing[1] + (self.columns - 1) / 2
        return np.stack([row, column], axis=-1)

    def covers(self, image: PixelGrid) -> bool:
        """Return whether the map has as many pixels as strides leave of an image: on the torus it is one, too."""
        sides = (self.rows * self.spacing[0] - image.rows, self.columns * self.spacing[1] - image.columns)
        return max(abs(side) for side in sides) < _TOLERANCE

    def resized(self, rows: int, columns: int) -> PixelGrid:
        """Return a grid of another number of pixels over the same part of the image."""
        spacing = self.spacing[0] * self.rows / max(rows, 1), self.spacing[1] * self.columns / max(columns, 1)
        return PixelGrid(rows, columns, spacing, self.centre)

    def is_carried_to(self, other: PixelGrid, isometry: Isometry) -> bool:
        """Return whether an isometry of the image brings pixels to pixels of another map."""
        index = self.index((other.positions() - np.array(isometry.translation)) @ isometry.matrix)
        return bool(np.abs(index - index.round()).max() < _TOLERANCE)

    def of_moved_image(self, isometry: Isometry) -> PixelGrid:
        """Return the grid of an image after an isometry: a quarter turn swaps height and width."""
        return PixelGrid(self.columns, self.rows) if isometry.swaps_axes else self


def moved(
    features: Tensor, source: PixelGrid, target: PixelGrid, isometry: Isometry, on_torus: bool
) -> tuple[Tensor, Tensor]:
    """Carry features on one grid by an isometry to another: f(A⁻¹(x − τ)). Channels are left as they are.

    Args:
        features: (batch, C, rows, columns) on ``source``.
        source: their grid.
        target: the grid of the result.
        isometry: what is done to the image.
        on_torus: what leaves the map on one side comes in on the other.

    Returns:
        The result (batch, C, rows, columns), and which of its pixels have a source, (rows, columns), bool. Between
        pixels values are interpolated by Keys' cubic convolution (a = −½).
    """
    offset = target.positions() - np.array(isometry.translation)
    index = source.index(offset @ isometry.matrix)  # rows p become A⁻¹p
    nearest = index.round()
    is_exact = bool(np.abs(index - nearest).max() < _TOLERANCE)
    size = np.array([source.rows, source.columns])
    inside = np.ones(index.shape[:2], dtype=bool)
    if on_torus:
        index, nearest = index % size, nearest % size
    else:
        inside = ((index > -_TOLERANCE) & (index < size - 1 + _TOLERANCE)).all(axis=-1)
    mask = torch.from_numpy(inside).to(features.device)
    if is_exact:
        row, column = (torch.from_numpy(n).to(features.device) for n in _within(nearest, size))
        return features[..., row, column], mask
    return _interpolated(features, index, on_torus), mask


def _within(index: Array, size: Array) -> NDArray[np.int64]:
    """Whole rows and columns, (2, …); those outside the image become the nearest inside."""
    clipped: NDArray[np.int64] = np.moveaxis(np.clip(index, 0, size - 1).astype(np.int64), -1, 0)
    return clipped


def _interpolated(features: Tensor, index: Array, on_torus: bool) -> Tensor:
    """Keys' cubic convolution at fractional rows and columns (…, 2).

    Off the torus the outermost pixels go on for ever, so that constant fields stay constant.
    """
    size = np.array(features.shape[-2:])
    if not on_torus:
        index = np.clip(index, 0, size - 1)
    low = np.floor(index)
    weights = _keys_weights(index - low)
    result = torch.zeros(*features.shape[:2], *index.shape[:2], dtype=features.dtype, device=features.device)
    for i in range(4):
        for j in range(4):
            at = low + np.array([i - 1, j - 1])
            weight = weights[i][..., 0] * weights[j][..., 1]
            nearest = _within(at % size if on_torus else at, size)
            row, column = (torch.from_numpy(n).to(features.device) for n in nearest)
            result += features[..., row, column] * torch.from_numpy(weight).to(features)
    return result


def _keys_weights(fraction: Array) -> list[Array]:
    """Weights of the four neighbours at −1, 0, 1, 2 of a point at a fraction of a step behind 0 (Keys 1981)."""
    distance = [1 + fraction, fraction, 1 - fraction, 2 - fraction]
    near = [1.5 * d**3 - 2.5 * d**2 + 1 for d in distance]
    far = [-0.5 * d**3 + 2.5 * d**2 - 4 * d + 2 for d in distance]
    return [far[0], near[1], near[2], far[3]]
