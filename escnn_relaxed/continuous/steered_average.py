"""The filter bank K of a pair of field types, from features and the output weights of every pair of fields."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..group.elements import GroupSample
from ..group.exact_constants import ExactConstants
from ..group.fields import FieldStructure
from ..group.row_order import RowOrder
from .steering import PairSteering
from .units import count_directions, weight_units

__all__ = ["BlockPair", "SteeredAverage"]


class BlockPair(nn.Module):
    """The output weights of all pairs of fields of one pair of blocks, in the units in which they are trained."""

    weights: nn.Parameter  # (o, i, D), of o output and i input fields
    units: Tensor  # the map from the F plain features to D normalised ones, (D, F)

    def __init__(self, steering: PairSteering, counts: tuple[int, int]) -> None:
        super().__init__()
        self.steering = steering
        self.counts = counts
        self.register_parameter("weights", None)
        self.register_buffer("units", None)

    def forward(self, features: Tensor) -> Tensor:
        """Return the kernels of all pairs of fields, (P, o, i, |A|, |B|, T), of features (J + 1, M, P, R, T)."""
        steered = self.steering(features)
        # The units multiply the weights, not the features: a product without the points.
        weights = (self.weights @ self.units).flatten(0, 1)
        # (1, o·i, F) · (P, F, |A|·|B|·T)
        products = weights.unsqueeze(0) @ steered.permute(3, 0, 1, 2, 4).flatten(2)
        return products.view(-1, *self.counts, *self.steering.sizes, features.shape[4])

    def count_directions(self, features: Tensor) -> int | None:
        """Return the number of directions that the average over the group leaves; None without one."""
        return count_directions(self.steering(features).flatten(3)) if self.steering.is_average else None

    def units_of(self, features: Tensor, rank: int | None) -> Tensor:
        """Return the units for the given features, of the ``rank`` largest directions."""
        unsteered = float(features.square().sum((2, 4)).mean().sqrt())
        return weight_units(self.steering(features).flatten(3), self.steering.entries, rank, unsteered)


class SteeredAverage(ExactConstants):
    """The map from features to the filter bank between two lists of fields, linear in the features."""

    in_basis_inverse: Tensor
    out_basis: Tensor

    def __init__(self, in_structure: FieldStructure, out_structure: FieldStructure, sample: GroupSample) -> None:
        super().__init__()
        blocks = [zip(of.blocks, of.counts, strict=True) for of in (out_structure, in_structure)]
        self.pairs = nn.ModuleList(
            BlockPair(PairSteering(in_block, out_block, sample), (out_count, in_count))
            for (out_block, out_count), (in_block, in_count) in itertools.product(*blocks)
        )
        self.size = out_structure.size, in_structure.size
        self._in_blocks = len(in_structure.blocks)
        self.order = RowOrder(_row_numbers(in_structure, out_structure))
        # The channels of a single kind of fields follow each other.
        self._is_in_order = all(
            len(of.blocks) == 1 and np.array_equal(of.channels, np.arange(of.size))
            for of in (in_structure, out_structure)
        )
        self._has_basis = {"out": out_structure.basis is not None, "in": in_structure.basis_inverse is not None}
        if out_structure.basis is not None:
            self.set_constant("out_basis", out_structure.basis)
        if in_structure.basis_inverse is not None:
            self.set_constant("in_basis_inverse", in_structure.basis_inverse)

    @property
    def block_pairs(self) -> list[BlockPair]:
        """All pairs of blocks, in the order of their output blocks."""
        return [pair for pair in self.pairs if isinstance(pair, BlockPair)]

    def forward(self, features: Tensor) -> Tensor:
        """Return filter banks (P, C_out, C_in, T) of features (J + 1, M, P, R, T)."""
        products = [pair(features) for pair in self.block_pairs]
        if self._is_in_order:
            # (P, o, i, A, B, T) → (P, o·A, i·B, T)
            banks = products[0].transpose(2, 3).flatten(3, 4).flatten(1, 2)
        else:
            banks = self.order(torch.cat([of.flatten(1, 4) for of in products], dim=1)).unflatten(1, self.size)
        if self._has_basis["out"]:
            banks = torch.einsum("oc,pcin->poin", self.out_basis, banks)
        if self._has_basis["in"]:
            banks = torch.einsum("pocn,ci->poin", banks, self.in_basis_inverse)
        return banks

    def count_directions(self, features: Tensor) -> list[int | None]:
        """Return the number of directions of each pair that an average over the group leaves; None without one."""
        return [pair.count_directions(features) for pair in self.block_pairs]

    def initialize(self, features: Tensor, ranks: list[int | None]) -> None:
        """Fix the units of the weights on features, of ``ranks`` directions (None: all), and draw the weights."""
        for pair, rank in zip(self.block_pairs, ranks, strict=True):
            pair.units = pair.units_of(features, rank)
        variances = self.weight_variances([pair.units for pair in self.block_pairs])
        for pair, variance in zip(self.block_pairs, variances, strict=True):
            weights = torch.randn(*pair.counts, len(pair.units)).to(features)
            pair.weights = nn.Parameter(weights * math.sqrt(variance))

    def weight_variances(self, units: list[Tensor]) -> list[float]:
        """Return the variance of each pair's weights at the start: He's rule for features of unit output energy."""
        fan_ins = [pair.counts[1] * len(unit) for pair, unit in zip(self.block_pairs, units, strict=True)]
        rows = [number // self._in_blocks for number in range(len(units))]
        totals = [sum(of for of, other in zip(fan_ins, rows, strict=True) if other == row) for row in rows]
        return [2 / max(total, 1) for total in totals]


def _row_numbers(in_structure: FieldStructure, out_structure: FieldStructure) -> NDArray[np.int64]:
    """Return the row of each pair of channels, output first, among the rows (o, i, a, b) of the pairs of blocks."""
    rows, columns = out_structure.block_ranges(), in_structure.block_ranges()
    numbers = np.zeros((out_structure.size, in_structure.size), dtype=np.int64)
    start = 0
    for row, column in itertools.product(range(len(rows)), range(len(columns))):
        counts = out_structure.counts[row], in_structure.counts[column]
        sizes = out_structure.blocks[row].size, in_structure.blocks[column].size
        of_pair = start + np.arange(math.prod(counts + sizes)).reshape(*counts, *sizes).transpose(0, 2, 1, 3)
        place = rows[row], columns[column]
        numbers[place] = of_pair.reshape(numbers[place].shape)
        start += of_pair.size
    return numbers[np.ix_(out_structure.channels, in_structure.channels)].ravel()
