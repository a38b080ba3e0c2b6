"""The geometry of a convolution or its adjoint, and torch's module of it. Runs without escnn."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Self

Convolutions = nn.Linear | nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d | nn.ConvTranspose3d

# The module by the number of axes, of a convolution and of its adjoint.
_MODULES: dict[int, tuple[type[nn.Module], type[nn.Module]]] = {
    2: (nn.Conv2d, nn.ConvTranspose2d),
    3: (nn.Conv3d, nn.ConvTranspose3d),
}


@dataclass(frozen=True)
class _Shared:
    """Base of the geometry of a convolution and its adjoint; ``padding`` has a number for each axis."""

    kernel_size: int
    padding: tuple[int, ...] = (0, 0)
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    @classmethod
    def of(cls, convolution: Any) -> Self:
        """Return the geometry of a layer with escnn's attributes, whose paddings may be numbers."""
        values = {field.name: getattr(convolution, field.name) for field in fields(cls)}
        for name in {"padding", "output_padding"} & values.keys():
            if not isinstance(values[name], (tuple, list)):
                values[name] = (values[name],) * convolution.in_type.gspace.dimensionality
            values[name] = tuple(values[name])
        return cls(**values)

    @property
    def extent(self) -> int:
        """The number of pixels that the kernel spans."""
        return self.dilation * (self.kernel_size - 1) + 1


@dataclass(frozen=True)
class ConvolutionGeometry(_Shared):
    """The geometry of a convolution, as in ``conv2d``."""

    padding_mode: str = "zeros"

    def output_size(self, *size: int) -> tuple[int, ...]:
        """Return the size of the output along each axis."""
        extent, output = self.extent, []
        for pixels, added in zip(size, self.padding, strict=True):
            output.append((pixels + 2 * added - extent) // self.stride + 1)
        return tuple(output)

    def domain_size(self, features: Tensor) -> tuple[int, ...]:
        """Return the size of the image over which K may vary: the output's."""
        return self.output_size(*image_size(features))

    def pad(self, features: Tensor) -> Tensor:
        """Return the padded image."""
        if not any(self.padding):
            return features
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        # torch takes the margins of the last axis first.
        margins = [added for axis in reversed(self.padding) for added in (axis, axis)]
        return functional.pad(features, margins, mode=mode)


@dataclass(frozen=True)
class TransposedGeometry(_Shared):
    """The geometry of a transposed convolution, as in ``conv_transpose2d``."""

    output_padding: tuple[int, ...] = (0, 0)
    padding_mode: ClassVar[str] = "zeros"

    def output_size(self, *size: int) -> tuple[int, ...]:
        """Return the size of the output along each axis."""
        return tuple(
            (pixels - 1) * self.stride + self.extent - 2 * padding + added
            for pixels, padding, added in zip(size, self.padding, self.output_padding, strict=True)
        )

    def domain_size(self, features: Tensor) -> tuple[int, ...]:
        """Return the size of the image over which K may vary: the input's."""
        return image_size(features)


Geometry = ConvolutionGeometry | TransposedGeometry


def image_size(features: Tensor) -> tuple[int, ...]:
    """Return the size of an image along each axis as integers, which a trace holds as tensors."""
    # Not `int` of the symbols of torch.export, which would hold the size for constant.
    sizes: tuple[Any, ...] = tuple(features.shape[2:])
    return tuple(int(size) if isinstance(size, Tensor) else size for size in sizes)


def as_convolution(filter_bank: Tensor, bias: Tensor | None, geometry: Geometry) -> Convolutions:
    """Return torch's module for a geometry, with a copy of the weights; a ``Linear`` if it has no axes."""
    axes = len(geometry.padding)
    is_transposed = isinstance(geometry, TransposedGeometry)
    channels = filter_bank.shape[1] * geometry.groups, filter_bank.shape[0]
    kind = _MODULES[axes][is_transposed] if axes else nn.Linear
    arguments = asdict(geometry) if axes else {}
    if not axes:
        # A Linear has no groups: theirs are the blocks of its matrix.
        filter_bank = torch.block_diag(*filter_bank.chunk(geometry.groups))
    like = {"bias": bias is not None, "device": filter_bank.device, "dtype": filter_bank.dtype}
    # No weights are drawn, since that would change the state of the random numbers.
    module: Any = nn.utils.skip_init(kind, *channels[:: -1 if is_transposed else 1], **arguments, **like).eval()
    with torch.no_grad():
        module.weight.copy_(filter_bank)
        if bias is not None:
            module.bias.copy_(bias)
    return module
