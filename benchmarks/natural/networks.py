"""Networks of about as many parameters each: of ``Conv2d``, of ``R2Conv``, and of the ways to relax it.

    python -m benchmarks.natural.networks

The command searches the widths that are written down in ``DIGITS`` and ``CIFAR``, and prints them.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType, R2Conv
from torch import Tensor, nn

from benchmarks.shared.networks import build_network
from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.baselines import PartialR2Conv, ResidualR2Conv

__all__ = ["CIFAR", "DIGITS", "PlainConvolution", "ResidualNetwork", "Way", "build_cifar", "build_digits", "parameters"]

# Parameters of networks of CIFAR-10; fields of R2Conv for digits, whose number of parameters the others have.
CIFAR_PARAMETERS = 100_000
DIGIT_WIDTHS = (6, 6, 6, 12)
# Relative widths of the layers of digits, and of the three stages.
DIGIT_SHAPE, CIFAR_SHAPE = (1, 1, 1, 2), (1, 2, 4)
TOLERANCE = 0.02
GSPACES = {
    "C4": lambda: gspaces.rot2dOnR2(4),
    "D4": lambda: gspaces.flipRot2dOnR2(4),
    "Conv2d": gspaces.trivialOnR2,
}


class PlainConvolution(enn.EquivariantModule):  # type: ignore[misc]
    """``Conv2d`` between fields of the trivial group, whose channels have no symmetry."""

    def __init__(self, in_type: FieldType, out_type: FieldType, kernel_size: int, **arguments: Any) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        self.convolution = nn.Conv2d(in_type.size, out_type.size, kernel_size, **arguments)

    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        """(batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        return self.out_type(self.convolution(input.tensor))

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the output."""
        layer = self.convolution
        sides = (
            (side + 2 * layer.padding[i] - layer.kernel_size[i]) // layer.stride[i] + 1
            for i, side in enumerate(input_shape[2:])
        )
        return input_shape[0], self.out_type.size, *sides


@dataclass(frozen=True)
class Way:
    """A way to build the layers.

    Attributes:
        layer: their class.
        options: of the layers.
        is_in_last_stage: whether the last stage alone is built of them, and the others of ``R2Conv``.
        deviation: σ of the prior on free weights.
        is_learned: whether the evidence says how soft they are.
    """

    layer: Callable[..., nn.Module]
    options: dict[str, Any] = field(default_factory=dict)
    is_in_last_stage: bool = False
    deviation: float | None = None
    is_learned: bool = False


WAYS = {
    "Conv2d": Way(PlainConvolution),
    "R2Conv": Way(R2Conv),
    "RelaxedR2Conv": Way(RelaxedR2Conv),
    "RelaxedR2Conv, evidence": Way(RelaxedR2Conv, is_learned=True),
    "RelaxedR2Conv, last stage": Way(RelaxedR2Conv, is_in_last_stage=True),
    "PartialR2Conv": Way(PartialR2Conv, {"initial_softness": 0.1}),
    "ResidualR2Conv": Way(ResidualR2Conv, deviation=0.1),
}
# Ways whose widths are searched. The others are R2Conv with a hundredth more weights, and have its fields.
SEARCHED = ("Conv2d", "R2Conv", "ResidualR2Conv")
# Fields of each layer or stage, channels of Conv2d, as main() found them.
DIGITS: dict[str, tuple[int, ...]] = {
    "Conv2d": (6, 6, 5, 11),
    "R2Conv": DIGIT_WIDTHS,
    "RelaxedR2Conv": DIGIT_WIDTHS,
    "RelaxedR2Conv, evidence": DIGIT_WIDTHS,
}
CIFAR: dict[str, dict[str, tuple[int, ...]]] = {
    group: {
        "Conv2d": (12, 24, 49),
        **dict.fromkeys([way for way in WAYS if way not in ("Conv2d", "ResidualR2Conv")], strict),
        "ResidualR2Conv": residual,
    }
    for group, strict, residual in (("C4", (7, 15, 30), (3, 6, 11)), ("D4", (5, 11, 21), (1, 3, 6)))
}


def build_digits(way: str, widths: tuple[int, ...] | None = None) -> nn.Module:
    """Four layers of regular fields of C8: images (batch, 1, 33, 33) → logits (batch, 10)."""
    chosen = WAYS[way]
    name = "plain CNN" if chosen.layer is PlainConvolution else "C8 regular"
    widths = widths or DIGITS[way]
    return build_network(name, widths, 5, None if chosen.layer is R2Conv else chosen.options, chosen.layer)


def build_cifar(group: str, way: str, widths: tuple[int, ...] | None = None) -> nn.Module:
    """Three stages of regular fields of C4 or D4: images (batch, 3, 33, 33) → logits (batch, 10)."""
    chosen = WAYS[way]
    gspace = GSPACES["Conv2d" if chosen.layer is PlainConvolution else group]()
    fields = [FieldType(gspace, [gspace.regular_repr] * width) for width in widths or CIFAR[group][way]]
    return ResidualNetwork(gspace, fields, chosen)


class ResidualNetwork(nn.Module):
    """Lifting, one more convolution, five residual blocks in three stages, group pooling, and a mean over the image.

    Twelve convolutions of 3×3, after each of which comes batch norm and ReLU, and two 1×1 shortcuts where the number of
    fields changes. There the first convolution of the block and the shortcut beside it have stride 2.

    Args:
        gspace: of the fields.
        types: fields of each stage.
        way: to build the convolutions.
    """

    def __init__(self, gspace: Any, types: list[FieldType], way: Way) -> None:
        super().__init__()
        self.in_type = FieldType(gspace, [gspace.trivial_repr] * 3)
        first, second, third = types
        early = Way(R2Conv) if way.is_in_last_stage else way
        self.body = enn.SequentialModule(
            *_convolution(self.in_type, first, early),
            *_convolution(first, first, early),
            _Block(first, first, early),
            _Block(first, second, early),
            _Block(second, second, early),
            _Block(second, third, way),
            _Block(third, third, way),
            enn.GroupPooling(third),
        )
        self.head = nn.Linear(len(third), 10)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 3, 33, 33) → (batch, 10)."""
        logits: Tensor = self.head(self.body(self.in_type(images)).tensor.mean(dim=(2, 3)))
        return logits


class _Block(enn.EquivariantModule):  # type: ignore[misc]
    """Two convolutions beside a shortcut; the first one halves the image where the fields change."""

    def __init__(self, in_type: FieldType, out_type: FieldType, way: Way) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        stride = 1 if in_type == out_type else 2
        second = _layer(out_type, out_type, 3, way)
        first = _convolution(in_type, out_type, way, stride)
        self.body = enn.SequentialModule(*first, second, enn.InnerBatchNorm(out_type))
        self.shortcut = enn.IdentityModule(in_type) if stride == 1 else _layer(in_type, out_type, 1, way, stride)
        self.activation = enn.ReLU(out_type)

    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        """(batch, C_in, H, W) → (batch, C_out, H/stride, W/stride)."""
        return self.activation(self.body(input) + self.shortcut(input))

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the body's output."""
        shape: tuple[int, ...] = self.body.evaluate_output_shape(input_shape)
        return shape


def _layer(in_type: FieldType, out_type: FieldType, size: int, way: Way, stride: int = 1) -> nn.Module:
    return way.layer(in_type, out_type, size, padding=size // 2, stride=stride, bias=False, **way.options)


def _convolution(in_type: FieldType, out_type: FieldType, way: Way, stride: int = 1) -> list[nn.Module]:
    return [_layer(in_type, out_type, 3, way, stride), enn.InnerBatchNorm(out_type), enn.ReLU(out_type)]


def parameters(network: nn.Module) -> int:
    """Number of weights that are trained."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def search(build: Callable[[tuple[int, ...]], nn.Module], shape: tuple[int, ...], target: int) -> tuple[int, ...]:
    """Return the widths that keep a shape best among those that have a number of parameters, within 2 %.

    Widths are tried from 1 below the largest multiple of the shape that has no more parameters to 1 above the next
    multiple. Where none is within 2 %, those that come nearest are taken.
    """
    step = 1
    while parameters(build(tuple((step + 1) * part for part in shape))) <= target:
        step += 1
    ranges = (range(max(step * part - 1, 1), (step + 1) * part + 2) for part in shape)
    misses = {widths: abs(parameters(build(widths)) / target - 1) for widths in itertools.product(*ranges)}
    near = [widths for widths, miss in misses.items() if miss < TOLERANCE]
    if not near:
        return min(misses, key=misses.__getitem__)
    return min(near, key=lambda widths: (round(_unlike(widths, shape), 9), misses[widths]))


def _unlike(widths: tuple[int, ...], shape: tuple[int, ...]) -> float:
    """Return the variance of the logarithms of the widths over the shape."""
    return statistics.pvariance([math.log(width / part) for width, part in zip(widths, shape, strict=True)])


def main() -> None:
    """Search all widths; print them with their numbers of parameters."""
    target = parameters(build_digits("R2Conv", DIGIT_WIDTHS))
    for way in SEARCHED[:2]:
        widths = search(functools.partial(build_digits, way), DIGIT_SHAPE, target)
        print(f"digits, {way}: {widths}, {parameters(build_digits(way, widths)):,}", flush=True)
    for group in CIFAR:
        for way in SEARCHED:
            widths = search(functools.partial(build_cifar, group, way), CIFAR_SHAPE, CIFAR_PARAMETERS)
            print(f"{group}, {way}: {widths}, {parameters(build_cifar(group, way, widths)):,}", flush=True)


if __name__ == "__main__":
    main()
