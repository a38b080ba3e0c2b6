"""The mean of a kernel over elements that map taps to taps: a projection on equivariant kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from escnn.group import GroupElement
from escnn.nn import FieldType
from numpy.typing import NDArray
from torch import Tensor

from .elements import steered_taps
from .exact_constants import ExactConstants
from .fields import block_diagonal
from .points import tap_grid

__all__ = ["GroupAverage"]


class GroupAverage(ExactConstants):
    """The map K → mean_h ρ_out(h) K(h⁻¹d) ρ_in(h)⁻¹ of kernels (C_out, C_in, k, …).

    Args:
        in_type: fields of (one group of) the input.
        out_type: fields of the output.
        kernel_size: k.
        dilation: spacing of the taps in pixels.
        elements: all elements h of a subgroup.
    """

    steered: Tensor
    left: Tensor
    right: Tensor

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        dilation: int,
        elements: Sequence[GroupElement],
    ) -> None:
        super().__init__()
        gspace = in_type.gspace
        taps = tap_grid(kernel_size, dilation, gspace.dimensionality)
        steered = [steered_taps(np.asarray(gspace.basespace_action(of), dtype=np.float64), taps) for of in elements]
        if None in steered:
            moved = elements[steered.index(None)]
            raise ValueError(f"subgroup must map voxels to voxels, got one with the element {moved}")
        self.set_constant("steered", np.array(steered, dtype=np.int64))
        self.set_constant("left", np.stack([_matrix(out_type, element) for element in elements]))
        self.set_constant("right", np.stack([_matrix(in_type, ~element) for element in elements]))

    def forward(self, kernel: Tensor) -> Tensor:
        """Return the mean of a kernel, in the same shape."""
        taps = kernel.flatten(2)
        turned = [
            (left @ taps[..., steered].movedim(-1, 0) @ right).movedim(0, -1)
            for left, steered, right in zip(self.left, self.steered, self.right, strict=True)
        ]
        total: Tensor = sum(turned[1:], turned[0])
        return (total / len(turned)).view_as(kernel)


def _matrix(field_type: FieldType, element: GroupElement) -> NDArray[np.float64]:
    """Return ρ(g) of all fields, (C, C)."""
    return block_diagonal([np.asarray(field(element), dtype=np.float64) for field in field_type.representations])
