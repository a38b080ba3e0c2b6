"""Classifiers of one size: a body of some layers, a head, and the widths at which parameters are equal."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from escnn import nn as enn
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn

from benchmarks.symmetry.bodies import GSPACES, Layers, plain_stages, residual_stages
from benchmarks.symmetry.ways import Setting, Way

# Numbers of parameters that differ by less count as equal.
TOLERANCE = 0.03
# ω′ of the functions of the pose, and the root mean square of what a weight of 1 makes of them, as in RelaxedR2Conv.
FREQUENCY, UNIT = 0.25, 0.2


class PooledHead(nn.Module):
    """The largest channel of each field or its norm, the mean over the image, and a linear map: blind to the pose."""

    def __init__(self, in_type: FieldType, classes: int) -> None:
        super().__init__()
        is_finite = in_type.gspace.fibergroup.order() > 0
        # Fields of a continuous group are irreps, whose norm is invariant.
        self.pooling = enn.GroupPooling(in_type) if is_finite else enn.NormPool(in_type)
        self.linear = nn.Linear(len(in_type), classes)

    def forward(self, features: GeometricTensor) -> Tensor:
        """Return logits (batch, classes)."""
        logits: Tensor = self.linear(self.pooling(features).tensor.mean(dim=(2, 3)))
        return logits


class FreeHead(nn.Module):
    """A linear map of all channels, which sees the pose, of their means over the image or at each of some pixels."""

    def __init__(self, in_type: FieldType, classes: int, pixels: int = 1) -> None:
        super().__init__()
        self.linear, self.pixels = nn.Linear(in_type.size * pixels, classes), pixels

    def forward(self, features: GeometricTensor) -> Tensor:
        """Return logits (batch, classes)."""
        seen = features.tensor.mean(dim=(2, 3)) if self.pixels == 1 else features.tensor.flatten(1)
        logits: Tensor = self.linear(seen)
        return logits


class SoftHead(nn.Module):
    """A pooled head, and beside it the same weights on all channels, soft in the pose.

    The logit of class k is b_k + Σ_c W_kc (max_g x_c(g) + Σ_g (1 + Σ_j α_kcj h_j(g)) x_c(g)), with x_c(g) the mean over
    the image of the channel of element g in field c. With α = 0 the head is strict.
    """

    functions: Tensor

    def __init__(self, in_type: FieldType, classes: int) -> None:
        super().__init__()
        self.pooled = PooledHead(in_type, classes)
        self.register_buffer("functions", _pose_functions(in_type))
        self.alpha = nn.Parameter(torch.zeros(classes, len(in_type), len(self.functions)))

    def forward(self, features: GeometricTensor) -> Tensor:
        """Return logits (batch, classes)."""
        channels = features.tensor.mean(dim=(2, 3))
        factors = 1 + self.alpha @ self.functions
        weights = self.pooled.linear.weight.unsqueeze(2) * factors
        logits: Tensor = self.pooled(features) + channels @ weights.flatten(1).mT
        return logits


def _pose_functions(fields: FieldType) -> Tensor:
    """Return the functions h_j of the elements of a group of the plane, (functions, elements), each of mean 0.

    They are tanh(2π ω′ a) of the coordinates a of an element, (cos θ, sin θ) and s/2, and products of those of rotation
    and reflection.
    """
    group = fields.gspace.fibergroup
    is_dihedral = any(element.value[0] for element in group.elements) if "D" in group.name else False
    vector = group.irrep(1, 1) if is_dihedral else group.irrep(1)
    actions = torch.stack([torch.as_tensor(vector(element)) for element in group.elements]).float()
    found = (2 * math.pi * FREQUENCY * actions[:, :, 0].mT).tanh()
    if is_dihedral:
        reflection = (math.pi * FREQUENCY * (1 - torch.linalg.det(actions)) / 2).tanh()
        found = torch.cat([found, reflection[None], found * reflection])
    found = found - found.mean(1, keepdim=True)
    return UNIT * found / found.square().mean(1, keepdim=True).sqrt()


HEADS: dict[str, type[nn.Module]] = {"pooled": PooledHead, "free": FreeHead, "soft": SoftHead}


@dataclass(frozen=True)
class Frame:
    """What a task asks of its classifiers."""

    classes: int
    channels: int = 1
    # Fields of the layers or stages of ``R2Conv``, whose number of parameters the others have.
    widths: tuple[int, ...] = (6, 6, 6, 12)
    # A residual network of three stages, and not four plain layers.
    is_residual: bool = False
    # The side of the last map, all of which the last layer sees where the place of things matters.
    last_kernel: int | None = None
    # What soft layers are soft in, where it is not all that the group has.
    relax: tuple[str, ...] | None = None
    # Opposite sides of an image are one.
    is_periodic: bool = False

    def build(self, group: str, way: Way, setting: Setting, widths: tuple[int, ...]) -> Classifier:
        """Return the network of a way, with so many fields in each layer or stage."""
        gspace = way.gspace(group)
        in_type = FieldType(gspace, [gspace.trivial_repr] * self.channels)
        axes = 2 * self.is_periodic if way.has_free_biases else None
        layers = Layers(*way.layers(setting, self.relax), way.restricts, self.is_periodic, axes)
        plain = functools.partial(plain_stages, last_kernel=self.last_kernel)
        body = enn.SequentialModule(*(residual_stages if self.is_residual else plain)(in_type, layers, widths))
        # On a torus a free head sees the place: all 4×4 pixels of the last map.
        options = {"pixels": 16} if self.is_periodic and way.head == "free" else {}
        return Classifier(in_type, body, HEADS[way.head](body.out_type, self.classes, **options))


class Classifier(nn.Module):
    """A body and a head: images (batch, channels, H, W) → logits (batch, classes)."""

    def __init__(self, in_type: FieldType, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.in_type, self.body, self.head = in_type, body, head

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images."""
        logits: Tensor = self.head(self.body(self.in_type(images)))
        return logits


def parameters(network: nn.Module) -> int:
    """Return the number of weights that are trained."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


@functools.cache
def equal_widths(frame: Any, group: str, way: Way) -> tuple[int, ...]:
    """Return the widths at which a way has as many parameters as ``R2Conv`` with a pooled head, by protocol.md."""
    if way.is_as_wide:
        order = GSPACES[group]().fibergroup.order() if way.is_plain else 1
        return tuple(order * width for width in frame.widths)

    @functools.cache
    def count(widths: tuple[int, ...]) -> int:
        return parameters(frame.build(group, way, way.settings[0], widths))

    return _nearest(count, frame.widths, parameters(frame.build(group, Way(), Setting(), frame.widths)))


def _nearest(count: Callable[[tuple[int, ...]], int], shape: tuple[int, ...], target: int) -> tuple[int, ...]:
    """Return the widths whose count comes nearest to the target."""
    widths = below = (1,) * len(shape)
    while count(widths) < target:
        below = widths
        # One more in the layer that is narrowest for its shape.
        narrowest = min(range(len(shape)), key=lambda layer: (below[layer] + 1) / shape[layer])
        widths = tuple(width + (layer == narrowest) for layer, width in enumerate(below))
    near = [below, widths]
    nearest = min(near, key=lambda widths: abs(count(widths) - target))
    if abs(count(nearest) / target - 1) <= TOLERANCE:
        return nearest
    for base in (below, widths):
        for number, width in enumerate(base):
            near += [(*base[:number], other, *base[number + 1 :]) for other in (width - 1, width + 1) if other > 0]
    return min(near, key=lambda widths: abs(count(widths) - target))
