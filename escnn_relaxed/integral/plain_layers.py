"""Layers that are soft in translation, as plain modules that need no escnn."""

from __future__ import annotations

from torch import Tensor, nn

from ..group.regions import RegionPartition
from ..group.remembered import Remembered
from .per_pixel import PixelKernel, integrate_per_pixel
from .regions import integrate_regions
from .stationary import ConvolutionGeometry, Geometry

__all__ = ["PerPixelConvolution", "RegionConvolution"]


class RegionConvolution(nn.Module):
    """A convolution with a filter bank for each region of the output, for images of any size.

    A transposed convolution has one for each region of the input.

    Args:
        banks: the banks of all cells, row after row, (cells², C_out, C_in/groups, k, k); those of a transposed
            convolution are (cells², C_in, C_out/groups, k, k).
        bias: (C_out,) or None.
        geometry: padding, stride and the like.
        cells: number of cells along each axis into which every image is divided.

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
        """Apply the convolution: (batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        partition = RegionPartition.of(self.geometry.domain_size(features), self.cells)
        # Detached, since the weights of cells depend only on its dtype and device.
        like = self.weight.detach()
        key = partition, like.dtype, like.device
        weights = self._remembered.get(key, lambda: partition.weights(like), [])
        banks = partition.means(self.weight, 0, weights)
        return integrate_regions(features, banks, self.bias, self.geometry, partition)


class PerPixelConvolution(nn.Module):
    """A convolution with a kernel for every pixel of the output, for images of any size.

    Args:
        kernel: K, which becomes this module's own.
        bias: (C_out,) or None.
        geometry: padding, stride and the like.

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
        """Apply the convolution: (batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        frequency = {name: getattr(self, f"frequency_{name}") for name in self._subgroups}
        kernel = PixelKernel(self.bank, self.strict, frequency, self.hardened)
        return integrate_per_pixel(features, kernel, self.bias, self.geometry)
