"""Means over subgroups: matrices (M, M) on a sampled group, and of kernels over elements that map taps to taps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from escnn.group import GroupElement, Representation
from numpy.typing import NDArray
from torch import Tensor

from .exact_constants import ExactConstants
from .fields import block_diagonal


def mean_matrix(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the matrix that takes values at M elements to their means over translates (M, L), (M, M)."""
    matrix = np.zeros((len(numbers), len(numbers)))
    np.put_along_axis(matrix, numbers, 1 / numbers.shape[1], axis=1)
    return matrix


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
        """Return the mean of many kernels (B, C_out, C_in, T) in double precision, most entries of which are 0.

        Only channels that the elements mix are looked at together. Of fields that are sums of irreps these are few.
        """
        left, right = self.exact("left"), self.exact("right")
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


# Entries of a representation below this are rounding.
_ROUNDING = 1e-13


def _mixed(matrices: Tensor) -> list[Tensor]:
    """Return the numbers of the channels that matrices (M, C, C) mix with each other, of each such set."""
    mixes = (matrices.abs() > _ROUNDING).any(0) | torch.eye(matrices.shape[-1], dtype=torch.bool)
    reached = (mixes | mixes.T).double()
    while not torch.equal(further := (reached @ reached).clamp_max(1), reached):
        reached = further
    return [row.nonzero().flatten() for row in reached.unique(dim=0)]
