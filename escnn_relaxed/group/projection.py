"""The mean of a kernel over elements that map taps to taps: a projection on equivariant kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from escnn.group import GroupElement, Representation
from numpy.typing import NDArray
from torch import Tensor

from .exact_constants import ExactConstants
from .fields import block_diagonal

__all__ = ["GroupAverage"]


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
        self.set_constant("left", np.stack([_matrix(out_fields, element) for element, _ in symmetries]))
        self.set_constant("right", np.stack([_matrix(in_fields, ~element) for element, _ in symmetries]))

    def forward(self, kernel: Tensor) -> Tensor:
        """Return the mean of a kernel, in the same shape."""
        total = torch.zeros_like(kernel)
        for left, steered, right in zip(self.left, self.steered, self.right, strict=True):
            # The taps first, as matrices of channels.
            total = total + (left @ kernel[..., steered].movedim(-1, 0) @ right).movedim(0, -1)
        return total / len(self.steered)


def _matrix(fields: Sequence[Representation], element: GroupElement) -> NDArray[np.float64]:
    """Return ρ(g) of all fields, (C, C)."""
    return block_diagonal([np.asarray(field(element), dtype=np.float64) for field in fields])
