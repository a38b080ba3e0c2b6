"""The steered features of a pair of blocks from hidden values φ, equation (2) of docs/concepts/mathematics.md.

κ = W φ is linear in the hidden values, so steering acts on φ alone. For a pair of blocks (A, B) the *steered
features* S, of shape (F, |A|, |B|, P, T), are what the F output weights of every pair of fields multiply:

- two regular fields: S_j[g, g′] = φ_j(g′⁻¹d, g′⁻¹g; a(g′, x)), a gather (the paper's k(v⁻¹u, v));
  quotient fields: its mean over the cosets, a matrix product over (g, g′);
- any other pair: S_(m,n),j = mean_g ρ_A(g)[:, m] φ_j(g⁻¹d; a(g, x)) ρ_B(g)⁻¹[n, :], a matrix product over g.
  One column n of κ is enough, since ρ_B(g)⁻¹ spreads it over the whole field.

The number of output weights does not depend on the number of group elements for permutation fields.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor, nn

from ..group.elements import GroupSample, turn
from ..group.exact_constants import ExactConstants
from ..group.fields import Block, FieldStructure, pair_rows
from ..group.points import Array

# Optimisers change every weight by about the same amount in each step. With features of unequal size that would be a
# different step for each direction of the kernel, and layers with a right start would still learn slowly. So weights
# multiply features that are centred, orthogonal and of unit energy on the grid at the start, by a linear map that is
# fixed and saved with the layer.

# Directions of an average that are smaller than this part of the largest are dropped.
_SMALLEST = 0.1
# Directions smaller than this part of the largest are scaled up no further. They are rough between the taps.
_LEAST = 0.3
# Features are of order one: below this they are zero, and an average has left nothing.
_ROUNDING = 1e-6
# Energies, or lengths, that differ by less than this part are equal up to rounding.
_SAME = 1e-8


def weight_units(steered: Tensor, entries: int, rank: int | None, unsteered: float = 0.0) -> Tensor:
    """Return the map from P = entries·(J + 1) plain features (P, |A|, |B|, T) to r = rank normalised ones, (r, P)."""
    out_size = steered.shape[1]
    # Directions of which steering leaves less than a tenth would otherwise start as large as strict ones.
    smallest = _SMALLEST * unsteered / out_size**0.5
    features = steered.double().flatten(1)
    identity = torch.eye(len(features), dtype=features.dtype, device=features.device)
    # The sum of a feature over input channels and taps is its output for a constant input.
    sums = steered.double().sum(dim=(2, 3)).mean(dim=1)
    # The constant feature is the last of each entry of κ.
    constant = len(features) - 1
    # Each value has the rounding error of single precision, and the error of the sum grows with their number.
    rounding = _ROUNDING * steered.shape[2] * steered.shape[3]
    if entries > 1 or abs(sums[constant]) < rounding:
        return _whitened(features, identity, out_size, rank, smallest).to(steered.dtype)
    centring = identity[:-1] - torch.outer(sums[:-1] / sums[constant], identity[constant])
    varying = _whitened(centring @ features, centring, out_size, None if rank is None else max(rank - 1, 0), smallest)
    # Inputs of non-zero mean add up over a constant kernel. So it is scaled to an output of 1, not to unit energy.
    return torch.cat([varying, identity[constant:] / sums[constant]]).to(steered.dtype)


def _whitened(features: Tensor, combination: Tensor, out_size: int, rank: int | None, smallest: float) -> Tensor:
    """Return the ``rank`` largest orthonormal combinations; energy is summed over input channels and taps."""
    energy, direction = torch.linalg.eigh(features @ features.mT / out_size)
    size = energy.clamp_min(0).sqrt().flip(0)
    direction = _canonical(energy.flip(0), direction.flip(1), len(energy) if rank is None else rank)
    # Features that do not vary at all (ω = 0) keep their own units.
    least = max(_LEAST * float(size[0]), smallest)
    scale = size.clamp_min(least) if size[0] > _ROUNDING else torch.ones_like(size)
    return (direction / scale).mT[:rank] @ combination


def _canonical(energy: Tensor, direction: Tensor, wanted: int) -> Tensor:
    """Return eigenvectors whose first ``wanted`` columns do not depend on the order of the solver's sums."""
    # Each of distinct energy gets a fixed sign. Those of equal energies could be any basis of a space. They become the
    # projections of the coordinate axes on it: the longest first, then the longest of what is left.
    result = direction * direction.gather(0, _longest(direction.square())).sign()
    starts = [0, *(torch.nonzero(-energy.diff() > _SAME * energy[0].abs()).flatten() + 1).tolist(), len(energy)]
    for start, end in itertools.pairwise(starts):
        if end == start + 1 or start >= wanted:
            continue
        space = direction[:, start:end]
        projection = space @ space.mT
        for column in range(start, end):
            axis = int(_longest(projection.diagonal().unsqueeze(1)))
            result[:, column] = projection[:, axis] / projection[axis, axis].sqrt()
            projection = projection - torch.outer(result[:, column], result[:, column])
    return result


def _longest(lengths: Tensor) -> Tensor:
    """Return the index of the largest entry of each column, the first of those equal up to rounding, (1, columns)."""
    is_longest = lengths > (1 - _SAME) * lengths.amax(dim=0)
    return is_longest.int().argmax(dim=0, keepdim=True)


def sees_relative_element(in_block: Block, out_block: Block) -> bool:
    """Return whether κ of this pair is a function of the relative element g′⁻¹g."""
    return in_block.is_permutation and out_block.is_permutation


def _kernel_entries(in_block: Block, out_block: Block) -> tuple[list[int], list[int]]:
    """Return the rows and columns of κ that carry weights; steering spreads them over the whole matrix."""
    if out_block.is_permutation:
        return [0], list(range(in_block.size))
    return list(range(out_block.size)), [0]


def _turned(block: Block, angle: float) -> Array:
    """Return ρ(g r) of an irrep of a continuous group of the plane for each element, (M, size, size)."""
    if not angle or block.irrep is None or not block.irrep.group.continuous:
        return block.matrices
    return block.matrices @ np.asarray(block.irrep(turn(block.irrep.group, angle)), dtype=np.float64)


class BlockPair(ExactConstants):
    """Steering of one pair of blocks, with the normalised output weights of all its pairs of fields."""

    weights: nn.Parameter  # (o, i, D), of o output and i input fields
    units: Tensor  # the map from the F plain features to D normalised ones, (D, F)
    coefficients: Tensor
    out_elements: Tensor
    in_elements: Tensor

    def __init__(self, in_block: Block, out_block: Block, sample: GroupSample, counts: tuple[int, int]) -> None:
        super().__init__()
        self.sizes, self.counts, self.blocks = (out_block.size, in_block.size), counts, (in_block, out_block)
        self.register_parameter("weights", None)
        self.register_buffer("units", None)
        # The entries of κ that have weights: F over the number of hidden values.
        self.entries = 1
        self.is_relative = sees_relative_element(in_block, out_block)
        # Most directions of κ make no difference to a mean over the group.
        self.is_average = len(sample) > 1 and not (in_block.is_permutation or out_block.is_permutation)
        self.is_gather = self.is_relative and min(self.sizes) == len(sample)
        self.is_in_order = False
        if self.is_gather:
            elements = [np.argsort(np.asarray(block.image)) for block in (out_block, in_block)]
            self.is_in_order = all(np.array_equal(order, np.arange(len(sample))) for order in elements)
            self.set_constant("out_elements", elements[0])
            self.set_constant("in_elements", elements[1])
        elif self.is_relative:
            cosets = np.einsum("ag,bh->abhg", out_block.element_means(), in_block.element_means())
            self.set_constant("coefficients", cosets.reshape(1, 1, *self.sizes, -1))
        else:
            self.entries = math.prod(map(len, _kernel_entries(in_block, out_block)))
            self.turn(0.0)

    def turn(self, angle: float) -> None:
        """Set ρ to that of the elements g r, r the rotation by an angle."""
        if self.is_relative:
            return  # channels that are elements go on, so that they are g r themselves
        in_block, out_block = self.blocks
        rows, columns = _kernel_entries(in_block, out_block)
        # ρ_B(g)⁻¹ = ρ_B(g)ᵀ: blocks are permutations or escnn's irreps, which are orthogonal.
        left, right = _turned(out_block, angle)[:, :, rows], _turned(in_block, angle)[:, :, columns]
        self.set_constant("coefficients", np.einsum("gam,gbn->mnabg", left, right) / len(left))

    def steered(self, hidden: Tensor) -> Tensor:
        """Return steered features (F, |A|, |B|, P, T) of hidden values (J, M, P, R, T)."""
        if self.is_gather:
            # Entry [g, g′] is φ for the steering element g′ and the element g beside it.
            steered = hidden.permute(0, 3, 1, 2, 4)
            if self.is_in_order:
                return steered
            return steered.index_select(1, self.out_elements).index_select(2, self.in_elements)
        if self.is_relative:
            values = hidden.transpose(2, 3).flatten(1, 2)
        elif hidden.shape[3] == 1:
            values = hidden.squeeze(3)
        else:
            # κ does not see g′⁻¹g: its coordinates are those of the identity.
            values = hidden.diagonal(dim1=1, dim2=3).movedim(-1, 1)
        return torch.einsum("mnabk,jkpt->mnjabpt", self.coefficients, values).flatten(0, 2)

    def forward(self, features: Tensor) -> Tensor:
        """Return the kernels of all pairs of fields, (P, o, i, |A|, |B|, T), of features (J + 1, M, P, R, T)."""
        # The units multiply the weights, not the features: a product without the points.
        weights = (self.weights @ self.units).flatten(0, 1)
        # (1, o·i, F) · (P, F, |A|·|B|·T)
        products = weights.unsqueeze(0) @ self.steered(features).permute(3, 0, 1, 2, 4).flatten(2)
        return products.view(-1, *self.counts, *self.sizes, features.shape[4])

    def count_directions(self, features: Tensor) -> int | None:
        """Return the number of directions that the average over the group leaves; None without one."""
        if not self.is_average:
            return None
        size = torch.linalg.svdvals(self.steered(features).double().flatten(1))
        return int((size > max(_SMALLEST * float(size[0]), _ROUNDING)).sum())

    def units_of(self, features: Tensor, rank: int | None) -> Tensor:
        """Return the units for the given features, of the ``rank`` largest directions."""
        unsteered = float(features.square().sum((2, 4)).mean().sqrt())
        return weight_units(self.steered(features).flatten(3), self.entries, rank, unsteered)


class SteeredAverage(ExactConstants):
    """The map from features to the filter bank between two lists of fields, linear in the features."""

    # Changes of basis, where the fields are other than permutations and irreps.
    in_basis_inverse: Tensor | None = None
    out_basis: Tensor | None = None
    order: Tensor

    def __init__(self, in_structure: FieldStructure, out_structure: FieldStructure, sample: GroupSample) -> None:
        super().__init__()
        sides = [zip(structure.blocks, structure.channels, strict=True) for structure in (out_structure, in_structure)]
        pairs = list(itertools.product(*sides))
        self.pairs = nn.ModuleList(
            BlockPair(in_block, out_block, sample, (len(outs), len(ins)))
            for (out_block, outs), (in_block, ins) in pairs
        )
        self.size = out_structure.size, in_structure.size
        self._in_blocks = len(in_structure.blocks)
        self.set_constant("order", pair_rows([(outs, ins) for (_, outs), (_, ins) in pairs], self.size))
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
        if len(products) == 1:
            # (P, o, i, A, B, T) → (P, o·A, i·B, T)
            banks = products[0].transpose(2, 3).flatten(3, 4).flatten(1, 2)
        else:
            rows = torch.cat([product.flatten(1, 4) for product in products], dim=1)
            banks = rows.index_select(-2, self.order).unflatten(1, self.size)
        if self.out_basis is not None:
            banks = torch.einsum("oc,pcin->poin", self.out_basis, banks)
        if self.in_basis_inverse is not None:
            banks = torch.einsum("pocn,ci->poin", banks, self.in_basis_inverse)
        return banks

    def count_directions(self, features: Tensor) -> list[int | None]:
        """Return the number of directions of each pair that an average over the group leaves; None without one."""
        return [pair.count_directions(features) for pair in self.block_pairs]

    def initialize(self, features: Tensor, ranks: list[int | None]) -> None:
        """Set the units of the weights from features, for ``ranks`` directions (None: all), and draw the weights."""
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
        totals = [sum(fan_in for fan_in, other in zip(fan_ins, rows, strict=True) if other == row) for row in rows]
        return [2 / max(total, 1) for total in totals]
