"""Points of the base space: taps of a kernel, pixels of an image. Float64 NumPy.

The coordinates of a point are in escnn's order: the last axis of an image is x, and the axes before it point against
its rows (y up).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def tap_grid(kernel_size: int, dilation: int = 1, dimension: int = 2) -> Array:
    """Offsets of the taps in pixels, (kᵈ, d), in the order of a flattened weight of a convolution."""
    centred = (np.arange(kernel_size) - (kernel_size - 1) / 2) * dilation
    return _grid_points([centred] * dimension)


def support_window(grid: Array, radius: float, edge: float) -> Array:
    """Return the weight of taps (T, d): 1 inside, falling as cos² over an outer edge, 0 outside, (T,)."""
    distance = np.linalg.norm(grid, axis=-1)
    inside = distance <= radius + 1e-9
    if edge == 0:
        return inside.astype(np.float64)
    fall = np.clip((distance - (radius - edge)) / edge, 0, 1)
    return np.where(inside, np.cos(np.pi / 2 * fall) ** 2, 0.0)


def pixel_positions(*size: int) -> Array:
    """Return the position of each pixel, or centre of a region, from the image centre, in [−1, 1], (pixels, d)."""
    return _grid_points([(2 * np.arange(count) - (count - 1)) / count for count in size])


def image_axes(dimension: int) -> Array:
    """Return the directions of an image's axes as rows, (d, d): (0, −1) of the rows and (1, 0) of the columns."""
    # Steps along the axes @ the result are vectors in escnn's order; vectors @ its transpose are steps.
    against_rows = np.append(-np.ones(dimension - 1), 1.0)
    directions: Array = np.diag(against_rows)[:, ::-1].copy()
    return directions


def _grid_points(axes: list[Array]) -> Array:
    """The points of a grid in the order of a flattened image. Each axis but the last points against its rows."""
    if not axes:
        return np.zeros((1, 0))
    against_rows = [-axis for axis in axes[:-1]]
    grid = np.meshgrid(*against_rows, axes[-1], indexing="ij")
    return np.stack([axis.ravel() for axis in reversed(grid)], axis=-1)
