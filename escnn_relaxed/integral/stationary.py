"""The filter bank applied to a feature map where it is one for all positions: a convolution, or its adjoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "ConvolutionGeometry",
    "PlanarGeometry",
    "TransposedGeometry",
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
        names = ("kernel_size", "padding_mode", "stride", "dilation", "groups")
        values: dict[str, Any] = {name: getattr(convolution, name) for name in names}
        return ConvolutionGeometry(padding=_pair(convolution.padding), **values)

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

    def domain_size(self, features: Tensor) -> tuple[int, int]:
        """Height and width of the image over which K may vary: the output."""
        return self.output_size(*image_size(features))

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


@dataclass(frozen=True)
class TransposedGeometry:
    """Where a k×k kernel is added to the output, as of ``conv_transpose2d``; paddings are (rows, columns)."""

    kernel_size: int
    padding: tuple[int, int] = (0, 0)
    output_padding: tuple[int, int] = (0, 0)
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    padding_mode: ClassVar[str] = "zeros"

    @staticmethod
    def of(convolution: nn.Module) -> TransposedGeometry:
        """That of a layer with ``R2ConvTransposed``'s attributes, whose paddings may be numbers."""
        paddings: dict[str, Any] = {name: _pair(getattr(convolution, name)) for name in ("padding", "output_padding")}
        names = ("kernel_size", "stride", "dilation", "groups")
        values: dict[str, Any] = {name: getattr(convolution, name) for name in names}
        return TransposedGeometry(**paddings, **values)

    @property
    def adjoint(self) -> ConvolutionGeometry:
        """That of the convolution whose adjoint this is, from the output to the input."""
        return ConvolutionGeometry(
            self.kernel_size, self.padding, stride=self.stride, dilation=self.dilation, groups=self.groups
        )

    @property
    def extent(self) -> int:
        """Pixels that the kernel spans."""
        return self.adjoint.extent

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output."""
        rows, columns = (
            (size - 1) * self.stride + self.extent - 2 * padding + added
            for size, padding, added in zip((height, width), self.padding, self.output_padding, strict=True)
        )
        return rows, columns

    def domain_size(self, features: Tensor) -> tuple[int, int]:
        """Height and width of the image over which K may vary: the input."""
        return image_size(features)


PlanarGeometry = ConvolutionGeometry | TransposedGeometry


def _pair(value: Any) -> tuple[int, int]:
    """A number or a pair → the pair."""
    first, second = value if isinstance(value, (tuple, list)) else (value, value)
    return first, second


def image_size(features: Tensor) -> tuple[int, int]:
    """Height and width as integers, which a trace holds as tensors."""
    return int(features.shape[2]), int(features.shape[3])


def as_convolution(
    filter_bank: Tensor, bias: Tensor | None, geometry: PlanarGeometry
) -> nn.Conv2d | nn.ConvTranspose2d:
    """A ``Conv2d`` with these weights, or a ``ConvTranspose2d``, in memory of its own.

    Args:
        filter_bank: (C_out, C_in/groups, k, k); (C_in, C_out/groups, k, k) of a transposed convolution.
        bias: (C_out,) or None.
        geometry: where taps and pixels meet.
    """
    given, made = filter_bank.shape[0], filter_bank.shape[1] * geometry.groups
    kind: type[nn.Conv2d | nn.ConvTranspose2d]
    own: dict[str, Any]
    if isinstance(geometry, TransposedGeometry):
        kind, channels, own = nn.ConvTranspose2d, (given, made), {"output_padding": geometry.output_padding}
    else:
        kind, channels, own = nn.Conv2d, (made, given), {"padding_mode": geometry.padding_mode}
    # Without drawing weights, which would change the state of the random numbers.
    convolution: nn.Conv2d | nn.ConvTranspose2d = nn.utils.skip_init(
        kind,
        *channels,
        geometry.kernel_size,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        groups=geometry.groups,
        bias=bias is not None,
        device=filter_bank.device,
        dtype=filter_bank.dtype,
        **own,
    )
    with torch.no_grad():
        convolution.weight.copy_(filter_bank)
        if bias is not None and convolution.bias is not None:
            convolution.bias.copy_(bias)
    return convolution.eval()


def integrate_stationary(
    features: Tensor, filter_bank: Tensor, bias: Tensor | None, geometry: PlanarGeometry
) -> Tensor:
    """h(x) = Σ_d K(d) f(x + d), or its adjoint, h(sx + d) = Σ K(d) f(x) for stride s.

    Args:
        features: f, (batch, C_in, H, W).
        filter_bank: (C_out, C_in/groups, k, k); (C_in, C_out/groups, k, k) of a transposed convolution.
        bias: (C_out,) or None.
        geometry: where taps and pixels meet.
    """
    padding, stride, dilation, groups = geometry.padding, geometry.stride, geometry.dilation, geometry.groups
    if isinstance(geometry, TransposedGeometry):
        return functional.conv_transpose2d(
            features, filter_bank, bias, stride, padding, geometry.output_padding, groups, dilation
        )
    if geometry.padding_mode != "zeros":
        features, padding = geometry.pad(features), (0, 0)
    return functional.conv2d(features, filter_bank, bias, stride, padding, dilation, groups)
