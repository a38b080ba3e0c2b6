"""The networks that the benchmarks of accuracy train, each in ``R2Conv`` and in ``RelaxedR2Conv``."""

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


def _plain(gspace: Any, width: int) -> enn.FieldType:
    return enn.FieldType(gspace, [gspace.trivial_repr] * (2 * width))


def _vectors(gspace: Any, width: int) -> enn.FieldType:
    """Fields of frequency 1 and 2, three to two."""
    frequencies = [1] * (3 * width // 3) + [2] * (2 * width // 3)
    return enn.FieldType(gspace, [gspace.irrep(frequency) for frequency in frequencies])


# Name → gspace, and the fields of a layer of some width.
FIELDS: dict[str, tuple[Callable[[], Any], Fields]] = {
    "C4 regular": (lambda: gspaces.rot2dOnR2(4), _regular),
    "C8 regular": (lambda: gspaces.rot2dOnR2(8), _regular),
    "D4 regular": (lambda: gspaces.flipRot2dOnR2(4), _regular),
    "plain CNN": (gspaces.trivialOnR2, _plain),
}
GATED = "SO(2) irreps, gated"
# Without a border, from which a strict network could tell where it is.
ON_TORUS = {"plain CNN on the torus": "plain CNN"}
NETWORKS = (*FIELDS, *ON_TORUS, GATED)


def build_network(
    name: str,
    widths: tuple[int, ...],
    kernel_size: int,
    options: dict[str, Any] | None,
    layer: Callable[..., nn.Module] = RelaxedR2Conv,
    channels: int = 1,
) -> nn.Module:
    """A network (batch, channels, 33, 33) → logits (batch, 10).

    Args:
        name: one of :data:`NETWORKS`.
        widths: fields of each convolution.
        kernel_size: k of the convolutions; the first has k + 2.
        options: arguments of ``layer``; None for ``R2Conv``.
        layer: what the convolutions are.
        channels: those of an image; a network of irreps takes one.
    """
    convolution = _Convolution(options, "circular" if name in ON_TORUS else "zeros", layer)
    if name == GATED:
        return GatedNetwork(gspaces.rot2dOnR2(-1, maximum_frequency=3), widths, kernel_size, convolution)
    build_gspace, build_fields = FIELDS[ON_TORUS.get(name, name)]
    gspace = build_gspace()
    return FieldNetwork(gspace, [build_fields(gspace, width) for width in widths], kernel_size, convolution, channels)


class _Convolution:
    """Builds one convolution without bias and with as much padding as keeps the size."""

    def __init__(self, options: dict[str, Any] | None, padding_mode: str, layer: Callable[..., nn.Module]) -> None:
        self._options = options
        self._layer = layer
        self.padding_mode = padding_mode

    def __call__(self, in_type: enn.FieldType, out_type: enn.FieldType, kernel_size: int) -> nn.Module:
        arguments = {"kernel_size": kernel_size, "padding": kernel_size // 2, "bias": False}
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
        """Logits (batch, 10) of images (batch, 1, 33, 33)."""
        features: Tensor = self.body(self.in_type(images)).tensor
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


class FieldNetwork(_Classifier):
    """Convolutions with batch norm and ReLU, anti-aliased pooling between them, group pooling."""

    def __init__(
        self,
        gspace: Any,
        types: list[enn.FieldType],
        kernel_size: int,
        convolution: _Convolution,
        channels: int = 1,
    ) -> None:
        in_type = fields = enn.FieldType(gspace, [gspace.trivial_repr] * channels)
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
