"""The bodies of classifiers: four plain convolutions, a residual network, and fields of irreps with gates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType
from torch import nn
from torch.nn import functional

GSPACES: dict[str, Callable[[], Any]] = {
    "C1": gspaces.trivialOnR2,
    "C2": lambda: gspaces.rot2dOnR2(2),
    "C4": lambda: gspaces.rot2dOnR2(4),
    "C8": lambda: gspaces.rot2dOnR2(8),
    "D1": lambda: gspaces.flip2dOnR2(),
    "D2": lambda: gspaces.flipRot2dOnR2(2),
    "D4": lambda: gspaces.flipRot2dOnR2(4),
    "SO(2)": lambda: gspaces.rot2dOnR2(-1, maximum_frequency=3),
    # Translations, and those to the side, need no fiber group.
    "T": gspaces.trivialOnR2,
    "T1": gspaces.trivialOnR2,
}
FIRST_KERNEL, KERNEL = 7, 5


class Module(enn.EquivariantModule):  # type: ignore[misc]
    """A map of fields, whose size is asked of its output."""

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the output."""
        return tuple(self(self.in_type(torch.zeros(input_shape))).shape)


@dataclass(frozen=True)
class Layers:
    """Makes the convolutions of a body, those of the last layer or stage by ``last``."""

    layer: Callable[..., nn.Module]
    last: Callable[..., nn.Module]
    # The last layer or stage is of the trivial group.
    restricts: bool = False
    # Opposite sides of an image are one.
    is_periodic: bool = False
    # After each layer a bias for each channel, times waves along so many axes; None for none.
    bias_axes: int | None = None

    def __call__(
        self, in_type: FieldType, out_type: FieldType, size: int, is_last: bool = False, **arguments: Any
    ) -> nn.Module:
        """Return one convolution."""
        options = {"padding_mode": "circular"} if self.is_periodic else {}
        layer = (self.last if is_last else self.layer)(in_type, out_type, size, **arguments, **options)
        return layer if self.bias_axes is None else enn.SequentialModule(layer, FreeBias(out_type, self.bias_axes))

    def pooling(self, fields: FieldType) -> nn.Module:
        """Return anti-aliased pooling by 2."""
        return _TorusPooling(fields) if self.is_periodic else enn.PointwiseAvgPoolAntialiased(fields, 0.66, 2)


def regular(gspace: Any, width: int) -> FieldType:
    """Return regular fields."""
    return FieldType(gspace, [gspace.regular_repr] * width)


def _restriction(fields: FieldType) -> enn.RestrictionModule:
    """Return the restriction of fields to the trivial group."""
    return enn.RestrictionModule(fields, (None, 1) if "D" in fields.gspace.fibergroup.name else 1)


def _activated(layer: nn.Module) -> list[nn.Module]:
    """Return a convolution with batch norm and ReLU."""
    return [layer, enn.InnerBatchNorm(layer.out_type), enn.ReLU(layer.out_type)]


def _block(gspace: Any, width: int) -> list[nn.Module]:
    """Return batch norm and a nonlinearity, of regular fields or of irreps up to frequency 2."""
    if gspace.fibergroup.order() > 0:
        fields = regular(gspace, width)
        return [enn.InnerBatchNorm(fields), enn.ReLU(fields)]
    vectors = FieldType(gspace, [gspace.irrep(1)] * width + [gspace.irrep(2)] * (2 * width // 3))
    scalars = FieldType(gspace, [gspace.trivial_repr] * (4 * width // 3))
    gated = FieldType(gspace, [gspace.trivial_repr] * len(vectors)) + vectors
    labels = ["scalar"] * len(scalars) + ["gated"] * len(gated)
    modules = [(enn.ReLU(scalars), "scalar"), (enn.GatedNonLinearity1(gated), "gated")]
    return [enn.IIDBatchNorm2d(scalars + gated), enn.MultipleModule(scalars + gated, labels, modules)]


def plain_stages(fields: FieldType, layers: Layers, widths: Sequence[int], last_kernel: int | None) -> list[nn.Module]:
    """Return four convolutions, with anti-aliased pooling by 2 between them."""
    modules: list[nn.Module] = []
    for number, width in enumerate(widths):
        is_last = number == len(widths) - 1
        if is_last and layers.restricts:
            modules.append(_restriction(fields))
            fields = modules[-1].out_type
        size = KERNEL if number else FIRST_KERNEL
        size, padding = (last_kernel, 0) if is_last and last_kernel else (size, size // 2)
        block = _block(fields.gspace, width)
        modules += [layers(fields, block[0].in_type, size, is_last, padding=padding), *block]
        fields = block[-1].out_type
        if not is_last:
            modules.append(layers.pooling(fields))
    return modules


def residual_stages(fields: FieldType, layers: Layers, widths: Sequence[int]) -> list[nn.Module]:
    """Return two convolutions and five residual blocks in three stages, twelve convolutions of 3×3 in all."""
    first, second = (regular(fields.gspace, width) for width in widths[:2])
    modules = [
        *_activated(layers(fields, first, 3, padding=1)),
        *_activated(layers(first, first, 3, padding=1)),
        _Residual(first, first, layers),
        _Residual(first, second, layers),
        _Residual(second, second, layers),
    ]
    if layers.restricts:
        modules.append(_restriction(second))
    before = modules[-1].out_type
    third = regular(before.gspace, widths[2])
    return [*modules, _Residual(before, third, layers, is_last=True), _Residual(third, third, layers, is_last=True)]


class _Residual(Module):
    """Two convolutions beside a shortcut; the first one halves the image where the fields change."""

    def __init__(self, in_type: FieldType, out_type: FieldType, layers: Layers, is_last: bool = False) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        stride = 1 if in_type == out_type else 2
        first = _activated(layers(in_type, out_type, 3, is_last, padding=1, stride=stride))
        second = layers(out_type, out_type, 3, is_last, padding=1)
        self.body = enn.SequentialModule(*first, second, enn.InnerBatchNorm(out_type))
        self.shortcut = layers(in_type, out_type, 1, is_last, stride=2) if stride == 2 else enn.IdentityModule(in_type)
        self.activation = enn.ReLU(out_type)

    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        """(batch, C_in, H, W) → (batch, C_out, H/stride, W/stride)."""
        return self.activation(self.body(input) + self.shortcut(input))


class FreeBias(Module):
    """A bias for each channel, where an equivariant layer has one for each field: the simplest way to break a symmetry.

    Along the last axes of an image that a symmetry shifts, there are two biases, times cos and sin of the place.
    """

    def __init__(self, in_type: FieldType, axes: int) -> None:
        super().__init__()
        self.in_type = self.out_type = in_type
        self.axes, self.bias = axes, nn.Parameter(torch.zeros(in_type.size, max(2 * axes, 1)))

    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        """(batch, C, H, W) → the same shape."""
        shape = input.tensor.shape[2:]
        places = torch.meshgrid(*(2 * math.pi / side * torch.arange(side) for side in shape), indexing="ij")
        waves = [wave(place) for place in places[2 - self.axes :] for wave in (torch.cos, torch.sin)]
        biases = self.bias @ torch.stack(waves or [torch.ones(shape)]).flatten(1)
        return self.out_type(input.tensor + biases.view(-1, *shape))


class _TorusPooling(Module):
    """Every other pixel of a 5×5 binomial mean, on the torus."""

    def __init__(self, in_type: FieldType) -> None:
        super().__init__()
        self.in_type = self.out_type = in_type
        row = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
        self.register_buffer("kernel", torch.outer(row, row).expand(in_type.size, 1, 5, 5).clone())

    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        """(batch, C, H, W) → (batch, C, H/2, W/2)."""
        padded = functional.pad(input.tensor, (2, 2, 2, 2), mode="circular")
        return self.out_type(functional.conv2d(padded, self.kernel, stride=2, groups=self.in_type.size))
