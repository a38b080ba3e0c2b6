"""Means over domain points; where a kernel is centred, less the means over the whole domain."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..group.domain_points import DomainPoints
from ..group.elements import SUBGROUPS
from ..torch_modes import has_no_values

__all__ = ["DomainMeans", "PointSet", "domain_of_means"]

# Elements of the largest matrix with which means are taken.
_LARGEST_MATRIX = 2**20

# M elements, P means for each, L points for each mean. M or P is 1 where the means are the same for all.
PointSet = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class DomainMeans:
    """Means of values at L domain points for each of M elements and P positions, less the means over other sets.

    Args:
        sets: (M, P, L) of the first set of points and of those whose means are subtracted.
        matrix: the means as a matrix, (M·P, points); None where it would be too large.

    Example:
        >>> two_points_less_the_third = DomainMeans.over(
        ...     [(1, 1, 2), (1, 1, 1)], like=torch.zeros(1)
        ... )
        >>> values = torch.tensor([1.0, 2.0, 5.0]).view(1, 3, 1)
        >>> two_points_less_the_third(values).flatten()
        tensor([-3.5000])
    """

    sets: tuple[PointSet, ...]
    matrix: Tensor | None

    @staticmethod
    def over(sets: Sequence[PointSet], like: Tensor) -> DomainMeans:
        """Return the means over the first of several sets of points that follow each other, less those over the others.

        Args:
            sets: (M, P, L) of each.
            like: a tensor with the device and dtype of the matrix.
        """
        elements, positions = (max(counts) for counts in list(zip(*sets, strict=True))[:2])
        points = sum(math.prod(shape) for shape in sets)
        # The compiler has no use for a matrix of constants, which it would make in each step.
        is_small = points * elements * positions <= _LARGEST_MATRIX and not has_no_values()
        return DomainMeans(tuple(sets), _matrix(sets, elements, positions, like) if is_small else None)

    @property
    def is_of_single_points(self) -> bool:
        """Whether there is one point for each element, and nothing to subtract."""
        return len(self.sets) == math.prod(self.sets[0][1:]) == 1

    def split(self, values: Tensor, dimension: int) -> tuple[Tensor, ...]:
        """Return the values of each set, (…, M, P, L, …), which follow each other along a dimension."""
        parts = values.split([math.prod(shape) for shape in self.sets], dimension)
        return tuple(part.unflatten(dimension, shape) for part, shape in zip(parts, self.sets, strict=True))

    def __call__(self, values: Tensor) -> Tensor:
        """Return the means of values (J, points, C): (J, M, P, C)."""
        if self.matrix is not None:
            # One product forwards and one backwards, in place of a handful of operations.
            shape = [max(counts) for counts in list(zip(*self.sets, strict=True))[:2]]
            return (self.matrix.expand(len(values), -1, -1) @ values).unflatten(1, shape)
        return functools.reduce(torch.sub, [part.mean(3) for part in self.split(values, 1)])


def domain_of_means(
    grid: DomainPoints, averaged: Sequence[str], positions: Tensor | None, is_centred: bool
) -> tuple[Tensor, tuple[PointSet, ...], Tensor | None]:
    """Return all domain points that means over some subgroups are taken of, (points, D), and the parts of these means.

    Args:
        grid: the domain.
        averaged: the subgroups.
        positions: x over half of the image along each axis, (P, d).
        is_centred: subtract the mean over the whole domain.
    """
    own = grid.domain_points(averaged, positions)
    sets = [own, grid.domain_points(SUBGROUPS)] if is_centred else [own]
    coordinates = torch.cat([of.flatten(0, 2) for of in sets])
    shapes: list[Any] = [tuple(of.shape[:3]) for of in sets]
    means = DomainMeans.over(shapes, coordinates)
    return coordinates, means.sets, means.matrix


def _matrix(sets: Sequence[PointSet], elements: int, positions: int, like: Tensor) -> Tensor:
    """Return the means over the first set, less those over the others, as a matrix (M·P, points)."""

    def choice(count: int, own: int) -> Tensor:
        # A set of one element or position serves all of them.
        return torch.eye(own).to(like) if own == count else torch.ones(count, own).to(like)

    columns = [
        torch.kron(choice(elements, m), choice(positions, p)).repeat_interleave(points, 1) / points
        for m, p, points in sets
    ]
    return torch.cat([columns[0], *(-of for of in columns[1:])], 1)
