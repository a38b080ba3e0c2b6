"""Points of the plane: taps of a kernel, pixels of an image. Float64 NumPy, the y axis up as in escnn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["padded_index", "pixel_positions", "support_window", "tap_grid"]

Array = NDArray[np.float64]


def tap_grid(kernel_size: int, dilation: int = 1) -> Array:
    """Offsets d of the k×k taps in pixels, (k², 2), in the order of a flattened ``conv2d`` weight, y up."""
    centred = (np.arange(kernel_size) - (kernel_size - 1) / 2) * dilation
    row, column = np.meshgrid(-centred, centred, indexing="ij")
    return np.stack([column.ravel(), row.ravel()], axis=-1)


def support_window(grid: Array, radius: float, edge: float) -> Array:
    """Weight of each tap: 1 inside, falling as cos² over the outer ``edge`` of the radius, 0 outside, (T,).

    Args:
        grid: taps in pixels, (T, 2).
        radius: radius of the support in pixels.
        edge: width of the smooth edge in pixels; 0 gives the hard disk of the paper.
    """
    distance = np.linalg.norm(grid, axis=-1)
    inside = distance <= radius + 1e-9
    if edge == 0:
        return inside.astype(np.float64)
    fall = np.clip((distance - (radius - edge)) / edge, 0, 1)
    return np.where(inside, np.cos(np.pi / 2 * fall) ** 2, 0.0)


def pixel_positions(height: int, width: int) -> Array:
    """Position of each pixel from the image centre, over half of the image along each axis, (H, W, 2), y up.

    In [−1, 1]: the same for pixels of one image and for the centres of as many regions of another.
    """
    y, x = np.meshgrid(
        ((height - 1) - 2 * np.arange(height)) / height,
        (2 * np.arange(width) - (width - 1)) / width,
        indexing="ij",
    )
    return np.stack([x, y], axis=-1)


def padded_index(size: int, padding: int, padding_mode: str) -> NDArray[np.int64]:
    """Index of the pixel whose value each cell of a padded axis copies, (size + 2·padding,).

    A cell padded with zeros copies none and keeps its own, outside index: its value is 0 whatever K is.
    """
    numpy_mode = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if padding_mode == "zeros":
        return np.arange(-padding, size + padding)
    return np.pad(np.arange(size), padding, mode=numpy_mode[padding_mode])  # type: ignore[call-overload]
