"""The kernel of ``R2Conv`` that is nearest to any kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernel.orthogonal_basis import OrthogonalBasis
from ..kernel.steerable_basis import SteerableBasis

__all__ = ["nearest_steerable"]

# Directions of a basis that are smaller than this part of the largest count as dependent on the others.
_DEPENDENT = 1e-10


def nearest_steerable(kernel: Tensor, basis: SteerableBasis, orthogonal: OrthogonalBasis) -> Tensor:
    """Return the projection of a kernel (C_out, C_in/groups, k, k) on a steerable basis, where ρ is orthogonal."""
    taps = orthogonal.adjoint(orthogonal(kernel)).flatten(2)
    weights = []
    for number, (pair, elements) in enumerate(zip(basis._pairs, basis.of_pairs(), strict=True)):
        gram = getattr(basis, f"gram_{number}")
        place = torch.from_numpy(pair.out_channels[:, None]), torch.from_numpy(pair.in_channels)
        size = pair.out_count, elements.shape[1], pair.in_count, elements.shape[2]
        block = taps[place].view(*size, -1)
        products = torch.einsum("noimt,bomt->nib", block, elements).flatten(0, 1)
        inverse = torch.linalg.pinv(gram.double(), rtol=_DEPENDENT, hermitian=True).to(gram)
        weights.append((products @ inverse).flatten())
    return basis(torch.cat([kernel.new_zeros(0), *weights]))
