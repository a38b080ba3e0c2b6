"""The weights of the plain features from the trained output weights, for many pairs of blocks at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..group.channels import take_rows
from ..group.remembered import Remembered

__all__ = ["TrainedWeights"]


class TrainedWeights:
    """Products of the weights of pairs of blocks and their units, as one product for all pairs.

    Pairs differ in their numbers of fields, directions and features. All are padded to the largest.

    Args:
        remembered: the layer's store, which keeps the padded units.

    Example:
        >>> weights, units = (
        ...     [torch.rand(2, 1, 3), torch.rand(4, 2, 2)],
        ...     [torch.rand(3, 5), torch.rand(2, 6)],
        ... )
        >>> found = TrainedWeights()(weights, units, [1, 1])
        >>> [
        ...     torch.allclose(a.squeeze(0), b.flatten(0, 1) @ c)
        ...     for a, b, c in zip(found, weights, units)
        ... ]
        [True, True]
    """

    def __init__(self, remembered: Remembered | None = None) -> None:
        self._remembered = Remembered() if remembered is None else remembered

    def __call__(self, weights: Sequence[Tensor], units: Sequence[Tensor], groups: Sequence[int]) -> list[Tensor]:
        """Return the weights of the plain features, (pairs, o·i, F) of each group.

        Args:
            weights: trained weights, (o, i, D) of each pair.
            units: the units of their directions, (D, F) of each pair.
            groups: the number of pairs in each group. They follow each other and have the same o·i and F.
        """
        counts = tuple(weight.shape[:2].numel() for weight in weights)
        if len(weights) == 1:
            return [(weights[0].flatten(0, 1) @ units[0]).unsqueeze(0)]
        padded_units, *orders = self._remembered.get(("units", counts), lambda: _padded(counts, units), units)
        rows = torch.cat([weight.flatten() for weight in weights]).unsqueeze(-1)
        shape = len(weights), max(counts), padded_units.shape[1]
        padded = take_rows(rows, *orders[:2]).view(shape)
        plain = take_rows((padded @ padded_units).view(-1, 1), *orders[2:])
        firsts = [sum(groups[:number]) for number in range(len(groups))]
        shapes = [(pairs, counts[first], units[first].shape[1]) for pairs, first in zip(groups, firsts, strict=True)]
        parts = plain.squeeze(-1).split([math.prod(shape) for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _padded(counts: Sequence[int], units: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the padded units of all pairs, (pairs, D, F), then the orders that pad weights and that unpad products."""
    rows = max(counts)
    directions, features = (max(unit.shape[axis] for unit in units) for axis in (0, 1))
    padded = torch.stack([_pad(unit, directions, features) for unit in units])
    of_weights = _places([(count, unit.shape[0]) for count, unit in zip(counts, units, strict=True)], rows, directions)
    of_products = _places([(count, unit.shape[1]) for count, unit in zip(counts, units, strict=True)], rows, features)
    # The two orders of products are exchanged, since products are taken out of their places.
    return padded, *(order.to(padded.device) for order in (*of_weights, *of_products[::-1]))


def _places(shapes: Sequence[tuple[int, int]], rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return the number of the entry at each place of padded matrices, 0 in the padding, and each entry's place."""
    numbers, places = [], []
    start = 0
    for matrix, (height, width) in enumerate(shapes):
        numbers.append(_pad(torch.arange(start, start + height * width).view(height, width), rows, columns))
        place = (matrix * rows + torch.arange(height)).unsqueeze(1) * columns + torch.arange(width)
        places.append(place.flatten())
        start += height * width
    return torch.stack(numbers).flatten(), torch.cat(places)


def _pad(matrix: Tensor, rows: int, columns: int) -> Tensor:
    return pad(matrix, (0, columns - matrix.shape[1], 0, rows - matrix.shape[0]))
