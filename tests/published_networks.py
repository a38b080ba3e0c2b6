"""escnn's published architectures, small, from its own API: with ``R2Conv`` or what takes its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.gspaces import GSpace2D
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn

from escnn_relaxed import export_network

# R2Conv, or a class or function with its arguments.
Convolution = Callable[..., EquivariantModule]

SIDE = 17  # one more than a multiple of 4: strides of 2 keep the centre on a pixel
CLASSES = 3


class Classifier(nn.Module):
    """Fields to the end of ``features``, which leaves one invariant number each; then linear layers."""

    features: enn.SequentialModule

    def __init__(self, features: enn.SequentialModule, head: nn.Module | None = None) -> None:
        super().__init__()
        self.features = features
        width = features.out_type.size
        hidden = nn.Sequential(nn.Linear(width, 8), nn.BatchNorm1d(8), nn.ELU(inplace=True), nn.Linear(8, CLASSES))
        self.fully_net = hidden if head is None else head

    @property
    def in_type(self) -> FieldType:
        return self.features.in_type

    def forward(self, images: Tensor) -> Tensor:
        return self.fully_net(self.features(self.in_type(images)).tensor.mean((2, 3)))

    def export(self) -> nn.Module:
        """Part by part, as the error message of ``export_network`` says."""
        return PlainClassifier(export_network(self.features), export_network(self.fully_net))


class PlainClassifier(nn.Module):
    """The same forward on plain tensors."""

    def __init__(self, features: nn.Module, fully_net: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.fully_net = fully_net

    def forward(self, images: Tensor) -> Tensor:
        return self.fully_net(self.features(images).mean((2, 3)))


def steerable_cnn(convolution: Convolution) -> Classifier:
    """Six blocks of convolution, batch norm and ReLU over regular fields of C8, blurred pooling after each second.

    General E(2)-Equivariant Steerable CNNs, the network of escnn's tutorial and its ``examples/model.py``.
    """
    space = gspaces.rot2dOnR2(8)
    fields = FieldType(space, [space.trivial_repr])
    modules: list[EquivariantModule] = [enn.MaskModule(fields, SIDE, margin=1)]
    blocks = ((2, 7, 1), (2, 5, 2), (2, 5, 2), (2, 5, 2), (3, 5, 2), (3, 5, 0))
    for number, (count, kernel_size, padding) in enumerate(blocks):
        out_type = FieldType(space, [space.regular_repr] * count)
        block = [
            convolution(fields, out_type, kernel_size=kernel_size, padding=padding, bias=False),
            enn.InnerBatchNorm(out_type),
            enn.ReLU(out_type, inplace=True),
        ]
        fields = out_type
        modules.append(enn.SequentialModule(*block))
        if number in (1, 3):
            modules.append(enn.PointwiseAvgPoolAntialiased2D(fields, sigma=0.66, stride=2 if number == 1 else 1))
    return Classifier(enn.SequentialModule(*modules, enn.GroupPooling(fields)))


def gated_cnn(convolution: Convolution) -> Classifier:
    """Irreps of SO(2): gated and norm non-linearities in turn, batch norm, norm pooling.

    As the SO(2) rows of General E(2)-Equivariant Steerable CNNs (table 5).
    """
    space = gspaces.rot2dOnR2(-1, maximum_frequency=3)
    irreps = [space.irrep(frequency) for frequency in (1, 2)]
    trivial = FieldType(space, [space.trivial_repr] * 2)
    gated = FieldType(space, [*trivial.representations, *irreps])
    gates = FieldType(space, [space.trivial_repr] * len(gated))
    fields = FieldType(space, [space.trivial_repr])
    modules: list[EquivariantModule] = []
    for kernel_size, stride in ((5, 1), (5, 2)):
        with_gates = gates + gated
        labels = ["gate"] * len(gates) + ["gated"] * len(gated)
        modules += [
            convolution(fields, with_gates, kernel_size, padding=kernel_size // 2, stride=stride),
            enn.IIDBatchNorm2d(with_gates),
            enn.GatedNonLinearity1(with_gates, labels),
        ]
        fields = gated
        modules += [
            convolution(fields, gated, kernel_size, padding=kernel_size // 2, bias=False),
            enn.IIDBatchNorm2d(gated),
            _elu_and_norm(trivial, FieldType(space, irreps)),
        ]
    return Classifier(enn.SequentialModule(*modules, enn.NormPool(fields)))


def _elu_and_norm(trivial: FieldType, others: FieldType) -> enn.MultipleModule:
    """ELU on trivial fields, a norm non-linearity on the others."""
    labels = ["trivial"] * len(trivial) + ["others"] * len(others)
    parts = [(enn.ELU(trivial), "trivial"), (enn.NormNonLinearity(others), "others")]
    return enn.MultipleModule(trivial + others, labels, parts)


class WideBlock(EquivariantModule):
    """Two convolutions, field dropout between them, beside a 1×1 shortcut (escnn's ``examples/e2wrn.py``)."""

    def __init__(self, in_type: FieldType, out_type: FieldType, stride: int, convolution: Convolution) -> None:
        super().__init__()
        self.in_type = in_type
        self.out_type = out_type
        self.bn1 = enn.InnerBatchNorm(in_type)
        self.relu1 = enn.ReLU(in_type, inplace=True)
        self.conv1 = convolution(in_type, out_type, 3, padding=1, bias=False)
        self.bn2 = enn.InnerBatchNorm(out_type)
        self.relu2 = enn.ReLU(out_type, inplace=True)
        self.dropout = enn.FieldDropout(out_type, p=0.3)
        self.conv2 = convolution(out_type, out_type, 3, padding=1, stride=stride, bias=False)
        self.shortcut = None
        if stride != 1 or in_type != out_type:
            self.shortcut = convolution(in_type, out_type, 1, stride=stride, bias=False)

    def forward(self, features: GeometricTensor) -> GeometricTensor:
        normal = self.relu1(self.bn1(features))
        answer = self.dropout(self.relu2(self.bn2(self.conv1(normal))))
        return self.conv2(answer) + (features if self.shortcut is None else self.shortcut(normal))

    def evaluate_output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.conv2.evaluate_output_shape(self.conv1.evaluate_output_shape(shape))

    def export(self) -> nn.Module:
        names = ["bn1", "relu1", "conv1", "bn2", "relu2", "dropout", "conv2"]
        parts = [export_network(getattr(self, name)) for name in names]
        shortcut = None if self.shortcut is None else export_network(self.shortcut)
        return PlainWideBlock(parts[:2], parts[2:], shortcut)


class PlainWideBlock(nn.Module):
    """The same forward on plain tensors."""

    def __init__(self, first: Sequence[nn.Module], rest: Sequence[nn.Module], shortcut: nn.Module | None) -> None:
        super().__init__()
        self.first = nn.Sequential(*first)
        self.rest = nn.Sequential(*rest)
        self.shortcut = shortcut

    def forward(self, features: Tensor) -> Tensor:
        # A ReLU in place changes what batch norm gave, not the features.
        normal = self.first(features)
        return self.rest(normal) + (features if self.shortcut is None else self.shortcut(normal))


def wide_resnet(convolution: Convolution) -> Classifier:
    """Regular fields of D4, restricted to C4 before the last block, field dropout."""
    space = gspaces.flipRot2dOnR2(4)
    trivial = FieldType(space, [space.trivial_repr])
    narrow, wide = (FieldType(space, [space.regular_repr] * count) for count in (1, 2))
    modules: list[EquivariantModule] = [
        convolution(trivial, narrow, 5, padding=2, bias=False),
        WideBlock(narrow, wide, 1, convolution),
        WideBlock(wide, wide, 2, convolution),
        enn.RestrictionModule(wide, (None, 4)),
    ]
    modules.append(enn.DisentangleModule(modules[-1].out_type))
    restricted: GSpace2D = modules[-1].out_type.gspace
    last = FieldType(restricted, [restricted.regular_repr] * 2)
    modules += [
        WideBlock(modules[-1].out_type, last, 2, convolution),
        enn.InnerBatchNorm(last),
        enn.ReLU(last, inplace=True),
        enn.GroupPooling(last),
    ]
    return Classifier(enn.SequentialModule(*modules), nn.Linear(len(last), CLASSES))


NETWORKS: dict[str, Callable[[Convolution], Classifier]] = {
    "steerable CNN": steerable_cnn,
    "gates and norms": gated_cnn,
    "Wide-ResNet": wide_resnet,
}


def images(batch: int = 4) -> Tensor:
    """The same noise in every call."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(batch, 1, SIDE, SIDE, generator=generator)


def train(network: nn.Module, steps: int = 2) -> list[float]:
    """Adam on labels that are not invariant; the loss of each step."""
    optimiser = torch.optim.Adam([value for value in network.parameters() if value.requires_grad], lr=0.01)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(network(images()), torch.arange(4) % CLASSES)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses
