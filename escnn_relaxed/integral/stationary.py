"""The filter bank applied to a feature map where it is one for all positions: a convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "ConvolutionGeometry",
    "as_convolution",
    "image_size",
    "integrate_stationary",
]


@dataclass(frozen=True)
class ConvolutionGeometry:
    """Where a k×k kernel meets the image, as of ``conv2d``; ``padding`` is (rows, columns)."""

    kernel_size: int
    padding: tuple[int, int] = (0, 0)
    padding_mode: str = "zeros"
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    @staticmethod
    def of(convolution: nn.Module) -> ConvolutionGeometry:
        """That of a layer with ``R2Conv``'s attributes, whose padding may be a number."""
        padding: Any = convolution.padding
        rows, columns = padding if isinstance(padding, tuple) else (padding, padding)
        names = ("kernel_size", "padding_mode", "stride", "dilation", "groups")
        values: dict[str, Any] = {name: getattr(convolution, name) for name in names}
        return ConvolutionGeometry(padding=(rows, columns), **values)

    @property
    def extent(self) -> int:
        """Pixels that the kernel spans."""
        return self.dilation * (self.kernel_size - 1) + 1

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output."""
        rows, columns = self.padding
        return (
            (height + 2 * rows - self.extent) // self.stride + 1,
            (width + 2 * columns - self.extent) // self.stride + 1,
        )

    def pad(self, features: Tensor) -> Tensor:
        """The image with its padding, in the padding mode."""
        rows, columns = self.padding
        if not rows and not columns:
            return features
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return functional.pad(features, (columns, columns, rows, rows), mode=mode)

    def window(self, tap: int, height: int, width: int) -> tuple[slice, slice]:
        """Rows and columns of the padded image that one tap reads for an output of this size."""
        row, column = divmod(tap, self.kernel_size)
        return self._reads(row, height), self._reads(column, width)

    def _reads(self, tap: int, count: int) -> slice:
        start = tap * self.dilation
        return slice(start, start + (count - 1) * self.stride + 1, self.stride)


def image_size(features: Tensor) -> tuple[int, int]:
    """Height and width as integers, which a trace holds as tensors."""
    return int(features.shape[2]), int(features.shape[3])


def as_convolution(filter_bank: Tensor, bias: Tensor | None, geometry: ConvolutionGeometry) -> nn.Conv2d:
    """A ``Conv2d`` with these weights, in memory of its own.

    Args:
        filter_bank: (C_out, C_in/groups, k, k).
        bias: (C_out,) or None.
        geometry: where taps and pixels meet.
    """
    out_channels, in_channels = filter_bank.shape[:2]
    # Without drawing weights, which would change the state of the random numbers.
    convolution: nn.Conv2d = nn.utils.skip_init(
        nn.Conv2d,
        in_channels * geometry.groups,
        out_channels,
        geometry.kernel_size,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        groups=geometry.groups,
        bias=bias is not None,
        padding_mode=geometry.padding_mode,
        device=filter_bank.device,
        dtype=filter_bank.dtype,
    )
    with torch.no_grad():
        convolution.weight.copy_(filter_bank)
        if bias is not None and convolution.bias is not None:
            convolution.bias.copy_(bias)
    return convolution.eval()


def integrate_stationary(
    features: Tensor, filter_bank: Tensor, bias: Tensor | None, geometry: ConvolutionGeometry
) -> Tensor:
    """h(x) = Σ_d K(d) f(x + d).

    Args:
        features: f, (batch, C_in, H, W).
        filter_bank: (C_out, C_in/groups, k, k).
        bias: (C_out,) or None.
        geometry: where taps and pixels meet.
    """
    padding = geometry.padding
    if geometry.padding_mode != "zeros":
        features, padding = geometry.pad(features), (0, 0)
    return functional.conv2d(features, filter_bank, bias, geometry.stride, padding, geometry.dilation, geometry.groups)
