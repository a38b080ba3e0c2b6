"""Hidden values φ → the steered features of a pair of blocks, equation (2) of docs/mathematics.md.

κ = W φ is linear in the hidden values, so steering acts on φ alone. For a pair of blocks (A, B) the *steered
features* S, of shape (F, |A|, |B|, P, T), are what the F output weights of every pair of fields multiply:

- two permutation fields: S_j[g, g′] = φ_j(g′⁻¹d, g′⁻¹g; a(g′, y)), a gather (the paper's k(v⁻¹u, v));
  quotient fields: its mean over the cosets;
- any other pair: S_(m,n),j = mean_g ρ_A(g)[:, m] φ_j(g⁻¹d; a(g, y)) ρ_B(g)⁻¹[n, :], a matrix product over g.
  One column n of κ is enough, since ρ_B(g)⁻¹ spreads it over the whole field.

The number of output weights does not depend on the number of group elements for permutation fields.
"""

from __future__ import annotations

import numpy as np
import torch
from einops import rearrange
from numpy.typing import NDArray
from torch import Tensor

from ..group.elements import GroupSample
from ..group.exact_constants import ExactConstants
from ..group.fields import Block

__all__ = ["PairSteering", "of_identity", "sees_relative_element"]


def sees_relative_element(in_block: Block, out_block: Block) -> bool:
    """Whether κ of this pair is one function of the relative element g′⁻¹g."""
    return in_block.is_permutation and out_block.is_permutation


def of_identity(hidden: Tensor) -> Tensor:
    """What a pair without relative coordinates sees: hidden values (J, M, P, R, T) where g = g′, (M, P, J, T)."""
    if hidden.shape[3] == 1:
        return rearrange(hidden, "j m p 1 t -> m p j t")
    return rearrange(hidden.diagonal(dim1=1, dim2=3), "j p t m -> m p j t")


class PairSteering(ExactConstants):
    """The linear map from hidden values to the steered features of one pair of blocks.

    Args:
        in_block: B.
        out_block: A.
        sample: the group elements to steer by.
    """

    index: Tensor
    coefficients: Tensor
    out_cosets: Tensor
    in_cosets: Tensor

    def __init__(self, in_block: Block, out_block: Block, sample: GroupSample) -> None:
        super().__init__()
        self.sizes = out_block.size, in_block.size
        is_alone = len(sample) == 1 and self.sizes == (1, 1)
        self.is_relative = is_alone or sees_relative_element(in_block, out_block)
        self.is_quotient = self.is_relative and min(in_block.size, out_block.size) < len(sample)
        self.entries = 1
        self.is_in_order = is_alone
        if is_alone:
            return
        if self.is_relative:
            out_elements, in_elements = _elements(out_block, self.is_quotient), _elements(in_block, self.is_quotient)
            # [g, g′] → the row of φ for the steering element g′ and g beside it.
            index = (in_elements[:, None] * len(sample) + out_elements).T.ravel()
            in_order = np.arange(len(sample))
            self.is_in_order = all(np.array_equal(of, in_order) for of in (in_elements, out_elements))
            self.set_constant("index", index)
            if self.is_quotient:
                self.set_constant("out_cosets", out_block.element_means())
                self.set_constant("in_cosets", in_block.element_means())
        else:
            self.set_blocks(in_block, out_block)

    def set_blocks(self, in_block: Block, out_block: Block) -> None:
        """Average over the elements that the matrices of these blocks belong to."""
        rows, columns = _kernel_entries(in_block, out_block)
        self.entries = len(rows) * len(columns)
        # ρ_B(g)⁻¹ = ρ_B(g)ᵀ: blocks are permutations or escnn's irreps, which are orthogonal.
        coefficients = np.einsum("gam,gbn->mnabg", out_block.matrices[:, :, rows], in_block.matrices[:, :, columns])
        self.set_constant("coefficients", coefficients / len(out_block.matrices))

    def forward(self, hidden: Tensor) -> Tensor:
        """Steered features (F, |A|, |B|, P, T) of hidden values (J, M, P, R, T), F = entries·J."""
        if not self.is_relative:
            return torch.einsum("mnabg,gpjt->mnjabpt", self.coefficients, of_identity(hidden)).flatten(0, 2)
        if self.is_in_order:
            steered = rearrange(hidden, "j m p r t -> j r m p t")
        else:
            rows = rearrange(hidden, "j m p r t -> j (m r) p t")
            steered = rows.index_select(1, self.index).unflatten(1, (hidden.shape[1], -1))
        if self.is_quotient:
            steered = torch.einsum("jghpt,ag,bh->jabpt", steered, self.out_cosets, self.in_cosets)
        return steered


def _kernel_entries(in_block: Block, out_block: Block) -> tuple[list[int], list[int]]:
    """Rows and columns of κ that carry weights; steering spreads them over the whole matrix."""
    if out_block.is_permutation:
        return [0], list(range(in_block.size))
    return list(range(out_block.size)), [0]


def _elements(block: Block, in_own_order: bool) -> NDArray[np.int64]:
    """Numbers of the elements in the order of a regular field's channels, or in the sample's own order."""
    image = np.asarray(block.image)
    return np.arange(len(image)) if in_own_order else np.argsort(image)
