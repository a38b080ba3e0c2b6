"""Steered features and output weights → filter bank K of a pair of field types, for every pair of fields."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from einops import rearrange
from numpy.typing import NDArray
from torch import Tensor, nn

from ..group.channels import ChannelAssembly, RowOrder
from ..group.elements import GroupSample
from ..group.fields import Block, FieldStructure
from .steering import PairSteering, of_identity
from .weight_units import count_directions, weight_units

__all__ = ["BlockPair", "SteeredAverage"]


class SteeredAverage(nn.Module):
    """Output weights of κ for every pair of fields, and the filter bank that they give.

    Args:
        in_structure: blocks of (one group of) the input type.
        out_structure: blocks of the output type.
        sample: the group elements to steer by.
        features: number of features, J or J + 1.
        has_constant: whether the last feature is constant.
    """

    def __init__(
        self,
        in_structure: FieldStructure,
        out_structure: FieldStructure,
        sample: GroupSample,
        features: int,
        has_constant: bool,
    ) -> None:
        super().__init__()
        self._features = features
        self._has_constant = has_constant
        self.in_counts = in_structure.counts
        self.out_counts = out_structure.counts
        self.pairs = nn.ModuleList(
            BlockPair(PairSteering(in_block, out_block, sample), is_average=_is_average(in_block, out_block, sample))
            for out_block in out_structure.blocks
            for in_block in in_structure.blocks
        )
        self.assembly = ChannelAssembly(in_structure, out_structure)
        averages = [pair.steering for pair in self.block_pairs if not pair.steering.is_relative]
        self.average_order = RowOrder(_rows_of_averages(averages, features))

    @property
    def block_pairs(self) -> list[BlockPair]:
        """Every pair of blocks, those of one output block after the other."""
        return [pair for pair in self.pairs if isinstance(pair, BlockPair)]

    def pair_counts(self) -> list[int]:
        """Number of pairs of fields that each pair of blocks stands for."""
        return [out_count * in_count for out_count in self.out_counts for in_count in self.in_counts]

    def count_directions(self, hidden: Tensor) -> list[int | None]:
        """How many directions of the kernel of each pair survive the average; None where none is averaged away."""
        return [
            count_directions(pair.steering(hidden).flatten(3)) if pair.is_average else None for pair in self.block_pairs
        ]

    def initialize(self, hidden: Tensor, ranks: list[int | None]) -> None:
        """Fix the units of the weights on the given hidden values and draw the weights.

        Args:
            hidden: φ at the start, with the constant feature last: (J + 1, M, P, R, T).
            ranks: number of directions to keep for each pair, None for all.
        """
        for pair, rank in zip(self.block_pairs, ranks, strict=True):
            pair.units = self.units_of(pair, hidden, rank)
        variances = self.weight_variances([pair.units for pair in self.block_pairs])
        for number, (pair, variance) in enumerate(zip(self.block_pairs, variances, strict=True)):
            row, column = divmod(number, len(self.in_counts))
            weight = torch.randn(self.out_counts[row], self.in_counts[column], len(pair.units)).to(hidden)
            pair.weights = nn.Parameter(weight * math.sqrt(variance))

    def weight_variances(self, units: list[Tensor]) -> list[float]:
        """Variance of the weights of each pair at the start: He's rule, with features of an output of unit energy."""
        variances = []
        for row in range(len(self.out_counts)):
            of_row = units[row * len(self.in_counts) : (row + 1) * len(self.in_counts)]
            fan_in = sum(count * len(unit) for count, unit in zip(self.in_counts, of_row, strict=True))
            variances += [2 / max(fan_in, 1)] * len(of_row)
        return variances

    def units_of(self, pair: BlockPair, hidden: Tensor, rank: int | None) -> Tensor:
        """The units in which the weights of a pair are trained, on the given hidden values."""
        entries = pair.steering.entries
        unsteered = float(hidden.square().sum((2, 4)).mean().sqrt())
        return weight_units(pair.steering(hidden).flatten(3), entries, rank, self._has_constant, unsteered)

    def set_structures(self, in_structure: FieldStructure, out_structure: FieldStructure) -> None:
        """Steer by the elements for which these blocks hold matrices (a turned grid of a continuous group)."""
        blocks = [(b, a) for a in out_structure.blocks for b in in_structure.blocks]
        for pair, (in_block, out_block) in zip(self.block_pairs, blocks, strict=True):
            pair.steering.set_blocks(in_block, out_block)

    def forward(self, hidden: Tensor, strict: Tensor | None = None) -> Tensor:
        """Filter banks (P, C_out, C_in, T) of hidden values at P positions, (J + 1, M, P, R, T), constant feature last.

        Args:
            hidden: the hidden values.
            strict: a kernel that is added to each of them, (C_out, C_in, T); between fields of one kind also as
                of :meth:`SteerableBasis.products`, (o·i, |A|·|B|·T), which is faster.
        """
        steered = self._steered(hidden)
        weights = [weight.flatten(0, 1) for weight in self.plain_weights()]
        if self.assembly.is_plain and (strict is None or strict.dim() == 2):
            (a, b), o, i = self.block_pairs[0].steering.sizes, self.out_counts[0], self.in_counts[0]
            product = _product(weights[0], steered[0], strict)
            return rearrange(product, "p (o i) (a b tap) -> p (o a) (i b) tap", a=a, b=b, o=o, i=i)
        pattern, taps = "p fields (entry tap) -> p (fields entry) tap", hidden.shape[-1]
        rows = [rearrange(_product(*of), pattern, tap=taps) for of in zip(weights, steered, strict=True)]
        banks: Tensor = self.assembly(rows)
        return banks if strict is None else banks + strict

    def _steered(self, hidden: Tensor) -> list[Tensor]:
        """The steered features of each pair of blocks at each position, (P, F, |A|·|B|·T)."""
        averages = iter(self._averages(hidden))
        return [
            rearrange(pair.steering(hidden), "f a b p t -> p f (a b t)")
            if pair.steering.is_relative
            else next(averages)
            for pair in self.block_pairs
        ]

    def _averages(self, hidden: Tensor) -> Sequence[Tensor]:
        """Those of pairs that are averages over the group: all by one product."""
        steerings = [pair.steering for pair in self.block_pairs if not pair.steering.is_relative]
        if not steerings:
            return ()
        positions, taps = hidden.shape[2], hidden.shape[4]
        values = of_identity(hidden).flatten(1)
        coefficients = torch.cat([steering.coefficients.flatten(0, 3) for steering in steerings])
        rows = rearrange(coefficients @ values, "k (p j t) -> p (k j) t", p=positions, t=taps)
        counts = [steering.coefficients[..., 0].numel() * self._features for steering in steerings]
        parts = self.average_order(rows).split(counts, 1)
        return [
            part.reshape(positions, steering.entries * self._features, -1)
            for part, steering in zip(parts, steerings, strict=True)
        ]

    def plain_weights(self) -> list[Tensor]:
        """The weights of the plain features of each pair of blocks, (fields_out, fields_in, P)."""
        # The units multiply the weights, not the features: a product without the points.
        return [pair.weights @ pair.units for pair in self.block_pairs]

    def energy(self, hidden: Tensor) -> Tensor:
        """‖K‖², in the basis of permutations and irreps where ρ is orthogonal, without building K.

        Args:
            hidden: as of :meth:`forward`.
        """
        energy = hidden.new_zeros(())
        for steered, weight in zip(self._steered(hidden), self.plain_weights(), strict=True):
            features, weights = rearrange(steered, "p f n -> f (p n)"), weight.flatten(0, 1)
            energy = energy + (weights @ (features @ features.mT)).mul(weights).sum()
        return energy


class BlockPair(nn.Module):
    """The weights of all pairs of fields of one pair of blocks."""

    weights: nn.Parameter
    steering: PairSteering
    units: Tensor

    def __init__(self, steering: PairSteering, is_average: bool) -> None:
        super().__init__()
        self.steering = steering
        self.is_average = is_average
        self.register_parameter("weights", None)
        self.register_buffer("units", None)


def _product(weights: Tensor, features: Tensor, added: Tensor | None = None) -> Tensor:
    """A matrix (rows, F) times features (P, F, columns) plus a matrix (rows, columns): (P, rows, columns)."""
    if len(features) == 1:
        only = features.squeeze(0)
        return (weights @ only if added is None else torch.addmm(added, weights, only)).unsqueeze(0)
    if added is None:
        return weights @ features
    return torch.baddbmm(added.unsqueeze(0), weights.expand(len(features), -1, -1), features)


def _rows_of_averages(steerings: Sequence[PairSteering], features: int) -> NDArray[np.int64]:
    """Where rows of one product of all pairs, (entry, a, b, j) each, stand as features, (entry, j, a, b)."""
    numbers, start = [np.zeros(0, dtype=np.int64)], 0
    for steering in steerings:
        shape = steering.entries, math.prod(steering.sizes), features
        numbers.append((start + np.arange(math.prod(shape)).reshape(shape)).swapaxes(1, 2).ravel())
        start += math.prod(shape)
    return np.concatenate(numbers)


def _is_average(in_block: Block, out_block: Block, sample: GroupSample) -> bool:
    """Whether the entries of K are means of κ over the group, so that most directions of κ make no difference."""
    return len(sample) > 1 and not (in_block.is_permutation or out_block.is_permutation)
