"""Block order ↔ the channels and the basis of the field types, for filter banks and for feature maps."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .exact_constants import ExactConstants
from .field_structure import FieldStructure

__all__ = ["ChannelAssembly"]


class ChannelAssembly(ExactConstants):
    """How the blocks of two lists of fields make up their channels.

    Args:
        in_structure: blocks of (one group of) the input type.
        out_structure: blocks of the output type.

    Attributes:
        shape: (C_out, C_in).
        in_slices: where the channels of each block of the input lie in block order.
        out_slices: the same of the output.
        changes_basis: whether a field type has a basis other than that of permutations and irreps.
    """

    in_channels: Tensor
    out_channels: Tensor
    in_components: Tensor
    out_components: Tensor
    in_basis_inverse: Tensor
    out_basis: Tensor

    def __init__(self, in_structure: FieldStructure, out_structure: FieldStructure) -> None:
        super().__init__()
        self.shape = out_structure.size, in_structure.size
        self._row_length = len(in_structure.blocks)
        self._reorders = {}
        for side, structure in (("in", in_structure), ("out", out_structure)):
            self._reorders[side] = not np.array_equal(structure.channels, np.arange(structure.size))
            self.set_constant(f"{side}_channels", structure.channels)
        # Feature maps take components before fields, (|A|, fields): what steering mixes lies together.
        self.set_constant("in_components", np.argsort(_component_position(in_structure)[in_structure.channels]))
        self.set_constant("out_components", _component_position(out_structure)[out_structure.channels])
        self._has_components = {
            "in": not torch.equal(self.in_components, torch.arange(in_structure.size)),
            "out": not torch.equal(self.out_components, torch.arange(out_structure.size)),
        }
        self.in_slices = _slices(in_structure)
        self.out_slices = _slices(out_structure)
        self._out_counts = list(out_structure.counts)
        self._has_basis = {"in": in_structure.basis is not None, "out": out_structure.basis is not None}
        self.changes_basis = any(self._has_basis.values())
        if out_structure.basis is not None:
            self.set_constant("out_basis", out_structure.basis)
        if in_structure.basis_inverse is not None:
            self.set_constant("in_basis_inverse", in_structure.basis_inverse)

    def basis_norm(self) -> float:
        """Bound on what the change to the basis of the field types adds to the norm of a filter bank, as a factor."""
        names = [name for side, name in (("in", "in_basis_inverse"), ("out", "out_basis")) if self._has_basis[side]]
        return math.prod(float(torch.linalg.matrix_norm(getattr(self, name), ord=2)) for name in names)

    def forward(self, blocks: list[Tensor]) -> Tensor:
        """The filter bank (C_out, C_in, points) of the banks of all pairs of blocks."""
        rows = [
            _joined(blocks[start : start + self._row_length], dimension=1)
            for start in range(0, len(blocks), self._row_length)
        ]
        bank = _joined(rows, dimension=0)
        if self._reorders["out"]:
            bank = bank.index_select(0, self.out_channels)
        if self._reorders["in"]:
            bank = bank.index_select(1, self.in_channels)
        if self._has_basis["out"]:
            bank = torch.einsum("oc,cin->oin", self.out_basis, bank)
        if self._has_basis["in"]:
            bank = torch.einsum("ocn,ci->oin", bank, self.in_basis_inverse)
        return bank

    def rows_of_group(self, group: int, groups: int) -> Tensor:
        """Channels of the output that belong to one group, as (block, component, field)."""
        return self._group_rows(groups)[group]

    def group_order(self, groups: int) -> Tensor:
        """Where channels (block, component, field) of all groups are, if those of each group follow each other."""
        return torch.argsort(self._group_rows(groups).flatten())

    def _group_rows(self, groups: int) -> Tensor:
        rows = torch.arange(self.shape[0], device=self.out_components.device)
        parts = [
            rows[part].view(-1, groups, count // groups).transpose(0, 1).flatten(1)
            for part, count in zip(self.out_slices, self._out_counts, strict=True)
        ]
        return torch.cat(parts, dim=1)

    def bank_to_blocks(self, bank: Tensor) -> Tensor:
        """A filter bank (C_out, C_in, points) with its channels as (block, component, field); no basis may change."""
        return bank.index_select(0, torch.argsort(self.out_components)).index_select(1, self.in_components)

    def to_blocks(self, image: Tensor) -> Tensor:
        """An input (H, W, C_in, batch) with its channels as (block, component, field), contiguous."""
        if self._has_basis["in"]:
            image = torch.einsum("ci,hwib->hwcb", self.in_basis_inverse.to(image), image)
        image = image.contiguous()
        return image.index_select(2, self.in_components) if self._has_components["in"] else image

    def from_blocks(self, answer: Tensor) -> Tensor:
        """An output with channels (block, component, field) in those of the output type, (positions, C_out, batch)."""
        if self._has_components["out"]:
            answer = answer.index_select(1, self.out_components)
        if self._has_basis["out"]:
            answer = torch.einsum("oc,pcb->pob", self.out_basis.to(answer), answer)
        return answer


def _joined(parts: list[Tensor], dimension: int) -> Tensor:
    """Concatenated, without a copy of a single part."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dimension)


def _slices(structure: FieldStructure) -> list[slice]:
    ends = np.cumsum([block.size * count for block, count in zip(structure.blocks, structure.counts, strict=True)])
    starts = [0, *ends[:-1].tolist()]
    return [slice(start, end) for start, end in zip(starts, ends.tolist(), strict=True)]


def _component_position(structure: FieldStructure) -> NDArray[np.int64]:
    """Position of each channel in block order, which has fields first, where components are first."""
    parts = [
        part.start + np.arange(count * block.size).reshape(block.size, count).T.ravel()
        for part, block, count in zip(_slices(structure), structure.blocks, structure.counts, strict=True)
    ]
    return np.concatenate(parts)
