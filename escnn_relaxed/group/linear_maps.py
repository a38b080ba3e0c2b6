"""Linear maps of kernels and biases between fields: means over group elements, bases in which ρ is orthogonal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from escnn.group import GroupElement, Representation
from escnn.nn import FieldType
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from .exact_constants import ExactConstants
from .fields import block_diagonal

# Entries of a representation below this are rounding.
_ROUNDING = 1e-13


class GroupAverage(ExactConstants):
    """The map K → mean_h ρ_out(h) K(h⁻¹d) ρ_in(h)⁻¹ of kernels (…, C_out, C_in, T), h in a subgroup."""

    steered: Tensor
    left: Tensor
    right: Tensor

    def __init__(
        self,
        in_fields: Sequence[Representation],
        out_fields: Sequence[Representation],
        symmetries: Sequence[tuple[GroupElement, list[int]]],
    ) -> None:
        super().__init__()
        self.set_constant("steered", np.array([steered for _, steered in symmetries], dtype=np.int64))
        left = [block_diagonal([field(element) for field in out_fields]) for element, _ in symmetries]
        right = [block_diagonal([field(~element) for field in in_fields]) for element, _ in symmetries]
        self.set_constant("left", np.stack(left))
        self.set_constant("right", np.stack(right))

    def forward(self, kernel: Tensor) -> Tensor:
        """Return the mean of a kernel, in the same shape."""
        return _mean(kernel, self.left, self.steered, self.right)

    def by_blocks(self, kernels: Tensor) -> Tensor:
        """Return the mean of many sparse kernels (B, C_out, C_in, T) in double precision."""
        # Only channels that the elements mix are looked at together. Of fields that are sums of irreps these are few.
        left, right = self.exact.left, self.exact.right
        mean = torch.zeros_like(kernels)
        for rows in _mixed(left):
            for columns in _mixed(right):
                part = kernels[:, rows[:, None], columns]
                some = part.flatten(1).any(1).nonzero().flatten()
                if len(some):
                    matrices = left[:, rows[:, None], rows], self.steered, right[:, columns[:, None], columns]
                    mean[some[:, None, None], rows[:, None], columns] = _mean(part[some], *matrices)
        return mean


def _mean(kernel: Tensor, left: Tensor, steered: Tensor, right: Tensor) -> Tensor:
    """Return the mean over elements of a kernel (…, C_out, C_in, T), given their matrices and how they move taps."""
    # The taps first, as matrices of channels.
    taps = kernel.movedim(-1, 0).contiguous()
    total = torch.zeros_like(taps)
    for of_out, places, of_in in zip(left, steered, right, strict=True):
        total = total + of_out @ taps[places] @ of_in
    return (total / len(steered)).movedim(0, -1)


def _mixed(matrices: Tensor) -> list[Tensor]:
    """Return the index sets of the channels that matrices (M, C, C) mix with each other."""
    count, sets = connected_components((matrices.abs() > _ROUNDING).any(0).numpy(), directed=False)
    return [torch.from_numpy(np.flatnonzero(sets == number)) for number in range(count)]


class InvariantBias(ExactConstants):
    """The map from a value for each trivial irrep, in ``R2Conv``'s order, to the bias of each channel."""

    expansion: Tensor

    def __init__(self, out_type: FieldType) -> None:
        super().__init__()
        # The columns of the change of basis of all fields together are those of irreps, one after the other.
        irreps = [out_type.fibergroup.irrep(*name) for name in out_type.irreps]
        is_trivial = np.repeat([irrep.is_trivial() for irrep in irreps], [irrep.size for irrep in irreps])
        self.dimension = int(is_trivial.sum())
        # Not FieldType.change_of_basis, which calls what newer releases of SciPy warn of.
        whole = block_diagonal([field.change_of_basis for field in out_type.representations])
        self.set_constant("expansion", whole[:, is_trivial])

    def forward(self, values: Tensor) -> Tensor:
        """Return the bias of each channel, (C,), for the values (dimension,)."""
        return self.expansion @ values


class OrthogonalBasis(ExactConstants):
    """The map K → B_out⁻¹ K B_in of kernels (C_out, C_in/groups, T), where B takes irreps to the basis of fields."""

    def __init__(self, in_fields: Sequence[Representation], out_fields: Sequence[Representation]) -> None:
        super().__init__()
        # Many fields are of few representations.
        is_orthogonal = {}
        for number, field in {id(field): field for field in (*in_fields, *out_fields)}.items():
            basis = np.asarray(field.change_of_basis, dtype=np.float64)
            # escnn computes these matrices to rounding of float32.
            is_orthogonal[number] = np.allclose(basis.T @ basis, np.eye(len(basis)), rtol=0, atol=1e-6)
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
