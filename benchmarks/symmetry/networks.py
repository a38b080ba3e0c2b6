"""Classifiers of one size: a body of some layers, a head, and the widths at which parameters are equal."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType
from torch import Tensor, nn

from benchmarks.symmetry.heads import HEADS
from benchmarks.symmetry.ways import Setting, Way

__all__ = ["GSPACES", "Classifier", "Frame", "build", "equal_widths", "parameters"]

GSPACES: dict[str, Callable[[], Any]] = {
    "C1": gspaces.trivialOnR2,
    "C2": lambda: gspaces.rot2dOnR2(2),
    "C4": lambda: gspaces.rot2dOnR2(4),
    "C8": lambda: gspaces.rot2dOnR2(8),
    "D1": lambda: gspaces.flip2dOnR2(),
    "D2": lambda: gspaces.flipRot2dOnR2(2),
    "D4": lambda: gspaces.flipRot2dOnR2(4),
}
FIRST_KERNEL, KERNEL = 7, 5
# Numbers of parameters that differ by less count as equal.
TOLERANCE = 0.03


@dataclass(frozen=True)
class Frame:
    """What a task asks of its networks.

    Attributes:
        classes: number of classes.
        channels: of an image.
        widths: fields of the layers or stages of ``R2Conv``, whose number of parameters the others have.
        is_residual: whether the body is a residual network of three stages, and not of four plain layers.
        last_kernel: side of the last map, all of which the last layer sees where the place of things matters.
    """

    classes: int
    channels: int = 1
    widths: tuple[int, ...] = (6, 6, 6, 12)
    is_residual: bool = False
    last_kernel: int | None = None


class Classifier(nn.Module):
    """A body and a head: images (batch, channels, H, W) → logits (batch, classes)."""

    def __init__(self, in_type: FieldType, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.in_type, self.body, self.head = in_type, body, head

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images."""
        logits: Tensor = self.head(self.body(self.in_type(images)))
        return logits


def build(frame: Frame, group: str, way: Way, setting: Setting, widths: tuple[int, ...]) -> Classifier:
    """Return the network of a way, with so many fields in each layer or stage."""
    gspace = GSPACES["C1" if way.is_plain else way.groups.get(group, group)]()
    in_type = FieldType(gspace, [gspace.trivial_repr] * frame.channels)
    layer = functools.partial(way.layer, bias=False, **setting.options)
    stages = (_residual_stages if frame.is_residual else _plain_stages)(frame, in_type, layer, widths, way.restricts)
    body = enn.SequentialModule(*stages)
    return Classifier(in_type, body, HEADS[way.head](body.out_type, frame.classes))


def parameters(network: nn.Module) -> int:
    """Return the number of weights that are trained."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


@functools.cache
def _target(frame: Frame, group: str) -> int:
    return parameters(build(frame, group, Way(), Setting(), frame.widths))


_found: dict[tuple[Any, ...], tuple[int, ...]] = {}


def equal_widths(frame: Frame, group: str, way: Way) -> tuple[int, ...]:
    """Return the widths at which a way has as many parameters as ``R2Conv`` with a pooled head, nearly.

    Layers grow one field at a time in the proportions of the frame's widths, up to the step that comes nearest. Where
    that is more than 3 % off, one layer has a field more or less. A way of equal time has as many channels as
    ``R2Conv``.
    """
    if way.is_as_wide:
        order = GSPACES[group]().fibergroup.order() if way.is_plain else 1
        return tuple(order * width for width in frame.widths)
    key = (frame, group, way.layer, way.head, way.restricts, tuple(way.groups.items()))
    if key not in _found:
        setting, target = way.settings[0], _target(frame, group)
        _found[key] = _nearest(lambda widths: parameters(build(frame, group, way, setting, widths)), frame, target)
    return _found[key]


def _nearest(count: Callable[[tuple[int, ...]], int], frame: Frame, target: int) -> tuple[int, ...]:
    """Return the widths whose count comes nearest to the target."""
    count = functools.lru_cache(maxsize=None)(count)
    widths, below = (1,) * len(frame.widths), (1,) * len(frame.widths)
    while count(widths) < target:
        below, widths = widths, _wider(widths, frame.widths)
    near = [below, widths]
    nearest = min(near, key=lambda widths: abs(count(widths) - target))
    if abs(count(nearest) / target - 1) <= TOLERANCE:
        return nearest
    for base in (below, widths):
        for number, width in enumerate(base):
            near += [(*base[:number], other, *base[number + 1 :]) for other in (width - 1, width + 1) if other > 0]
    return min(near, key=lambda widths: abs(count(widths) - target))


def _wider(widths: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the widths with one more in the layer that is narrowest for its shape."""
    number = min(range(len(widths)), key=lambda layer: (widths[layer] + 1) / shape[layer])
    return (*widths[:number], widths[number] + 1, *widths[number + 1 :])


def _regular(gspace: Any, width: int) -> FieldType:
    return FieldType(gspace, [gspace.regular_repr] * width)


def _restriction(fields: FieldType) -> enn.RestrictionModule:
    """Return the restriction of fields to the trivial group."""
    return enn.RestrictionModule(fields, (None, 1) if "D" in fields.gspace.fibergroup.name else 1)


def _activated(layer: nn.Module) -> list[nn.Module]:
    """Return a convolution with batch norm and ReLU."""
    return [layer, enn.InnerBatchNorm(layer.out_type), enn.ReLU(layer.out_type)]


def _plain_stages(
    frame: Frame, fields: FieldType, layer: Callable[..., nn.Module], widths: tuple[int, ...], restricts: bool
) -> list[nn.Module]:
    """Return four convolutions, with anti-aliased pooling by 2 between them."""
    modules: list[nn.Module] = []
    for number, width in enumerate(widths):
        is_last = number == len(widths) - 1
        if is_last and restricts:
            modules.append(_restriction(fields))
            fields = modules[-1].out_type
        size = KERNEL if number else FIRST_KERNEL
        padding = size // 2
        if is_last and frame.last_kernel is not None:
            size, padding = frame.last_kernel, 0
        out_type = _regular(fields.gspace, width)
        modules += _activated(layer(fields, out_type, size, padding=padding))
        if not is_last:
            modules.append(enn.PointwiseAvgPoolAntialiased(out_type, 0.66, 2))
        fields = out_type
    return modules


def _residual_stages(
    frame: Frame, fields: FieldType, layer: Callable[..., nn.Module], widths: tuple[int, ...], restricts: bool
) -> list[nn.Module]:
    """Return two convolutions and five residual blocks in three stages, twelve convolutions of 3×3 in all."""
    first, second = (_regular(fields.gspace, width) for width in widths[:2])
    modules = [
        *_activated(layer(fields, first, 3, padding=1)),
        *_activated(layer(first, first, 3, padding=1)),
        _Block(first, first, layer),
        _Block(first, second, layer),
        _Block(second, second, layer),
    ]
    if restricts:
        modules.append(_restriction(second))
    before = modules[-1].out_type
    third = _regular(before.gspace, widths[2])
    return [*modules, _Block(before, third, layer), _Block(third, third, layer)]


class _Block(enn.EquivariantModule):  # type: ignore[misc]
    """Two convolutions beside a shortcut; the first one halves the image where the fields change."""

    def __init__(self, in_type: FieldType, out_type: FieldType, layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        stride = 1 if in_type == out_type else 2
        first = _activated(layer(in_type, out_type, 3, padding=1, stride=stride))
        second = layer(out_type, out_type, 3, padding=1)
        self.body = enn.SequentialModule(*first, second, enn.InnerBatchNorm(out_type))
        is_same = stride == 1
        self.shortcut = enn.IdentityModule(in_type) if is_same else layer(in_type, out_type, 1, stride=stride)
        self.activation = enn.ReLU(out_type)

    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        """(batch, C_in, H, W) → (batch, C_out, H/stride, W/stride)."""
        return self.activation(self.body(input) + self.shortcut(input))

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the body's output."""
        shape: tuple[int, ...] = self.body.evaluate_output_shape(input_shape)
        return shape
