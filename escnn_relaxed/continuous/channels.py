"""The channels and the basis of the field types, assembled from the kernels of pairs of blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..group.exact_constants import ExactConstants
from ..group.fields import FieldStructure
from ..group.row_order import RowOrder

__all__ = ["ChannelAssembly"]


class ChannelAssembly(ExactConstants):
    """The map from the kernels of pairs of blocks to the filter bank between two lists of fields.

    Args:
        in_structure: blocks of (one group of) the input type.
        out_structure: blocks of the output type.
        pair_order: the number of the pair of blocks of each kernel, where the input's block varies fastest.

    Attributes:
        size: C_out and C_in.
        has_basis: whether a field type has another basis than its blocks.
        is_plain: whether the filter bank is the kernel of a single pair of blocks, unchanged.
    """

    in_basis_inverse: Tensor
    out_basis: Tensor

    def __init__(self, in_structure: FieldStructure, out_structure: FieldStructure, pair_order: Sequence[int]) -> None:
        super().__init__()
        self.size = out_structure.size, in_structure.size
        self.order = RowOrder(_row_numbers(in_structure, out_structure, pair_order))
        self._has_basis = {"in": in_structure.basis is not None, "out": out_structure.basis is not None}
        if out_structure.basis is not None:
            self.set_constant("out_basis", out_structure.basis)
        if in_structure.basis_inverse is not None:
            self.set_constant("in_basis_inverse", in_structure.basis_inverse)
        structures = in_structure, out_structure
        in_place = all(np.array_equal(of.channels, np.arange(of.size)) and len(of.blocks) == 1 for of in structures)
        self.has_basis = any(self._has_basis.values())
        self.is_plain = in_place and not self.has_basis

    def forward(self, products: list[Tensor]) -> Tensor:
        """Return filter banks (…, C_out, C_in, T), given the kernel of each pair of blocks, (…, o·i·|A|·|B|, T)."""
        bank = self.order(torch.cat(products, dim=-2)).unflatten(-2, self.size)
        if self._has_basis["out"]:
            bank = torch.einsum("oc,...cin->...oin", self.out_basis, bank)
        if self._has_basis["in"]:
            bank = torch.einsum("...ocn,ci->...oin", bank, self.in_basis_inverse)
        return bank


def _row_numbers(
    in_structure: FieldStructure, out_structure: FieldStructure, pair_order: Sequence[int]
) -> NDArray[np.int64]:
    """Return the row of each pair of channels, output first, among the rows (o, i, a, b) of the pairs of blocks."""
    rows, columns = out_structure.block_ranges(), in_structure.block_ranges()
    block_bank = np.zeros((out_structure.size, in_structure.size), dtype=np.int64)
    start = 0
    for number in pair_order:
        out_number, in_number = divmod(number, len(columns))
        out_block, in_block = out_structure.blocks[out_number], in_structure.blocks[in_number]
        shape = out_structure.counts[out_number], in_structure.counts[in_number], out_block.size, in_block.size
        numbers = start + np.arange(np.prod(shape)).reshape(shape).transpose(0, 2, 1, 3)
        place = rows[out_number], columns[in_number]
        block_bank[place] = numbers.reshape(block_bank[place].shape)
        start += numbers.size
    return block_bank[np.ix_(out_structure.channels, in_structure.channels)].ravel()
