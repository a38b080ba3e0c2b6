"""Points off any grid: the edges of a cloud, their directions, and the points that stand for all of space.

Runs without escnn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from .points import Array

# Directions of the plane, for which sums of products of harmonics up to the 31st are exact.
_DIRECTIONS = 32
# The squares of the coordinates of a point of the sphere whose 48 images under the symmetries of the cube make a design
# of strength 7: their means of polynomials up to that degree are those over the sphere.
_DESIGN = np.roots([1, -1, 1 / 5, -1 / 105])
# An edge below this length has no direction, as in escnn's bases.
_NO_LENGTH = 1e-9


def unit_directions(dimension: int) -> Array:
    """Return directions that stand for all of the circle or the sphere, (n, d)."""
    if dimension == 2:
        angles = 2 * np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS
        return np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    point = np.sqrt(_DESIGN.real)
    orders = [point[list(order)] for order in itertools.permutations(range(3))]
    return np.array([order * signs for order in orders for signs in itertools.product((1.0, -1.0), repeat=3)])


def shells(radii: Sequence[float], dimension: int) -> Array:
    """Return the points in all directions at some radii, (T, d); the origin as often as a direction, to count alike."""
    return np.concatenate([unit_directions(dimension) * radius for radius in dict.fromkeys(radii)])


def edge_directions(offsets: Tensor) -> Tensor:
    """Return d/|d| of offsets (E, d), 0 where there is no length, and no gradient there."""
    squares = offsets.square().sum(-1, keepdim=True)
    has_length = squares > _NO_LENGTH**2
    return torch.where(has_length, offsets, 0) * torch.where(has_length, squares, 1).rsqrt()


def edge_lengths(offsets: Tensor) -> Tensor:
    """Return |d| of offsets (E, d), (E, 1), with no gradient where there is no length."""
    squares = offsets.square().sum(-1, keepdim=True)
    has_length = squares > _NO_LENGTH**2
    return torch.where(has_length, torch.where(has_length, squares, 1).sqrt(), 0)


@cache
def _powers(dimension: int, degree: int) -> tuple[tuple[int, ...], ...]:
    return tuple(itertools.combinations_with_replacement(range(dimension), degree))


def monomials(directions: Tensor, degrees: Sequence[int]) -> Tensor:
    """Return 1 and all monomials of the given degrees of directions (E, d), as (E, 1 + n)."""
    columns = [torch.ones_like(directions[:, :1])]
    for degree in degrees:
        if degree == 1:
            columns.append(directions)
            continue
        factors = torch.tensor(_powers(directions.shape[1], degree), device=directions.device).unbind(1)
        product = directions.index_select(1, factors[0])
        for factor in factors[1:]:
            product = product * directions.index_select(1, factor)
        columns.append(product)
    return torch.cat(columns, 1)


def turned_to_axis(positions: Tensor, axes: int) -> Tensor:
    """Return a fixed place of the orbit of each position (n, d) under the rotations that mix the first axes."""
    if not axes:
        return positions
    squares = positions[:, :axes].square().sum(1, keepdim=True)
    # No gradient at the axis, where the distance from it has none.
    distance = torch.where(squares > 0, squares, 1).sqrt() * (squares > 0)
    return torch.cat([distance, torch.zeros_like(positions[:, 1:axes]), positions[:, axes:]], 1)


def node_functions(scale: Tensor, positions: Tensor, action: Tensor) -> Tensor:
    """Return tanh(2π ω′ a) and its square of each coordinate a of g⁻¹x, (2d, M, P)."""
    in_frames = torch.einsum("mij,pi->jmp", action, positions)
    values = (2 * torch.pi * scale.view(-1, 1, 1) * in_frames).tanh()
    return torch.cat([values, values.square()])
