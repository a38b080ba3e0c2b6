"""The filter bank K of a pair of field types, from steered features and the output weights of every pair of fields."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from ..group.channels import ChannelAssembly
from ..group.elements import GroupSample
from ..group.fields import Block, FieldStructure, PairChannels
from ..group.remembered import Remembered
from ..torch_modes import has_no_values
from .combined_steering import CombinedSteering
from .steering import PairSteering
from .trained_weights import PairShape, TrainedWeights
from .weight_units import count_directions, weight_units

__all__ = ["BlockPair", "SteeredAverage"]


class SteeredAverage(nn.Module):
    """The output weights of κ for every pair of fields, and the filter bank that they give.

    Args:
        in_structure: blocks of (one group of) the input type.
        out_structure: blocks of the output type.
        sample: the group elements to steer by.
        features: number of features, J or J + 1.
        has_constant: whether the last feature is constant.
        remembered: the layer's store.

    Attributes:
        groups: numbers of the pairs of blocks that go through one product.
        pair_channels: their channels, as :class:`SteerableBasis` takes them; None where blocks have another basis
            than the fields.
    """

    def __init__(
        self,
        in_structure: FieldStructure,
        out_structure: FieldStructure,
        sample: GroupSample,
        features: int,
        has_constant: bool,
        remembered: Remembered | None = None,
    ) -> None:
        super().__init__()
        self._has_constant = has_constant
        self.in_counts = in_structure.counts
        self.out_counts = out_structure.counts
        self.pairs = nn.ModuleList(
            BlockPair(PairSteering(in_block, out_block, sample), is_average=_is_average(in_block, out_block, sample))
            for out_block in out_structure.blocks
            for in_block in in_structure.blocks
        )
        self.groups = self._groups()
        self.assembly = ChannelAssembly(
            in_structure, out_structure, [number for group in self.groups for number in group]
        )
        self.combinations = nn.ModuleList(
            CombinedSteering(groups, features) for kind in (False, True) if (groups := self._combined(kind))
        )
        self.pair_channels = self._pair_channels(in_structure, out_structure)
        self._trained_weights = TrainedWeights(remembered)

    def _groups(self) -> list[list[int]]:
        """Return the numbers of the pairs of each product: gathers one by one, then pairs of equal shapes together."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        for number, (pair, count) in enumerate(zip(self.block_pairs, self.pair_counts(), strict=True)):
            steering = pair.steering
            alike = number if steering.is_gather else (steering.sizes, steering.entries, count)
            groups.setdefault((not steering.is_gather, steering.is_relative, alike), []).append(number)
        return [groups[key] for key in sorted(groups, key=lambda key: key[:2])]

    def _pair_channels(
        self, in_structure: FieldStructure, out_structure: FieldStructure
    ) -> list[list[PairChannels]] | None:
        if self.assembly.has_basis:
            return None
        pairs = list(itertools.product(out_structure.block_channels(), in_structure.block_channels()))
        return [[pairs[number] for number in group] for group in self.groups]

    def _combined(self, is_relative: bool) -> list[list[PairSteering]]:
        """Return the steerings that combine hidden values of one kind, group by group."""
        groups = [[self.block_pairs[number].steering for number in group] for group in self.groups]
        return [of for of in groups if not of[0].is_gather and of[0].is_relative == is_relative]

    @property
    def block_pairs(self) -> list[BlockPair]:
        """All pairs of blocks, in the order of their output blocks."""
        return [pair for pair in self.pairs if isinstance(pair, BlockPair)]

    def _grouped_pairs(self) -> list[BlockPair]:
        """Every pair of blocks, those of one group after the other."""
        return [self.block_pairs[number] for group in self.groups for number in group]

    def pair_counts(self) -> list[int]:
        """Return the number of pairs of fields that each pair of blocks stands for."""
        return [out_count * in_count for out_count in self.out_counts for in_count in self.in_counts]

    def count_directions(self, hidden: Tensor) -> list[int | None]:
        """Return the number of directions of each pair's kernel that survive the average; None where all do."""
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
        shapes = [PairShape(pair.weights.shape[:2].numel(), *pair.units.shape) for pair in self._grouped_pairs()]
        self._trained_weights.set_shapes(shapes)

    def weight_variances(self, units: list[Tensor]) -> list[float]:
        """Return the variance of each pair's weights at the start: He's rule for features of unit output energy."""
        variances = []
        for row in range(len(self.out_counts)):
            of_row = units[row * len(self.in_counts) : (row + 1) * len(self.in_counts)]
            fan_in = sum(count * len(unit) for count, unit in zip(self.in_counts, of_row, strict=True))
            variances += [2 / max(fan_in, 1)] * len(of_row)
        return variances

    def units_of(self, pair: BlockPair, hidden: Tensor, rank: int | None) -> Tensor:
        """Return the units in which the weights of a pair are trained, on the given hidden values."""
        entries = pair.steering.entries
        unsteered = float(hidden.square().sum((2, 4)).mean().sqrt())
        return weight_units(pair.steering(hidden).flatten(3), entries, rank, self._has_constant, unsteered)

    def set_structures(self, in_structure: FieldStructure, out_structure: FieldStructure) -> None:
        """Steer by the elements of these blocks' matrices, a turned grid of a continuous group."""
        blocks = [(b, a) for a in out_structure.blocks for b in in_structure.blocks]
        for pair, (in_block, out_block) in zip(self.block_pairs, blocks, strict=True):
            pair.steering.set_blocks(in_block, out_block)

    def forward(self, hidden: Tensor, strict: Tensor | list[Tensor] | None = None) -> Tensor:
        """Return filter banks (P, C_out, C_in, T) of hidden values (J + 1, M, P, R, T), the constant feature last.

        Args:
            hidden: the hidden values at P positions.
            strict: a kernel that is added to each bank: whole, (C_out, C_in, T), or its part of each group of pairs,
                (pairs, o·i, |A|·|B|·T), (o·i, |A|·|B|·T) of a single pair. Parts are faster, and are written to.
        """
        added = strict if isinstance(strict, list) else [None] * len(self.groups)
        products = [_product(*of) for of in zip(self.plain_weights(), self._steered(hidden), added, strict=True)]
        if self.assembly.is_plain:
            shape = self.out_counts[0], self.in_counts[0], *self.block_pairs[0].steering.sizes, hidden.shape[-1]
            # (P, o, i, A, B, T) → (P, o·A, i·B, T).
            banks = products[0].reshape(-1, *shape).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        else:
            rows = [product.reshape(len(product), -1, hidden.shape[-1]) for product in products]
            banks = self.assembly(rows)
        return banks + strict if isinstance(strict, Tensor) else banks

    def _steered(self, hidden: Tensor) -> list[Tensor]:
        """Return the steered features of each group of pairs at each position, (P, pairs, F, |A|·|B|·T)."""
        steerings = [self.block_pairs[group[0]].steering for group in self.groups]
        gathered = [steering(hidden) for steering in steerings if steering.is_gather]
        # (F, A, B, P, T) → (P, 1, F, A·B·T).
        steered = [features.permute(3, 0, 1, 2, 4).flatten(2).unsqueeze(1) for features in gathered]
        for combination in self.combinations:
            steered += combination(hidden)
        return steered

    def plain_weights(self) -> list[Tensor]:
        """Return the weights of the plain features of each group of pairs, (pairs, o·i, F)."""
        # The units multiply the weights, not the features: a product without the points.
        pairs = self._grouped_pairs()
        weights, units = [pair.weights for pair in pairs], [pair.units for pair in pairs]
        return self._trained_weights(weights, units, [len(group) for group in self.groups])

    def energy(self, hidden: Tensor) -> Tensor:
        """Return ‖K‖² in the basis of permutations and irreps, where ρ is orthogonal, without building K.

        Args:
            hidden: as in :meth:`forward`.
        """
        energy = hidden.new_zeros(())
        for steered, weights in zip(self._steered(hidden), self.plain_weights(), strict=True):
            features = steered.permute(1, 2, 0, 3).flatten(2)
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


def _product(weights: Tensor, features: Tensor, added: Tensor | None) -> Tensor:
    """Return matrices (pairs, rows, F) times features (P, pairs, F, columns), plus ``added``, which may change."""
    positions, pairs = features.shape[:2]
    if positions == 1:
        features = features.squeeze(0)
        rows, columns = (weights, features) if pairs > 1 else (weights.squeeze(0), features.squeeze(0))
        product = rows @ columns if added is None else _add_product(added, rows, columns)
        return product.view(1, pairs, *product.shape[-2:])
    if pairs == 1 and added is not None:
        return torch.baddbmm(added, weights.expand(positions, -1, -1), features.squeeze(1)).unsqueeze(1)
    product = weights @ features
    return product if added is None else product + added


def _add_product(added: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return matrices plus a product, in place where torch allows that, which saves a copy."""
    if has_no_values():
        return added + rows @ columns
    return added.addmm_(rows, columns) if added.dim() == 2 else added.baddbmm_(rows, columns)


def _is_average(in_block: Block, out_block: Block, sample: GroupSample) -> bool:
    """Whether the entries of K are means of κ over the group, so that most directions of κ make no difference."""
    return len(sample) > 1 and not (in_block.is_permutation or out_block.is_permutation)
