"""The geometry of a convolution or its adjoint, and the integral with one filter bank for all positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

Convolutions = nn.Linear | nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d | nn.ConvTranspose3d

# The operator and the module by the number of axes, here and below for the adjoint.
_CONVOLUTIONS = {2: (functional.conv2d, nn.Conv2d), 3: (functional.conv3d, nn.Conv3d)}
_TRANSPOSED = {
    2: (functional.conv_transpose2d, nn.ConvTranspose2d),
    3: (functional.conv_transpose3d, nn.ConvTranspose3d),
}


@dataclass(frozen=True)
class ConvolutionGeometry:
    """The geometry of a convolution, as of ``conv2d``; ``padding`` has a number for each axis, (rows, columns)."""

    kernel_size: int
    padding: tuple[int, ...] = (0, 0)
    padding_mode: str = "zeros"
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    @staticmethod
    def of(convolution: nn.Module) -> ConvolutionGeometry:
        """Return the geometry of a layer with ``R2Conv``'s attributes, whose padding may be a number."""
        names = ("kernel_size", "padding_mode", "stride", "dilation", "groups")
        values: dict[str, Any] = {name: getattr(convolution, name) for name in names}
        return ConvolutionGeometry(padding=_of_axes(convolution.padding, convolution), **values)

    @property
    def extent(self) -> int:
        """Pixels that the kernel spans."""
        return self.dilation * (self.kernel_size - 1) + 1

    def output_size(self, *size: int) -> tuple[int, ...]:
        """Size of the output along each axis."""
        return tuple(
            (pixels + 2 * added - self.extent) // self.stride + 1
            for pixels, added in zip(size, self.padding, strict=True)
        )

    def domain_size(self, features: Tensor) -> tuple[int, ...]:
        """Size of the image over which K may vary: the output's."""
        return self.output_size(*image_size(features))

    def pad(self, features: Tensor) -> Tensor:
        """Return the image with its padding, in the padding mode."""
        if not any(self.padding):
            return features
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        # torch takes the margins of the last axis first.
        margins = [added for axis in reversed(self.padding) for added in (axis, axis)]
        return functional.pad(features, margins, mode=mode)


@dataclass(frozen=True)
class TransposedGeometry:
    """The geometry of a transposed convolution, as of ``conv_transpose2d``; paddings have a number for each axis."""

    kernel_size: int
    padding: tuple[int, ...] = (0, 0)
    output_padding: tuple[int, ...] = (0, 0)
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    padding_mode: ClassVar[str] = "zeros"

    @staticmethod
    def of(convolution: nn.Module) -> TransposedGeometry:
        """Return the geometry of a layer with ``R2ConvTransposed``'s attributes, whose paddings may be numbers."""
        paddings: dict[str, Any] = {
            name: _of_axes(getattr(convolution, name), convolution) for name in ("padding", "output_padding")
        }
        names = ("kernel_size", "stride", "dilation", "groups")
        values: dict[str, Any] = {name: getattr(convolution, name) for name in names}
        return TransposedGeometry(**paddings, **values)

    @property
    def adjoint(self) -> ConvolutionGeometry:
        """The geometry of the convolution whose adjoint this is, from the output to the input."""
        return ConvolutionGeometry(
            self.kernel_size, self.padding, stride=self.stride, dilation=self.dilation, groups=self.groups
        )

    @property
    def extent(self) -> int:
        """Pixels that the kernel spans."""
        return self.adjoint.extent

    def output_size(self, *size: int) -> tuple[int, ...]:
        """Size of the output along each axis."""
        return tuple(
            (pixels - 1) * self.stride + self.extent - 2 * padding + added
            for pixels, padding, added in zip(size, self.padding, self.output_padding, strict=True)
        )

    def domain_size(self, features: Tensor) -> tuple[int, ...]:
        """Size of the image over which K may vary: the input's."""
        return image_size(features)


Geometry = ConvolutionGeometry | TransposedGeometry


def _of_axes(value: Any, convolution: Any) -> tuple[int, ...]:
    """Return a number for each axis of a layer, given one number or all."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * convolution.in_type.gspace.dimensionality


def image_size(features: Tensor) -> tuple[int, ...]:
    """Return the size of an image along each axis as integers, which a trace holds as tensors."""
    # Not `int` of the symbols of torch.export, which would hold the size for constant.
    sizes: tuple[Any, ...] = tuple(features.shape[2:])
    return tuple(int(size) if isinstance(size, Tensor) else size for size in sizes)


def as_convolution(filter_bank: Tensor, bias: Tensor | None, geometry: Geometry) -> Convolutions:
    """Return a ``Conv2d`` or ``ConvTranspose2d``, or those of volumes, with a copy of these weights.

    A geometry without axes makes a ``Linear``.
    """
    like: dict[str, Any] = {"bias": bias is not None, "device": filter_bank.device, "dtype": filter_bank.dtype}
    if not geometry.padding:
        linear = nn.utils.skip_init(nn.Linear, filter_bank.shape[1], filter_bank.shape[0], **like)
        return _with_weights(linear, filter_bank, bias)
    given, made = filter_bank.shape[0], filter_bank.shape[1] * geometry.groups
    axes = len(geometry.padding)
    kind: type[nn.Module]
    own: dict[str, Any]
    if isinstance(geometry, TransposedGeometry):
        kind, channels, own = _TRANSPOSED[axes][1], (given, made), {"output_padding": geometry.output_padding}
    else:
        kind, channels, own = _CONVOLUTIONS[axes][1], (made, given), {"padding_mode": geometry.padding_mode}
    # No weights are drawn, since that would change the state of the random numbers.
    convolution = nn.utils.skip_init(
        kind,
        *channels,
        geometry.kernel_size,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        groups=geometry.groups,
        **like,
        **own,
    )
    return _with_weights(convolution, filter_bank, bias)


@torch.no_grad()
def _with_weights(module: Any, weight: Tensor, bias: Tensor | None) -> Convolutions:
    """Return a module of torch in eval mode, with these weights written into it."""
    module.weight.copy_(weight)
    if bias is not None:
        module.bias.copy_(bias)
    made: Convolutions = module.eval()
    return made


def integrate_stationary(features: Tensor, filter_bank: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Return h(x) = Σ_d K(d) f(x + d), or its adjoint, h(sx + d) = Σ K(d) f(x) for stride s; K f without axes."""
    if not geometry.padding:
        return functional.linear(features, filter_bank, bias)
    padding, stride, dilation, groups = geometry.padding, geometry.stride, geometry.dilation, geometry.groups
    axes = len(padding)
    if isinstance(geometry, TransposedGeometry):
        transposed = _TRANSPOSED[axes][0]
        return transposed(features, filter_bank, bias, stride, padding, geometry.output_padding, groups, dilation)
    if geometry.padding_mode != "zeros":
        features, padding = geometry.pad(features), (0,) * axes
    return _CONVOLUTIONS[axes][0](features, filter_bank, bias, stride, padding, dilation, groups)
