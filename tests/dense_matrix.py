"""Linear maps on images as matrices, and what shifts and group elements make of the matrix of a layer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from errors import transform
from escnn.group import GroupElement
from escnn.nn import FieldType
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv


@torch.no_grad()
def matrix_of(linear: Callable[[Tensor], Tensor], channels: int, size: tuple[int, int]) -> Tensor:
    """The matrix of a linear map on images, from the image of every basis vector."""
    basis = torch.eye(channels * size[0] * size[1], dtype=torch.float64).view(-1, channels, *size)
    return linear(basis).flatten(1).mT


@torch.no_grad()
def dense_matrix(layer: RelaxedR2Conv, side: int) -> Tensor:
    """Return the matrix of a layer without bias on a torus, its outputs of unit images.

    Its shape is (C_out, side, side, C_in, side, side).
    """
    answers = layer(layer.in_type(_unit_images(layer.in_type, side))).tensor
    return answers.movedim(0, -1).unflatten(-1, (-1, side, side))


def mean_over_shifts(matrix: Tensor) -> Tensor:
    """Mean over all shifts of S M S⁻¹."""
    side = matrix.shape[-1]
    shifts = itertools.product(range(side), range(side))
    return sum(matrix.roll((r, c, r, c), dims=(1, 2, 4, 5)) for r, c in shifts) / side**2


def mean_over_elements(
    matrix: Tensor, in_type: FieldType, out_type: FieldType, elements: Sequence[GroupElement]
) -> Tensor:
    """Mean over elements on the grid of h M h⁻¹, about the centre of the image."""
    flat = matrix.flatten(3).flatten(0, 2)
    total = torch.zeros_like(flat)
    for h in elements:
        total += _action(out_type, h, matrix.shape[-1]) @ flat @ _action(in_type, ~h, matrix.shape[-1])
    return (total / len(elements)).view_as(matrix)


def in_orthogonal_basis(matrix: Tensor, in_type: FieldType, out_type: FieldType) -> Tensor:
    """B_out⁻¹ M B_in, where B changes the basis of each field from its irreps."""
    inverse = torch.block_diag(*(_tensor(field.change_of_basis_inv) for field in out_type.representations))
    basis = torch.block_diag(*(_tensor(field.change_of_basis) for field in in_type.representations))
    return torch.einsum("oa,ahwbxy,bi->ohwixy", inverse, matrix, basis)


def _action(field_type: FieldType, element: GroupElement, side: int) -> Tensor:
    return transform(_unit_images(field_type, side), field_type, element).flatten(1).T


def _unit_images(field_type: FieldType, side: int) -> Tensor:
    count = field_type.size * side**2
    return torch.eye(count, dtype=torch.float64).view(count, field_type.size, side, side)


def _tensor(matrix: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(matrix, dtype=np.float64))
