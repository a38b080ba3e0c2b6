"""Networks over fields that are not regular: Fourier coefficients or irreps of SO(2), quotients, vectors, actions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn

# With the arguments of R2Conv, or of R2ConvTransposed.
Layer = Callable[..., EquivariantModule]

SO2 = gspaces.rot2dOnR2(-1, maximum_frequency=2)
C8 = gspaces.rot2dOnR2(8)
D4 = gspaces.flipRot2dOnR2(4)


def trivial(space: gspaces.GSpace2D, count: int = 1) -> FieldType:
    return FieldType(space, [space.trivial_repr] * count)


def regular(space: gspaces.GSpace2D, count: int = 1) -> FieldType:
    return FieldType(space, [space.regular_repr] * count)


class FourierFields(nn.Module):
    """Band-limited functions on SO(2), ELU on samples of them (escnn's tutorial)."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        self.input_type = trivial(SO2)
        irreps = SO2.fibergroup.bl_irreps(2)
        self.activations = nn.ModuleList(
            enn.FourierELU(SO2, 1, irreps=irreps, type="regular", N=8, inplace=True) for _ in range(2)
        )
        first, second = self.activations
        self.conv1 = convolution(self.input_type, first.in_type, kernel_size=5, padding=1)
        self.bn1 = enn.IIDBatchNorm2d(first.in_type)
        self.conv2 = convolution(first.in_type, second.in_type, kernel_size=3)
        self.bn2 = enn.IIDBatchNorm2d(second.in_type)
        self.pool = enn.PointwiseAvgPoolAntialiased(second.out_type, sigma=0.66, stride=2)
        self.invariant = convolution(second.out_type, trivial(SO2, 4), kernel_size=3, bias=False)
        self.linear = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.input_type(images)
        for conv, norm, activation in zip(
            (self.conv1, self.conv2), (self.bn1, self.bn2), self.activations, strict=True
        ):
            x = activation(norm(conv(x)))
        return self.linear(self.invariant(self.pool(x)).tensor.amax((2, 3)))


class GatedIrreps(nn.Module):
    """Irreps of SO(2): gates, norms, batch norm of norms, pooling by norms."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        fields = FieldType(SO2, [SO2.irrep(1), SO2.irrep(2)])
        gates = trivial(SO2, 2)
        self.lift = convolution(trivial(SO2), fields + gates, 5, padding=2)
        self.gate = enn.GatedNonLinearity1(fields + gates, ["gated", "gated", "gate", "gate"])
        self.norm = enn.NormBatchNorm(fields)
        self.pool = enn.NormMaxPool(fields, 2)
        self.conv = convolution(fields, fields, 3, padding=1, bias=False)
        self.relu = enn.NormNonLinearity(fields, function="n_relu")
        self.norms = enn.NormPool(fields)
        self.linear = nn.Linear(2, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.lift(self.lift.in_type(images))
        x = self.pool(self.norm(self.gate(x)))
        x = x + self.relu(self.conv(x))
        return self.linear(self.norms(x).tensor.mean((2, 3)))


class QuotientFields(nn.Module):
    """Regular fields of D4 beside functions on its quotients by rotations and by a reflection."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        quotients = [D4.quotient_repr((None, 2)), D4.quotient_repr((0, 1))]
        fields = FieldType(D4, [D4.regular_repr, *quotients])
        self.body = enn.SequentialModule(
            convolution(trivial(D4), fields, 3, padding=1),
            enn.InnerBatchNorm(fields),
            enn.ReLU(fields),
            enn.PointwiseMaxPoolAntialiased(fields, kernel_size=2, stride=2),
            convolution(fields, fields, 3, padding=1),
        )
        self.pool = enn.GroupPooling(fields)
        self.head = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.body(self.body.in_type(images))).tensor)


class VectorFields(nn.Module):
    """The largest response over C8 with its direction, in each layer; lengths at the end (RotEqNet)."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        responses = regular(C8, 2)
        self.conv1 = convolution(trivial(C8), responses, 5, padding=2, stride=2)
        self.vector = enn.VectorFieldNonLinearity(responses)
        vectors = self.vector.out_type
        self.norm = enn.NormBatchNorm(vectors)
        self.conv2 = convolution(vectors, responses, 3, padding=1)
        self.length = enn.NormPool(vectors)
        self.linear = nn.Linear(2, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = GeometricTensor(images, self.conv1.in_type)
        x = self.norm(self.vector(self.conv1(x)))
        x = self.vector(self.conv2(x))
        return self.linear(self.length(x).tensor.mean((2, 3)))


class RobotPolicy(nn.Module):
    """Actor and critic on a picture from above: invariant and vector actions, the value of the mean action.

    The encoder is over D4, actions over its rotations.
    """

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        fields = regular(D4)
        self.encoder = enn.SequentialModule(
            convolution(trivial(D4, 2), fields, 3, padding=1, stride=2),
            enn.ReLU(fields),
            enn.PointwiseMaxPool(fields, 2),
            convolution(fields, fields, 3),
            enn.ReLU(fields),
        )
        features = fields.restrict((None, 4))
        space = features.gspace
        # The gripper and its height beside a step in the plane; a deviation of each.
        self.action = FieldType(space, [space.trivial_repr] * 2 + [space.irrep(1)])
        self.actor = convolution(features, self.action + trivial(space, 3), kernel_size=1)
        self.critic = convolution(features + self.action, regular(space, 2), kernel_size=1)
        self.pool = enn.GroupPooling(self.critic.out_type)
        self.value = nn.Linear(2, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        features = self.encoder(enn.GeometricTensor(pictures, self.encoder.in_type)).restrict((None, 4))
        mean, deviation = self.actor(features).tensor.split([self.action.size, 3], dim=1)
        action = self.action(torch.tanh(mean))
        hidden = self.pool(self.critic(enn.tensor_directsum([features, action])))
        value = self.value(torch.relu(hidden.tensor.mean((2, 3))))
        return torch.cat([action.tensor.flatten(1), deviation.clamp(-4, 4).exp().flatten(1), value], dim=1)
