"""Layers that are soft in translation as plain modules; nothing here needs escnn."""

from __future__ import annotations

from torch import Tensor, nn

from ..group.regions import RegionPartition
from ..group.remembered import Remembered
from .per_pixel import PixelKernel, integrate_per_pixel
from .regions import integrate_regions
from .stationary import ConvolutionGeometry, Geometry

__all__ = ["PerPixelConvolution", "RegionConvolution"]


class RegionConvolution(nn.Module):
    """A filter bank in each region of the output, of a transposed one of the input, for images of any size.

    Args:
        banks: of all cells, row after row, (cells², C_out, C_in/groups, k, k); (cells², C_in, C_out/groups, k, k) of a
            transposed one.
        bias: (C_out,) or None.
        geometry: where taps and pixels meet.
        cells: into how many cells along each axis any image is divided.

    Shape:
        (batch, C_in, H, W) → (batch, C_out, H_out, W_out).
    """

    def __init__(self, banks: Tensor, bias: Tensor | None, geometry: Geometry, cells: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(banks)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.geometry = geometry
        self.cells = cells
        self._remembered = Remembered()

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        partition = RegionPartition.of(self.geometry.domain_size(features), self.cells)
        # Detached: the weights of cells depend on its dtype and device alone.
        like = self.weight.detach()
        key = partition, like.dtype, like.device
        weights = self._remembered.get(key, lambda: partition.weights(like), [])
        banks = partition.means(self.weight, 0, weights)
        return integrate_regions(features, banks, self.bias, self.geometry, partition)


class PerPixelConvolution(nn.Module):
    """A kernel for every pixel of the output, for images of any size.

    Args:
        kernel: K, which becomes this module's own.
        bias: (C_out,) or None.
        geometry: where taps and pixels meet.

    Shape:
        (batch, C_in, H, W) → (batch, C_out, H_out, W_out).
    """

    def __init__(self, kernel: PixelKernel, bias: Tensor | None, geometry: ConvolutionGeometry) -> None:
        super().__init__()
        self.bank = kernel.bank
        self.strict = None if kernel.strict is None else nn.Parameter(kernel.strict)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.hardened = tuple(kernel.hardened)
        self.geometry = geometry
        self._subgroups = tuple(kernel.frequency)
        for name, value in kernel.frequency.items():
            self.register_buffer(f"frequency_{name}", value)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        frequency = {name: getattr(self, f"frequency_{name}") for name in self._subgroups}
        kernel = PixelKernel(self.bank, self.strict, frequency, self.hardened)
        return integrate_per_pixel(features, kernel, self.bias, self.geometry)
