"""Functions of the position of a pixel, as group elements see it. Runs without escnn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


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
    """Return the functions h of the position, (2d, M, pixels): tanh(2π ω′ a) of each coordinate a, and their squares.

    Each has mean 0 over the pixels, for every element; given ``action`` (M, d, d) and ω′ of each axis, (d,).
    """
    positions = positions_in_frames(action, size)
    frequency = frequency.view(-1, *[1] * (positions.dim() - 1))
    values = (2 * math.pi * frequency * positions).tanh().flatten(2)
    functions = torch.cat([values, values.square()])
    return functions - functions.mean(-1, keepdim=True)


def as_factors(f: Tensor, size: Sequence[int]) -> Tensor:
    """Return the factors of R filter banks at the pixels, (R, C, pixels along each axis), given f (R, C, P).

    The first bank is the kernel without f, so its factor is 1 + f.
    """
    factors = f + 1 if len(f) == 1 else torch.cat([f[:1] + 1, f[1:]])
    return factors.unflatten(-1, tuple(size))
