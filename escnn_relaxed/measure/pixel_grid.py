"""The grid of a feature map's pixels on the image, or of its voxels on the volume, and features that isometries move.

Positions are in pixels of the image from its centre, in escnn's order x, y and of volumes z; float64.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..group.points import image_axes
from .isometry import TOLERANCE, Isometry

__all__ = ["PixelGrid", "moved"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PixelGrid:
    """The pixels of a feature map in d dimensions, (height, width) or (depth, height, width)."""

    size: tuple[int, ...]  # pixels along each axis of the map
    spacing: tuple[float, ...]  # distance of neighbours along these axes in pixels of the image, the strides so far
    centre: tuple[float, ...]  # middle of the map from that of the image, (x, y, …); not 0 where a stride does not fit

    @classmethod
    def of_image(cls, *size: int) -> PixelGrid:
        """Return the grid of an image itself."""
        return cls(size, len(size) * (1.0,), len(size) * (0.0,))

    def positions(self) -> Array:
        """Return the position of each pixel, (height, width, 2) or (depth, height, width, 3)."""
        sides = zip(self.size, self.spacing, strict=True)
        steps = [(np.arange(count) - (count - 1) / 2) * step for count, step in sides]
        along_axes = np.stack(np.meshgrid(*steps, indexing="ij"), axis=-1)
        positions: Array = along_axes @ image_axes(len(self.size)) + np.array(self.centre)
        return positions

    def index(self, positions: Array) -> Array:
        """Return the index of each position along the axes of the map, fractional between pixels, (…, d)."""
        along_axes = (positions - np.array(self.centre)) @ image_axes(len(self.size)).T
        index: Array = along_axes / np.array(self.spacing) + (np.array(self.size) - 1) / 2
        return index

    def covers(self, image: PixelGrid) -> bool:
        """Return whether the map has as many pixels as strides leave of an image: on the torus it is one, too."""
        sides = np.array(self.size) * np.array(self.spacing) - np.array(image.size)
        return bool(np.abs(sides).max() < TOLERANCE)

    def resized(self, size: tuple[int, ...]) -> PixelGrid:
        """Return a grid of another number of pixels over the same part of the image."""
        sides = zip(self.spacing, self.size, size, strict=True)
        return replace(self, size=size, spacing=tuple(step * old / max(new, 1) for step, old, new in sides))

    def is_carried_to(self, other: PixelGrid, isometry: Isometry) -> bool:
        """Return whether an isometry of the image brings pixels to pixels of another map."""
        index = self.index((other.positions() - isometry.translation) @ isometry.matrix)
        return bool(np.abs(index - index.round()).max() < TOLERANCE)

    def of_moved_image(self, isometry: Isometry) -> PixelGrid:
        """Return the grid of an image after an isometry: a quarter turn swaps height and width."""
        if not isometry.keeps_axes:
            return self
        axes = image_axes(len(self.size))
        swaps = np.abs(axes @ isometry.matrix.round() @ axes.T)
        return PixelGrid.of_image(*(int(count) for count in swaps @ np.array(self.size)))


def moved(
    features: Tensor, source: PixelGrid, target: PixelGrid, isometry: Isometry, on_torus: bool
) -> tuple[Tensor, Tensor]:
    """Return features (batch, C, …) carried from grid to grid, f(A⁻¹(x − τ)), and which pixels have a source, bool."""
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
    """Return the features (batch, C, …) at whole indices (…, d); at the nearest inside of those outside the image."""
    size = features.shape[2:]
    clipped = np.clip(index, 0, np.array(size) - 1).astype(np.int64)
    places = np.ravel_multi_index(tuple(np.moveaxis(clipped, -1, 0)), size)
    found = features.flatten(2).index_select(2, torch.from_numpy(places.ravel()).to(features.device))
    return found.view(*features.shape[:2], *places.shape)


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
