"""The norm of kernels, and the share of their energy that is not equivariant (equations (6) and (7))."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..group.exact_constants import ExactConstants
from ..group.fields import block_diagonal

if TYPE_CHECKING:
    from escnn.group import Representation

_Kernel = TypeVar("_Kernel", bound=nn.Module)

_HALF = frozenset({torch.float16, torch.bfloat16})
# Below this many units in the last place √s is rounding. In bfloat16 that alone would be a percent of the energy.
_ROUNDING = 16
_MOST_ROUNDING = 5e-3


def soft_share(soft: Tensor, strict: Tensor) -> Tensor:
    """Return ‖K − PK‖² / (‖PK‖² + ‖K − PK‖²) from both energies; 0 where the first is rounding, NaN of NaN."""
    # ‖K‖² where the group maps the pixel grid to itself. Elsewhere K − PK and PK are only nearly orthogonal, and this
    # form keeps the result in [0, 1].
    total = soft + strict
    # Equal kernels differ by rounding alone. There the gradient of √s would point in a random direction.
    rounding = min(_ROUNDING * torch.finfo(total.dtype).eps, _MOST_ROUNDING)
    is_rounding = soft <= rounding**2 * total
    return torch.where(is_rounding, 0, soft / torch.where(is_rounding, 1, total))


def at_least_single(kernel: _Kernel, weights: Tensor | None) -> tuple[_Kernel, Tensor | None]:
    """Return a kernel and its weights, or of half precision, where K and PK would be equal, a float32 copy of both."""
    tensors = [] if weights is None else [weights]
    for part in kernel.modules():
        for value in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):
            if isinstance(value, Tensor):
                tensors.append(value)
    if _HALF.isdisjoint(map(attrgetter("dtype"), tensors)):
        return kernel, weights
    # The copy holds tensors that gradients flow through.
    singles = {id(value): value.float() if value.is_floating_point() else value for value in tensors}
    return copy.deepcopy(kernel, dict(singles)), None if weights is None else singles[id(weights)]


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
