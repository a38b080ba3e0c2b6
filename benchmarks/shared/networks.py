"""The networks that the accuracy benchmark trains, each in ``R2Conv`` and in ``RelaxedR2Conv``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from torch import Tensor, nn
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv

__all__ = ["NETWORKS", "build_network"]

Fields = Callable[[Any, int], enn.FieldType]


def _regular(gspace: Any, width: int) -> enn.FieldType:
    return enn.FieldType(gspace, [gspace.regular_repr] * width)


def _mixed(gspace: Any, width: int) -> enn.FieldType:
    some = [gspace.regular_repr, gspace.regular_repr, gspace.quotient_repr(2), gspace.trivial_repr]
    return enn.FieldType(gspace, some * max(width // 3, 1))


def _plain(gspace: Any, width: int) -> enn.FieldType:
    return enn.FieldType(gspace, [gspace.trivial_repr] * (2 * width))


def _vectors(gspace: Any, width: int) -> enn.FieldType:
    """Fields of frequency 1 and 2, three to two."""
    frequencies = [1] * (3 * width // 3) + [2] * (2 * width // 3)
    irreps = [gspace.irrep(1, f) if gspace.flips_order else gspace.irrep(f) for f in frequencies]
    return enn.FieldType(gspace, irreps)


# Name → gspace, and the fields of a layer of some width.
FIELDS: dict[str, tuple[Callable[[], Any], Fields]] = {
    "C4 regular": (lambda: gspaces.rot2dOnR2(4), _regular),
    "C8 regular": (lambda: gspaces.rot2dOnR2(8), _regular),
    "C8 regular, quotient, trivial": (lambda: gspaces.rot2dOnR2(8), _mixed),
    "D4 regular": (lambda: gspaces.flipRot2dOnR2(4), _regular),
    "D8 regular": (lambda: gspaces.flipRot2dOnR2(8), _regular),
    "plain CNN": (gspaces.trivialOnR2, _plain),
}
GATED = {
    "SO(2) irreps, gated": lambda: gspaces.rot2dOnR2(-1, maximum_frequency=3),
    "O(2) irreps, gated": lambda: gspaces.flipRot2dOnR2(-1, maximum_frequency=3),
}
# Without a border, from which a strict network could tell where it is.
ON_TORUS = {"plain CNN on the torus": "plain CNN"}
WIDE_RESNETS: dict[str, tuple[Callable[[], Any], Fields]] = {
    "C4 Wide-ResNet": (lambda: gspaces.rot2dOnR2(4), _regular),
    "plain Wide-ResNet": (gspaces.trivialOnR2, _plain),
}
NETWORKS = (*FIELDS, *ON_TORUS, *GATED, *WIDE_RESNETS)


def build_network(
    name: str,
    widths: tuple[int, ...],
    kernel_size: int,
    options: dict[str, Any] | None,
    layer: Callable[..., nn.Module] = RelaxedR2Conv,
) -> nn.Module:
    """A network (batch, channels, 33, 33) → logits (batch, 10).

    Args:
        name: one of :data:`NETWORKS`.
        widths: fields of each convolution, or of each stage of a Wide-ResNet.
        kernel_size: k of the convolutions; the first has k + 2.
        options: arguments of ``layer``; None for ``R2Conv``.
        layer: what the convolutions are.
    """
    convolution = _Convolution(options, "circular" if name in ON_TORUS else "zeros", layer)
    if name in WIDE_RESNETS:
        build_gspace, build_fields = WIDE_RESNETS[name]
        gspace = build_gspace()
        return WideResNet(gspace, [build_fields(gspace, width) for width in widths], convolution)
    if name in GATED:
        return GatedNetwork(GATED[name](), widths, kernel_size, convolution)
    build_gspace, build_fields = FIELDS[ON_TORUS.get(name, name)]
    gspace = build_gspace()
    return FieldNetwork(gspace, [build_fields(gspace, width) for width in widths], kernel_size, convolution)


class _Convolution:
    """Builds one convolution without bias and with as much padding as keeps the size."""

    def __init__(self, options: dict[str, Any] | None, padding_mode: str, layer: Callable[..., nn.Module]) -> None:
        self._options = options
        self._layer = layer
        self.padding_mode = padding_mode

    def __call__(self, in_type: enn.FieldType, out_type: enn.FieldType, kernel_size: int, stride: int = 1) -> nn.Module:
        arguments = {"kernel_size": kernel_size, "padding": kernel_size // 2, "stride": stride, "bias": False}
        arguments["padding_mode"] = self.padding_mode
        if self._options is None:
            return enn.R2Conv(in_type, out_type, **arguments)
        return self._layer(in_type, out_type, **arguments, **self._options)


class _Classifier(nn.Module):
    """An equivariant body to invariant features, their mean over the image, and one linear layer."""

    def __init__(self, in_type: enn.FieldType, modules: list[nn.Module]) -> None:
        super().__init__()
        self.in_type = in_type
        self.body = enn.SequentialModule(*modules)
        self.head = nn.Linear(self.body.out_type.size, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, 10) of images (batch, channels, 33, 33)."""
        features: Tensor = self.body(self.in_type(images)).tensor
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


class FieldNetwork(_Classifier):
    """Convolutions with batch norm and ReLU, anti-aliased pooling between them, group pooling."""

    def __init__(self, gspace: Any, types: list[enn.FieldType], kernel_size: int, convolution: _Convolution) -> None:
        in_type = fields = enn.FieldType(gspace, [gspace.trivial_repr])
        modules: list[nn.Module] = []
        for number, out_type in enumerate(types):
            size = kernel_size + 2 if number == 0 else kernel_size
            modules += [convolution(fields, out_type, size), enn.InnerBatchNorm(out_type), enn.ReLU(out_type)]
            if number < len(types) - 1:
                modules.append(_pooling(out_type, convolution.padding_mode))
            fields = out_type
        super().__init__(in_type, [*modules, enn.GroupPooling(fields)])


def _pooling(fields: enn.FieldType, padding_mode: str) -> nn.Module:
    if padding_mode == "zeros":
        return enn.PointwiseAvgPoolAntialiased(fields, 0.66, 2)
    return _TorusPooling(fields)


class _TorusPooling(enn.EquivariantModule):  # type: ignore[misc]
    """Every other pixel of a 5×5 binomial mean, on the torus."""

    def __init__(self, in_type: enn.FieldType) -> None:
        super().__init__()
        self.in_type = self.out_type = in_type
        row = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
        self.register_buffer("kernel", torch.outer(row, row).expand(in_type.size, 1, 5, 5).clone())

    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        """(batch, C, H, W) → (batch, C, ⌈H/2⌉, ⌈W/2⌉)."""
        padded = functional.pad(input.tensor, (2, 2, 2, 2), mode="circular")
        return self.out_type(functional.conv2d(padded, self.kernel, stride=2, groups=self.in_type.size))

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Half the height and the width, rounded up."""
        return *input_shape[:2], (input_shape[2] + 1) // 2, (input_shape[3] + 1) // 2


class GatedNetwork(_Classifier):
    """Invariant fields with ReLU, fields of frequency 1 and 2 with gates; the last layer is invariant."""

    def __init__(self, gspace: Any, widths: tuple[int, ...], kernel_size: int, convolution: _Convolution) -> None:
        in_type = fields = enn.FieldType(gspace, [gspace.trivial_repr])
        modules: list[nn.Module] = []
        for number, width in enumerate(widths):
            is_last = number == len(widths) - 1
            size = kernel_size + 2 if number == 0 else kernel_size
            block = _invariant_block(gspace, width) if is_last else _gated_block(gspace, width)
            modules += [convolution(fields, block[0].in_type, size), *block]
            fields = block[-1].out_type
            if not is_last:
                modules.append(enn.PointwiseAvgPoolAntialiased(fields, 0.66, 2))
        super().__init__(in_type, modules)


def _invariant_block(gspace: Any, width: int) -> list[nn.Module]:
    fields = enn.FieldType(gspace, [gspace.trivial_repr] * (4 * width))
    return [enn.InnerBatchNorm(fields), enn.ReLU(fields)]


def _gated_block(gspace: Any, width: int) -> list[nn.Module]:
    vectors = _vectors(gspace, width)
    scalars = enn.FieldType(gspace, [gspace.trivial_repr] * (4 * width // 3))
    gated = enn.FieldType(gspace, [gspace.trivial_repr] * len(vectors)) + vectors
    labels = ["scalar"] * len(scalars) + ["gated"] * len(gated)
    fields = scalars + gated
    return [
        enn.IIDBatchNorm2d(fields),
        enn.MultipleModule(fields, labels, [(enn.ReLU(scalars), "scalar"), (enn.GatedNonLinearity1(gated), "gated")]),
    ]


class WideResNet(_Classifier):
    """One pre-activation block in each of three stages, after the Wide-ResNet of escnn's examples."""

    def __init__(self, gspace: Any, types: list[enn.FieldType], convolution: _Convolution) -> None:
        in_type = enn.FieldType(gspace, [gspace.trivial_repr] * 3)
        fields = types[0]
        modules: list[nn.Module] = [convolution(in_type, fields, 5)]
        for number, out_type in enumerate(types):
            block = WideBlock(fields, out_type, 1 if number == 0 else 2, convolution)
            modules.append(block)
            fields = block.out_type
        super().__init__(in_type, [*modules, enn.InnerBatchNorm(fields), enn.ReLU(fields), enn.GroupPooling(fields)])


class WideBlock(enn.EquivariantModule):  # type: ignore[misc]
    """x → shortcut(x) + two 3×3 convolutions, each after batch norm and ReLU."""

    def __init__(self, in_type: enn.FieldType, out_type: enn.FieldType, stride: int, convolution: _Convolution) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        self.activation = enn.SequentialModule(enn.InnerBatchNorm(in_type), enn.ReLU(in_type))
        self.residual = enn.SequentialModule(
            convolution(in_type, out_type, 3),
            enn.InnerBatchNorm(out_type),
            enn.ReLU(out_type),
            convolution(out_type, out_type, 3, stride),
        )
        is_plain = stride == 1 and in_type == out_type
        self.shortcut = None if is_plain else convolution(in_type, out_type, 1, stride)

    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        """(batch, C_in, H, W) → (batch, C_out, H/stride, W/stride)."""
        active = self.activation(input)
        return self.residual(active) + (input if self.shortcut is None else self.shortcut(active))

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the residual branch."""
        shape: tuple[int, ...] = self.residual.evaluate_output_shape(input_shape)
        return shape
