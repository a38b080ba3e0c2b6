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

import numpy as np
import torch
from torch import Tensor

from ..group.elements import GroupSample
from ..group.exact_constants import ExactConstants
from ..group.fields import Block

__all__ = ["PairSteering", "sees_relative_element"]


def sees_relative_element(in_block: Block, out_block: Block) -> bool:
    """Whether κ of this pair is a function of the relative element g′⁻¹g."""
    return in_block.is_permutation and out_block.is_permutation


class PairSteering(ExactConstants):
    """The linear map from hidden values to the steered features of one pair of blocks."""

    coefficients: Tensor
    out_elements: Tensor
    in_elements: Tensor

    def __init__(self, in_block: Block, out_block: Block, sample: GroupSample) -> None:
        super().__init__()
        self.sizes = out_block.size, in_block.size
        # The entries of κ that have weights: F over the number of hidden values.
        self.entries = 1
        self.is_relative = sees_relative_element(in_block, out_block)
        # Most directions of κ make no difference to a mean over the group.
        self.is_average = len(sample) > 1 and not (in_block.is_permutation or out_block.is_permutation)
        self.is_gather = self.is_relative and min(self.sizes) == len(sample)
        self.is_in_order = False
        if self.is_gather:
            elements = [np.argsort(np.asarray(of.image)) for of in (out_block, in_block)]
            self.is_in_order = all(np.array_equal(of, np.arange(len(sample))) for of in elements)
            self.set_constant("out_elements", elements[0])
            self.set_constant("in_elements", elements[1])
        elif self.is_relative:
            cosets = np.einsum("ag,bh->abhg", out_block.element_means(), in_block.element_means())
            self.set_constant("coefficients", cosets.reshape(1, 1, *self.sizes, -1))
        else:
            rows, columns = _kernel_entries(in_block, out_block)
            self.entries = len(rows) * len(columns)
            # ρ_B(g)⁻¹ = ρ_B(g)ᵀ: blocks are permutations or escnn's irreps, which are orthogonal.
            left, right = out_block.matrices[:, :, rows], in_block.matrices[:, :, columns]
            self.set_constant("coefficients", np.einsum("gam,gbn->mnabg", left, right) / len(sample))

    def forward(self, hidden: Tensor) -> Tensor:
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


def _kernel_entries(in_block: Block, out_block: Block) -> tuple[list[int], list[int]]:
    """Return the rows and columns of κ that carry weights; steering spreads them over the whole matrix."""
    if out_block.is_permutation:
        return [0], list(range(in_block.size))
    return list(range(out_block.size)), [0]
