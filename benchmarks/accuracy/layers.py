"""Convolutions of the ways, and what breaks a symmetry beside a soft layer: free biases and a constant input."""

from __future__ import annotations

import math
from typing import Any

import torch
from escnn import nn as enn
from escnn.nn import FieldType
from torch import Tensor, nn
from torch.nn.utils import parametrize

from benchmarks.accuracy.data import SIDE, flags_of
from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.layer.gate import Gate


class AnnealedR2Conv(RelaxedR2Conv):
    """A soft layer with a gate for all inputs: K_g = PK + g (K − PK), 1 is the soft layer and 0 the strict one."""

    @property
    def gate(self) -> float:
        """g."""
        return float(self.gates[0].value) if self.gates else 1.0

    @gate.setter
    def gate(self, value: float) -> None:
        self.gates = (Gate(value, ("rotation",)),)


class _Shared(nn.Module):
    """Coefficients of all fields of a layer: those of one field, again and again."""

    def __init__(self, of_field: nn.Parameter) -> None:
        super().__init__()
        self.of_field = of_field

    def forward(self, own: Tensor) -> Tensor:
        """Return coefficients of the size of the layer's own, which are not used."""
        return self.of_field.repeat(len(own) // len(self.of_field))


@torch.no_grad()
def share_coefficients(network: nn.Module) -> None:
    """Give the soft layers of a network one set of coefficients for all their fields, as soft as the first layer is.

    All layers are onto regular fields, so that the coefficients of a field mean the same in each.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, RelaxedR2Conv)]
    first, softness = layers[0].kernel.modulation.weights, layers[0].softness().item()
    count = len(first) // len(layers[0].out_type)
    first.copy_(first[:count].repeat(len(layers[0].out_type)))
    layers[0].set_softness(softness)
    shared = nn.Parameter(first[:count].clone())
    for layer in layers:
        modulation = layer.kernel.modulation
        modulation.weights.requires_grad_(False)
        parametrize.register_parametrization(modulation, "weights", _Shared(shared))


class Module(enn.EquivariantModule):  # type: ignore[misc]
    """A map of fields, whose size is asked of its output."""

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the output."""
        return tuple(self(self.in_type(torch.zeros(input_shape))).shape)


class FreeBias(Module):
    """A bias for each channel, where an equivariant layer has one for each field.

    Where the symmetry is a shift along the rows, ``axes`` is 1, and there are two biases, times cos and sin of the
    column.
    """

    def __init__(self, in_type: FieldType, axes: int = 0) -> None:
        super().__init__()
        self.in_type = self.out_type = in_type
        self.axes, self.bias = axes, nn.Parameter(torch.zeros(in_type.size, max(2 * axes, 1)))

    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        """(batch, C, H, W) → the same shape."""
        columns = input.tensor.shape[3]
        places = 2 * math.pi / columns * torch.arange(columns)
        waves = torch.stack([places.cos(), places.sin()]) if self.axes else torch.ones(1, columns)
        return self.out_type(input.tensor + (self.bias @ waves.to(self.bias)).unsqueeze(1))


class Constant(nn.Module):
    """A learned field, the same at every pixel, that is appended to an image: a reference vector, or a scalar.

    It starts at 0, and the weights that read it as those of the image. A strict network whose input is the image and a
    vector that does not turn with it is not equivariant in the image alone; with a scalar it is.
    """

    def __init__(self, representation: Any) -> None:
        super().__init__()
        self.representation = representation
        self.value = nn.Parameter(torch.zeros(representation.size))

    def forward(self, images: Tensor) -> Tensor:
        """(batch, C, H, W) → (batch, C + size, H, W)."""
        shape = len(images), len(self.value), *images.shape[2:]
        return torch.cat([images, self.value.view(1, -1, 1, 1).expand(shape)], 1)


class PooledHead(nn.Module):
    """The largest channel of each field, the mean over the image, and a linear map: blind to the pose."""

    def __init__(self, in_type: FieldType, classes: int) -> None:
        super().__init__()
        self.pooling, self.linear = enn.GroupPooling(in_type), nn.Linear(len(in_type), classes)

    def forward(self, features: enn.GeometricTensor) -> Tensor:
        """Return logits (batch, classes)."""
        logits: Tensor = self.linear(self.pooling(features).tensor.mean(dim=(2, 3)))
        return logits


class FreeHead(nn.Module):
    """The mean over the image, and a linear map of all channels, which sees the pose."""

    def __init__(self, in_type: FieldType, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_type.size, classes)

    def forward(self, features: enn.GeometricTensor) -> Tensor:
        """Return logits (batch, classes)."""
        logits: Tensor = self.linear(features.tensor.mean(dim=(2, 3)))
        return logits


class SoftHead(nn.Module):
    """A pooled head, and beside it the same weights on all channels, soft in the rotation.

    The logit of class k is b_k + Σ_c W_kc (max_g x_c(g) + Σ_g (1 + Σ_j α_kcj h_j(g)) x_c(g)), with x_c(g) the mean over
    the image of the channel of element g in field c. h are tanh(2π ω′ cos θ) and tanh(2π ω′ sin θ) at ω′ = 0.25, of
    mean 0 and root mean square 0.2, as in ``RelaxedR2Conv``. With α = 0 the head is strict.
    """

    functions: Tensor

    def __init__(self, in_type: FieldType, classes: int) -> None:
        super().__init__()
        self.pooled = PooledHead(in_type, classes)
        order = in_type.gspace.fibergroup.order()
        angles = 2 * math.pi / order * torch.arange(order)
        found = (2 * math.pi * 0.25 * torch.stack([angles.cos(), angles.sin()])).tanh()
        found = found - found.mean(1, keepdim=True)
        self.register_buffer("functions", 0.2 * found / found.square().mean(1, keepdim=True).sqrt())
        self.alpha = nn.Parameter(torch.zeros(classes, len(in_type), 2))

    def forward(self, features: enn.GeometricTensor) -> Tensor:
        """Return logits (batch, classes)."""
        weights = self.pooled.linear.weight.unsqueeze(2) * (1 + self.alpha @ self.functions)
        logits: Tensor = self.pooled(features) + features.tensor.mean(dim=(2, 3)) @ weights.flatten(1).mT
        return logits


class HeadByFlag(nn.Module):
    """Twice as many logits: a pooled head for the flag 0, and a free one for 1."""

    def __init__(self, in_type: FieldType, classes: int) -> None:
        super().__init__()
        self.pooled, self.free = PooledHead(in_type, classes // 2), FreeHead(in_type, classes // 2)

    def forward(self, features: enn.GeometricTensor) -> Tensor:
        """Return logits (batch, classes)."""
        return torch.cat([self.pooled(features), self.free(features)], 1)


HEADS: dict[str, type[nn.Module]] = {"pooled": PooledHead, "free": FreeHead, "soft": SoftHead}


class FlagGate(nn.Module):
    """g = flag: no layer is soft for an image whose flag is 0."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(batch, 2, H, W) → (batch,)."""
        return flags_of(inputs).to(inputs)


class LearnedGate(nn.Module):
    """An MLP with a sigmoid, of the flag and of the mean brightness of an image in rings, which no turn changes.

    It starts near 0.9, so that the network starts as a soft one.
    """

    rings: Tensor

    def __init__(self, rings: int = 6, side: int = SIDE, hidden: int = 16) -> None:
        super().__init__()
        places = torch.arange(side) - (side - 1) / 2
        numbers = (torch.hypot(places[:, None], places) * 2 * rings / side).long()
        found = torch.stack([numbers == ring for ring in range(rings)]).flatten(1).float()
        self.register_buffer("rings", found / found.sum(1, keepdim=True))
        last = nn.Linear(hidden, 1)
        nn.init.constant_(last.bias, 2.0)
        self.mlp = nn.Sequential(nn.Linear(rings + 1, hidden), nn.SiLU(), last)

    def forward(self, inputs: Tensor) -> Tensor:
        """(batch, 2, H, W) → (batch,)."""
        features = [inputs[:, 0].flatten(1) @ self.rings.mT, flags_of(inputs).to(inputs)[:, None]]
        gates: Tensor = self.mlp(torch.cat(features, 1)).sigmoid().squeeze(1)
        return gates


GATES: dict[str, type[nn.Module]] = {"flag": FlagGate, "learned": LearnedGate}
