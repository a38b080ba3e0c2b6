"""The norm of kernels, in the basis of permutations and irreps where representations are orthogonal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..group.exact_constants import ExactConstants
from ..group.fields import block_diagonal

if TYPE_CHECKING:  # exported layers come here too, and run without escnn
    from escnn.group import Representation

__all__ = ["OrthogonalBasis"]


class OrthogonalBasis(ExactConstants):
    """The map K → B_out⁻¹ K B_in of kernels (C_out, C_in/groups, k, k), where B takes irreps to the basis of fields."""

    def __init__(self, in_fields: Sequence[Representation], out_fields: Sequence[Representation]) -> None:
        super().__init__()
        # Many fields are of few representations.
        distinct = {id(field): field for field in (*in_fields, *out_fields)}
        is_orthogonal = {number: _is_orthogonal(field) for number, field in distinct.items()}
        self._is_needed = not all(is_orthogonal.values())
        if self._is_needed:
            left = [np.eye(f.size) if is_orthogonal[id(f)] else f.change_of_basis_inv for f in out_fields]
            right = [np.eye(f.size) if is_orthogonal[id(f)] else f.change_of_basis for f in in_fields]
            self.set_constant("left", block_diagonal(left))
            self.set_constant("right", block_diagonal(right))

    def forward(self, kernel: Tensor) -> Tensor:
        """Return B_out⁻¹ K B_in."""
        if not self._is_needed:
            return kernel
        return torch.einsum("ac,cd...,db->ab...", self.left, kernel, self.right)

    def adjoint(self, kernel: Tensor) -> Tensor:
        """Return B_out⁻ᵀ K B_inᵀ, the adjoint of :meth:`forward`: ⟨adjoint(K), L⟩ = ⟨K, forward(L)⟩."""
        if not self._is_needed:
            return kernel
        return torch.einsum("ca,cd...,bd->ab...", self.left, kernel, self.right)

    def energy(self, kernel: Tensor) -> Tensor:
        """Return ‖K‖², a tensor without dimensions."""
        return self(kernel).square().sum()


def _is_orthogonal(field: Representation) -> bool:
    basis = np.asarray(field.change_of_basis, dtype=np.float64)
    # escnn computes these matrices to rounding of float32.
    return np.allclose(basis.T @ basis, np.eye(len(basis)), rtol=0, atol=1e-6)
