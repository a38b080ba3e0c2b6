"""Block order → the channels and the basis of the field types, for filter banks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .exact_constants import ExactConstants
from .fields import FieldStructure

__all__ = ["ChannelAssembly"]


class ChannelAssembly(ExactConstants):
    """How the blocks of two lists of fields make up their channels.

    Args:
        in_structure: blocks of (one group of) the input type.
        out_structure: blocks of the output type.

    Attributes:
        block_count: number of pairs of blocks.
    """

    in_channels: Tensor
    out_channels: Tensor
    in_basis_inverse: Tensor
    out_basis: Tensor

    def __init__(self, in_structure: FieldStructure, out_structure: FieldStructure) -> None:
        super().__init__()
        self._row_length = len(in_structure.blocks)
        self._reorders = {}
        for side, structure in (("in", in_structure), ("out", out_structure)):
            self._reorders[side] = not np.array_equal(structure.channels, np.arange(structure.size))
            self.set_constant(f"{side}_channels", structure.channels)
        self.block_count = len(in_structure.blocks) * len(out_structure.blocks)
        self._has_basis = {"in": in_structure.basis is not None, "out": out_structure.basis is not None}
        if out_structure.basis is not None:
            self.set_constant("out_basis", out_structure.basis)
        if in_structure.basis_inverse is not None:
            self.set_constant("in_basis_inverse", in_structure.basis_inverse)

    @property
    def is_plain(self) -> bool:
        """Whether the bank of one pair of blocks is the filter bank as it is."""
        return not any((*self._reorders.values(), *self._has_basis.values())) and self.block_count == 1

    def forward(self, blocks: list[Tensor]) -> Tensor:
        """Filter banks (…, C_out, C_in, points) of those of all pairs of blocks."""
        rows = [
            _joined(blocks[start : start + self._row_length], dimension=-2)
            for start in range(0, len(blocks), self._row_length)
        ]
        bank = _joined(rows, dimension=-3)
        if self._reorders["out"]:
            bank = bank.index_select(-3, self.out_channels)
        if self._reorders["in"]:
            bank = bank.index_select(-2, self.in_channels)
        if self._has_basis["out"]:
            bank = torch.einsum("oc,...cin->...oin", self.out_basis, bank)
        if self._has_basis["in"]:
            bank = torch.einsum("...ocn,ci->...oin", bank, self.in_basis_inverse)
        return bank


def _joined(parts: list[Tensor], dimension: int) -> Tensor:
    """The parts concatenated; a single one as it is, not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dimension)
