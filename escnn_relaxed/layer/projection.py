"""The projection of a kernel on those that are equivariant to a subgroup, on the grid of its taps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from escnn.group import GroupElement, Representation
from escnn.nn import FieldType
from torch import Tensor

from ..group.elements import steered_taps
from ..group.fields import block_diagonal
from ..group.points import tap_grid
from ..kernel.orthogonal_basis import OrthogonalBasis

__all__ = ["projected_energies"]


def projected_energies(
    kernel: Tensor, in_type: FieldType, out_type: FieldType, elements: Sequence[GroupElement], dilation: int
) -> tuple[Tensor, Tensor]:
    """Return ‖K − PK‖² and ‖PK‖² where ρ is orthogonal, P the mean over a subgroup of ρ_out(h) K(h⁻¹d) ρ_in(h)⁻¹.

    Args:
        kernel: K, (C_out, C_in, k, …).
        in_type: field type of the input.
        out_type: field type of the output.
        elements: all elements of the subgroup.
        dilation: spacing of the taps.

    Raises:
        ValueError: for an element that moves taps off their grid.
    """
    gspace = in_type.gspace
    taps = tap_grid(kernel.shape[-1], dilation, gspace.dimensionality)
    flat = kernel.flatten(2)
    mean = torch.zeros_like(flat)
    for element in elements:
        steered = steered_taps(np.asarray(gspace.basespace_action(element), dtype=np.float64), taps)
        if steered is None:
            raise ValueError(f"subgroup must map voxels to voxels, got one with the element {element}")
        mean = mean + _turned(flat[..., steered], in_type, out_type, element)
    mean = mean / len(elements)
    orthogonal = OrthogonalBasis(in_type.representations, out_type.representations).to(kernel)
    return orthogonal.energy(flat - mean), orthogonal.energy(mean)


def _turned(kernel: Tensor, in_type: FieldType, out_type: FieldType, element: GroupElement) -> Tensor:
    out_matrix = _of_fields(out_type, lambda field: field(element)).to(kernel)
    in_matrix = _of_fields(in_type, lambda field: field(~element)).to(kernel)
    return torch.einsum("ab,bct,cd->adt", out_matrix, kernel, in_matrix)


def _of_fields(field_type: FieldType, matrix: Callable[[Representation], Any]) -> Tensor:
    """Return one matrix of all fields with one of each along its diagonal."""
    return torch.from_numpy(block_diagonal([np.asarray(matrix(field)) for field in field_type.representations]))
