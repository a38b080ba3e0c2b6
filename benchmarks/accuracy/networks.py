"""The networks of the tasks, each a function of a way and a width."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.accuracy.data import FLAG_CLASSES, flags_of
from benchmarks.accuracy.layers import GATES, HEADS, Constant, FreeBias, HeadByFlag, Module, share_coefficients
from benchmarks.accuracy.ways import Way
from benchmarks.shared.turns import ELEMENTS, turned
from escnn_relaxed import ReferenceField, RelaxedR2Conv, gate_softness

CLASSES = 10
# Fields of the last layer, the same for every way: a pooled head sees one number of each.
LAST = 32
KERNEL = 5


def group_of(name: str) -> Any:
    """Return the gspace of a group: of shifts the trivial one."""
    return gspaces.rot2dOnR2(int(name[1:])) if name.startswith("C") else gspaces.trivialOnR2()


def _regular(gspace: Any, width: int) -> FieldType:
    return FieldType(gspace, [gspace.regular_repr] * width)


def _input_type(gspace: Any, fields: Sequence[Any], way: Way) -> tuple[FieldType, Constant | None]:
    """Return the type of the input with what a way appends, and the module that appends it."""
    if way.constant is None:
        return FieldType(gspace, list(fields)), None
    constant = Constant(gspace.irrep(1) if way.constant == "vector" else gspace.trivial_repr)
    return FieldType(gspace, [*fields, constant.representation]), constant


def _activated(way: Way, *arguments: Any, **options: Any) -> list[nn.Module]:
    """Return a convolution with batch norm and ReLU."""
    layer = _convolution(way, *arguments, **options)
    return [*layer, enn.InnerBatchNorm(layer[-1].out_type), enn.ReLU(layer[-1].out_type)]


def _convolution(way: Way, in_type: FieldType, out_type: FieldType, size: int, **options: Any) -> list[nn.Module]:
    """Return a convolution without a bias, since batch norm follows, and what a way puts behind it."""
    layer = way.layer(in_type, out_type, size, bias=False, **options)
    return [layer, FreeBias(out_type)] if way.has_free_biases else [layer]


class Classifier(nn.Module):
    """A body and a head: images (batch, channels, H, W) → logits (batch, classes)."""

    def __init__(
        self, in_type: FieldType, constant: nn.Module | None, body: list[nn.Module], head: str, classes: int = CLASSES
    ) -> None:
        super().__init__()
        self.in_type, self.constant, self.body = in_type, constant, enn.SequentialModule(*body)
        self.head = (HEADS | {"by flag": HeadByFlag})[head](self.body.out_type, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images."""
        whole = images if self.constant is None else self.constant(images)
        logits: Tensor = self.head(self.body(self.in_type(whole)))
        return logits


def digits_network(
    way: Way, group: str, width: int | tuple[int, ...], channels: int = 1, classes: int = CLASSES
) -> nn.Module:
    """Return four convolutions with anti-aliased pooling by 2 between them, and a head.

    The width is that of all hidden layers, or of each of the three.
    """
    gspace = group_of(group)
    in_type, constant = _input_type(gspace, [gspace.trivial_repr] * channels, way)
    fields, modules = in_type, []
    hidden = width if isinstance(width, tuple) else (width,) * 3
    for number, fields_out in enumerate((*hidden, LAST)):
        if number:
            modules.append(enn.PointwiseAvgPoolAntialiased(fields, 0.66, 2))
        if way.has_vectors:
            modules.append(ReferenceField(fields))
            fields = modules[-1].out_type
        size = KERNEL if number else 7
        modules += _activated(way, fields, _regular(gspace, fields_out), size, padding=size // 2)
        fields = modules[-1].out_type
    network = Classifier(in_type, constant, modules, way.head, classes)
    if way.is_shared:
        share_coefficients(network)
    return Canonical(network, group) if way.is_canonical else network


def flagged_network(way: Way, group: str, width: int) -> nn.Module:
    """Return networks of digits for images with a flag: one with a linear map for each flag, or two."""
    build = partial(digits_network, group=group, width=width, channels=2)
    if way.is_apart:
        return Apart(build(Way(), classes=FLAG_CLASSES), build(way, classes=FLAG_CLASSES))
    return WithFlag(build(way, classes=2 * FLAG_CLASSES), way.gate)


class WithFlag(nn.Module):
    """A network that gives logits for both flags, and the gate on its softness, for each image."""

    def __init__(self, network: nn.Module, gate: str | None) -> None:
        super().__init__()
        self.network = network
        self.gate: nn.Module | None = None if gate is None else GATES[gate]()

    def forward(self, inputs: Tensor) -> Tensor:
        """(batch, 2, H, W) → (batch, classes): the logits of an image's flag."""
        with nullcontext() if self.gate is None else gate_softness(self.network, self.gate(inputs)):
            both = self.network(inputs).unflatten(1, (2, -1))
        logits: Tensor = both[torch.arange(len(inputs)), flags_of(inputs).long()]
        return logits


class Apart(nn.Module):
    """A network for the flag 0, and another for 1."""

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, inputs: Tensor) -> Tensor:
        """(batch, 2, H, W) → (batch, classes)."""
        flags, logits = flags_of(inputs).long(), inputs.new_zeros(len(inputs), FLAG_CLASSES)
        for flag in flags.unique().tolist():
            logits = logits.index_put((flags == flag,), self.networks[flag](inputs[flags == flag]))
        return logits


def photographs_network(way: Way, group: str, width: int) -> nn.Module:
    """Return a residual network of twelve convolutions of 3×3 in three stages, and a head."""
    gspace = group_of(group)
    in_type, constant = _input_type(gspace, [gspace.trivial_repr] * 3, way)
    first, second, third = (_regular(gspace, fields) for fields in (width, 2 * width, LAST))
    stages = [(first, first), (first, second), (second, second), (second, third), (third, third)]
    modules = [*_activated(way, in_type, first, 3, padding=1), *_activated(way, first, first, 3, padding=1)]
    return Classifier(in_type, constant, [*modules, *(_Residual(way, *ends) for ends in stages)], way.head)


class _Residual(Module):
    """Two convolutions beside a shortcut; the first one halves the image where the fields change."""

    def __init__(self, way: Way, in_type: FieldType, out_type: FieldType) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        stride = 1 if in_type == out_type else 2
        second = _convolution(way, out_type, out_type, 3, padding=1)
        first = _activated(way, in_type, out_type, 3, padding=1, stride=stride)
        self.body = enn.SequentialModule(*first, *second, enn.InnerBatchNorm(out_type))
        shortcut = _convolution(way, in_type, out_type, 1, stride=2) if stride == 2 else [enn.IdentityModule(in_type)]
        self.shortcut, self.activation = enn.SequentialModule(*shortcut), enn.ReLU(out_type)

    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        """(batch, C_in, H, W) → (batch, C_out, H/stride, W/stride)."""
        return self.activation(self.body(input) + self.shortcut(input))


class Canonical(nn.Module):
    """A network that sees each image turned back to the pose of the training images.

    A small strict network gives a logit for each element of the group. It learns that training images are turned by
    none, so that it finds the turn of a moved copy (the prior of Mondal et al. 2023, on the idea of Kaba et al. 2023).
    """

    def __init__(self, network: nn.Module, group: str, width: int = 4) -> None:
        super().__init__()
        gspace, self.elements, self.network = group_of(group), ELEMENTS[group], network
        fields, modules = FieldType(gspace, [gspace.trivial_repr]), []
        for number, fields_out in enumerate((width, width, width)):
            size = KERNEL if number else 7
            modules += _activated(Way(), fields, _regular(gspace, fields_out), size, padding=size // 2)
            fields = modules[-1].out_type
            modules.append(enn.PointwiseAvgPoolAntialiased(fields, 0.66, 2))
        modules.append(enn.R2Conv(fields, _regular(gspace, 1), KERNEL, padding=KERNEL // 2))
        self.pose = enn.SequentialModule(*modules)
        self.logits = torch.zeros(0)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images that are turned back."""
        self.logits = self.pose(self.pose.in_type(images)).tensor.mean(dim=(2, 3))
        chosen = self.logits.argmax(1)
        back = images.clone()
        for number in chosen.unique().tolist():
            element = self.elements[-number % len(self.elements)]
            back[chosen == number] = turned(images[chosen == number], element)
        logits: Tensor = self.network(back)
        return logits

    def pose_loss(self) -> Tensor:
        """Return how far the last batch is from having been turned by none."""
        return functional.cross_entropy(self.logits, torch.zeros(len(self.logits), dtype=torch.long))


def smoke_network(way: Way, group: str, width: int) -> nn.Module:
    """Return four convolutions with biases and SiLUs; on ``"T1"`` soft layers are soft in horizontal shifts."""
    gspace = group_of(group)
    is_shift = group == "T1"
    velocity = [gspace.trivial_repr] * 2 if is_shift else [gspace.irrep(1)]
    in_type, constant = _input_type(gspace, [*velocity, gspace.trivial_repr], way)
    state = FieldType(gspace, [*velocity, gspace.trivial_repr])
    soft = partial(RelaxedR2Conv, relax={"translation": (0.25, 0.0)}) if is_shift else RelaxedR2Conv
    body = soft if way.layer is RelaxedR2Conv else way.layer
    # Pixels that come in from the other side are put there before.
    padding = (KERNEL // 2, 0 if is_shift else KERNEL // 2)
    types = [in_type, *[_regular(gspace, width)] * 3]
    layers: list[nn.Module] = [body(*ends, KERNEL, padding=padding) for ends in pairwise(types)]
    if way.head == "free":
        layers.append(nn.Conv2d(types[-1].size, state.size, KERNEL, padding=padding))
    else:
        layers.append((soft if way.head == "soft" else body)(types[-1], state, KERNEL, padding=padding))
    if way.has_free_biases:
        layers = [enn.SequentialModule(layer, FreeBias(layer.out_type, int(is_shift))) for layer in layers]
    return Forecaster(layers, constant, is_shift)


class Forecaster(nn.Module):
    """Velocity and smoke → their change until the next frame."""

    def __init__(self, layers: Sequence[nn.Module], constant: nn.Module | None, is_periodic: bool) -> None:
        super().__init__()
        self.layers, self.constant, self.is_periodic = nn.ModuleList(layers), constant, is_periodic
        # Draws differ much in the size of what they predict; so all start near saying that nothing changes.
        self.gain = nn.Parameter(torch.tensor(0.1))

    def forward(self, state: Tensor) -> Tensor:
        """(batch, 3, H, W) → the same shape."""
        features = state if self.constant is None else self.constant(state)
        for number, layer in enumerate(self.layers):
            features = functional.silu(features) if number else features
            if self.is_periodic:
                features = functional.pad(features, (KERNEL // 2, KERNEL // 2, 0, 0), mode="circular")
            features = layer(features) if isinstance(layer, nn.Conv2d) else layer(layer.in_type(features)).tensor
        return self.gain * features
