"""Points of the base space, taps of a kernel and pixels of an image, and functions of them. Runs without escnn.

The coordinates of a point are in escnn's order: the last axis of an image is x, and the axes before it point against
its rows (y up).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]


def centred_grid(size: Sequence[int]) -> Array:
    """Return the points of an image from its centre in pixels, (pixels, d), in the order of a flattened image."""
    along = [np.arange(count) - (count - 1) / 2 for count in size]
    against_rows = [-axis for axis in along[:-1]]
    grid = np.meshgrid(*against_rows, *along[-1:], indexing="ij")
    return np.stack([axis.ravel() for axis in reversed(grid)], axis=-1) if grid else np.zeros((1, 0))


def tap_grid(kernel_size: int, dilation: int = 1, dimension: int = 2) -> Array:
    """Return the offsets of taps in pixels, (kᵈ, d), in the order of a flattened weight of a convolution."""
    return centred_grid((kernel_size,) * dimension) * dilation


def support_window(grid: Array, radius: float, edge: float) -> Array:
    """Return the weight of taps (T, d): 1 inside, falling as cos² over an outer edge, 0 outside, (T,)."""
    distance = np.linalg.norm(grid, axis=-1)
    inside = distance <= radius + 1e-9
    if edge == 0:
        return inside.astype(np.float64)
    fall = np.clip((distance - (radius - edge)) / edge, 0, 1)
    return np.where(inside, np.cos(np.pi / 2 * fall) ** 2, 0.0)


def image_axes(dimension: int) -> Array:
    """Return the directions of an image's axes as rows, (d, d): (0, −1) of the rows and (1, 0) of the columns."""
    # Steps along the axes @ the result are vectors in escnn's order; vectors @ its transpose are steps.
    against_rows = np.append(-np.ones(dimension - 1), 1.0)
    return np.diag(against_rows)[:, ::-1].copy()


def pixel_coordinates(size: Sequence[int], like: Tensor) -> list[Tensor]:
    """Return the coordinates (x, y, …) of the pixels of an image, in [−1, 1], each to be broadcast over its axes."""
    coordinates = []
    for axis, count in enumerate(size):
        steps = (2 * torch.arange(count, device=like.device, dtype=like.dtype) - (count - 1)) / count
        # The last axis is x. The others point against their coordinate.
        along = steps if axis == len(size) - 1 else -steps
        coordinates.append(along.view(-1, *[1] * (len(size) - 1 - axis)))
    return coordinates[::-1]


def positions_in_frames(action: Tensor, size: Sequence[int]) -> Tensor:
    """Return g⁻¹x for each pixel x and element g, (d, M, pixels along each axis), given the matrices of g (M, d, d)."""
    ones = [1] * len(size)
    products = [
        action[:, axis].transpose(0, 1).reshape(-1, len(action), *ones) * coordinate
        for axis, coordinate in enumerate(pixel_coordinates(size, action))
    ]
    return sum(products[1:], products[0])


def position_functions(action: Tensor, frequency: Tensor, size: Sequence[int]) -> Tensor:
    """Return h of the position, (2d, M, pixels): tanh(2π ω′ a) and its square of each coordinate a, of mean 0."""
    positions = positions_in_frames(action, size)
    frequency = frequency.view(-1, *[1] * (positions.dim() - 1))
    values = (2 * math.pi * frequency * positions).tanh().flatten(2)
    functions = torch.cat([values, values.square()])
    return functions - functions.mean(-1, keepdim=True)


def as_factors(f: Tensor, size: Sequence[int]) -> Tensor:
    """Return the factors of R filter banks at the pixels, (R, C, pixels along each axis), given f (R, C, P)."""
    # The first bank is the kernel without f.
    factors = f + 1 if len(f) == 1 else torch.cat([f[:1] + 1, f[1:]])
    return factors.unflatten(-1, tuple(size))


class PositionFactors(nn.Module):
    """Factors of R filter banks at the pixels of an image, on plain tensors: coefficients times functions h.

    Args:
        action: the matrices of the M group elements, (M, d, d).
        frequency: ω′ of each axis, (d,) or (1,).
        coefficients: those of the J functions at each element, (R, C, J·M).
    """

    action: Tensor
    frequency: Tensor

    def __init__(self, action: Tensor, frequency: Tensor, coefficients: Tensor) -> None:
        super().__init__()
        self.coefficients = nn.Parameter(coefficients.clone())
        self.register_buffer("action", action.clone())
        self.register_buffer("frequency", frequency.clone())

    def with_ones(self) -> PositionFactors:
        """Return the constant factor 1, (1, C, …), and then the factors of this module, the first of them less 1."""
        coefficients = self.coefficients.detach()
        return PositionFactors(self.action, self.frequency, torch.cat([0 * coefficients[:1], coefficients]))

    def forward(self, size: Sequence[int]) -> Tensor:
        """Return the factors, (R, C, pixels along each axis)."""
        functions = position_functions(self.action, self.frequency, size).flatten(0, 1)
        return as_factors(self.coefficients @ functions, size)
