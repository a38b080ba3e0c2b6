"""The weights of the plain features from the trained output weights, for many pairs of blocks at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..group.channels import take_rows
from ..group.exact_constants import ExactConstants
from ..group.remembered import Remembered

__all__ = ["PairShape", "TrainedWeights"]


class PairShape(NamedTuple):
    """Numbers of pairs of fields, o·i, of directions D and of plain features F of a pair of blocks."""

    fields: int
    directions: int
    features: int


class TrainedWeights(ExactConstants):
    """Products of the weights of pairs of blocks and of their units, by one product of all pairs.

    Pairs differ in their numbers of fields, directions and features. All are padded to the largest.

    Args:
        remembered: the layer's store, which keeps the padded units.

    Example:
        >>> weights, units = (
        ...     [torch.rand(2, 1, 3), torch.rand(4, 2, 2)],
        ...     [torch.rand(3, 5), torch.rand(2, 6)],
        ... )
        >>> trained = TrainedWeights()
        >>> trained.set_shapes([PairShape(2, 3, 5), PairShape(8, 2, 6)])
        >>> found = trained(weights, units, [1, 1])
        >>> [
        ...     torch.allclose(a.squeeze(0), b.flatten(0, 1) @ c)
        ...     for a, b, c in zip(found, weights, units)
        ... ]
        [True, True]
    """

    unit_order: Tensor
    weight_order: Tensor
    weight_inverse: Tensor
    product_order: Tensor
    product_inverse: Tensor

    def __init__(self, remembered: Remembered | None = None) -> None:
        super().__init__()
        self._remembered = Remembered() if remembered is None else remembered
        self._shapes: tuple[PairShape, ...] = ()
        self._largest = PairShape(0, 0, 0)

    def set_shapes(self, shapes: Sequence[PairShape]) -> None:
        """Fix where the numbers of each pair stand in the padded ones."""
        self._shapes = tuple(shapes)
        self._largest = PairShape(*(max(sizes) for sizes in zip(*shapes, strict=True)))
        fields, directions, features = self._largest
        of_units = _places([shape[1:] for shape in shapes], directions, features)
        of_weights = _places([shape[:2] for shape in shapes], fields, directions)
        of_products = _places([(shape.fields, shape.features) for shape in shapes], fields, features)
        # Beside the units is a 0; what stands between the weights makes no difference, since it meets that 0.
        end = sum(shape.directions * shape.features for shape in shapes)
        self.set_constant("unit_order", _numbers(of_units, len(shapes) * directions * features, between=end))
        self.set_constant("weight_order", _numbers(of_weights, len(shapes) * fields * directions))
        self.set_constant("weight_inverse", of_weights)
        self.set_constant("product_order", of_products)
        self.set_constant("product_inverse", _numbers(of_products, len(shapes) * fields * features))

    def forward(self, weights: Sequence[Tensor], units: Sequence[Tensor], groups: Sequence[int]) -> list[Tensor]:
        """Weights of the plain features, (pairs, o·i, F) of each group.

        Args:
            weights: trained weights, (o, i, D) of each pair.
            units: the units of their directions, (D, F) of each pair.
            groups: the number of pairs in each group. They follow each other and have the same o·i and F.
        """
        if len(weights) == 1:
            return [(weights[0].flatten(0, 1) @ units[0]).unsqueeze(0)]
        padded_units = self._remembered.get("units", lambda: self._padded(units), units)
        rows = torch.cat([weight.flatten() for weight in weights]).unsqueeze(-1)
        padded = take_rows(rows, self.weight_order, self.weight_inverse)
        padded = padded.view(len(weights), self._largest.fields, self._largest.directions)
        products = (padded @ padded_units).view(-1, 1)
        plain = take_rows(products, self.product_order, self.product_inverse).squeeze(-1)
        firsts = [sum(groups[:number]) for number in range(len(groups))]
        starts = [self._shapes[first] for first in firsts]
        shapes = [(pairs, of.fields, of.features) for pairs, of in zip(groups, starts, strict=True)]
        parts = plain.split([math.prod(shape) for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _padded(self, units: Sequence[Tensor]) -> Tensor:
        """Units of all pairs, (pairs, D, F)."""
        numbers = torch.cat([*(unit.flatten() for unit in units), units[0].new_zeros(1)])
        return numbers.index_select(0, self.unit_order).view(len(units), *self._largest[1:])


def _places(shapes: Sequence[tuple[int, ...]], rows: int, columns: int) -> NDArray[np.int64]:
    """Where the entries of matrices, one after the other, stand in the same matrices padded to rows × columns."""
    padded = np.arange(len(shapes) * rows * columns).reshape(len(shapes), rows, columns)
    return np.concatenate([of[:height, :width].ravel() for of, (height, width) in zip(padded, shapes, strict=True)])


def _numbers(places: NDArray[np.int64], size: int, between: int = 0) -> NDArray[np.int64]:
    """The number of the entry at each of so many places, and another number where there is none."""
    numbers = np.full(size, between)
    numbers[places] = np.arange(len(places))
    return numbers
