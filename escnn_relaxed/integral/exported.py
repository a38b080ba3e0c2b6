"""Layers that are soft in translation, as plain modules that need no escnn."""

from __future__ import annotations

from torch import Tensor, nn

from ..group.regions import RegionPartition
from .geometry import Geometry
from .regions import integrate

__all__ = ["RegionConvolution"]


class RegionConvolution(nn.Module):
    """A convolution with a bank for each region of the output (of an adjoint: input), for images of any size."""

    def __init__(self, banks: Tensor, bias: Tensor | None, geometry: Geometry, cells: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(banks)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.geometry = geometry
        self.cells = cells

    def forward(self, features: Tensor) -> Tensor:
        """Apply the convolution: (batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        partition = RegionPartition.of(self.geometry.domain_size(features), self.cells)
        return integrate(features, partition.means(self.weight, 0), self.bias, self.geometry, partition)
