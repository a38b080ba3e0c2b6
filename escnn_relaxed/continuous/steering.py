"""The steered features of a pair of blocks from hidden values φ, equation (2) of docs/concepts/mathematics.md.

κ = W φ is linear in the hidden values, so steering acts on φ alone. For a pair of blocks (A, B) the *steered
features* S, of shape (F, |A|, |B|, P, T), are what the F output weights of every pair of fields multiply:

- two permutation fields: S_j[g, g′] = φ_j(g′⁻¹d, g′⁻¹g; a(g′, y)), a gather (the paper's k(v⁻¹u, v));
  quotient fields: its mean over the cosets, a matrix product over (g, g′);
- any other pair: S_(m,n),j = mean_g ρ_A(g)[:, m] φ_j(g⁻¹d; a(g, y)) ρ_B(g)⁻¹[n, :], a matrix product over g.
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

__all__ = ["PairSteering", "of_identity", "sees_relative_element"]


def sees_relative_element(in_block: Block, out_block: Block) -> bool:
    """Whether κ of this pair is a function of the relative element g′⁻¹g."""
    return in_block.is_permutation and out_block.is_permutation


def of_identity(hidden: Tensor) -> Tensor:
    """Return hidden values (J, M, P, R, T) at g = g′, for a pair without relative coordinates: (M, P, J, T)."""
    if hidden.shape[3] == 1:
        return hidden.squeeze(3).permute(1, 2, 0, 3)
    return hidden.diagonal(dim1=1, dim2=3).permute(3, 1, 0, 2)


class PairSteering(ExactConstants):
    """The linear map from hidden values to the steered features of one pair of blocks.

    Args:
        in_block: B.
        out_block: A.
        sample: the group elements to steer by.
    """

    index: Tensor
    coefficients: Tensor

    def __init__(self, in_block: Block, out_block: Block, sample: GroupSample) -> None:
        super().__init__()
        self.sizes = out_block.size, in_block.size
        is_alone = len(sample) == 1 and self.sizes == (1, 1)
        self.is_relative = is_alone or sees_relative_element(in_block, out_block)
        self.is_gather = self.is_relative and min(self.sizes) == len(sample)
        self.entries = 1
        self.is_in_order = is_alone
        if is_alone:
            return
        if self.is_gather:
            # Entry [g, g′] is the row of φ for the steering element g′ and the element g beside it.
            out_elements, in_elements = (np.argsort(np.asarray(of.image)) for of in (out_block, in_block))
            index = (in_elements[:, None] * len(sample) + out_elements).T.ravel()
            in_order = np.arange(len(sample))
            self.is_in_order = all(np.array_equal(of, in_order) for of in (in_elements, out_elements))
            self.set_constant("index", index)
        elif self.is_relative:
            cosets = np.einsum("ag,bh->abhg", out_block.element_means(), in_block.element_means())
            self.set_constant("coefficients", cosets.reshape(1, 1, *self.sizes, -1))
        else:
            self.set_blocks(in_block, out_block)

    def set_blocks(self, in_block: Block, out_block: Block) -> None:
        """Set the average over the elements that the matrices of these blocks belong to."""
        rows, columns = _kernel_entries(in_block, out_block)
        self.entries = len(rows) * len(columns)
        # ρ_B(g)⁻¹ = ρ_B(g)ᵀ: blocks are permutations or escnn's irreps, which are orthogonal.
        coefficients = np.einsum("gam,gbn->mnabg", out_block.matrices[:, :, rows], in_block.matrices[:, :, columns])
        self.set_constant("coefficients", coefficients / len(out_block.matrices))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return steered features (F, |A|, |B|, P, T) of hidden values (J, M, P, R, T), with F = entries·J."""
        if not self.is_gather:
            return torch.einsum("mnabk,kpjt->mnjabpt", self.coefficients, self.values(hidden)).flatten(0, 2)
        if self.is_in_order:
            return hidden.permute(0, 3, 1, 2, 4)
        rows = hidden.permute(0, 1, 3, 2, 4).flatten(1, 2)
        return rows.index_select(1, self.index).unflatten(1, self.sizes)

    def values(self, hidden: Tensor) -> Tensor:
        """Return hidden values (J, M, P, R, T) in the form that the coefficients multiply, (K, P, J, T)."""
        return hidden.permute(1, 3, 2, 0, 4).flatten(0, 1) if self.is_relative else of_identity(hidden)


def _kernel_entries(in_block: Block, out_block: Block) -> tuple[list[int], list[int]]:
    """Return the rows and columns of κ that carry weights; steering spreads them over the whole matrix."""
    if out_block.is_permutation:
        return [0], list(range(in_block.size))
    return list(range(out_block.size)), [0]
