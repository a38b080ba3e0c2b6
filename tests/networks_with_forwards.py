"""Networks with forwards of their own on GeometricTensors, as users write them: from images to numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import EquivariantModule, FieldType, GeometricTensor, R2Conv
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv

SIDE = 12
SPACE = gspaces.flipRot2dOnR2(4)
NARROW = FieldType(SPACE, [SPACE.regular_repr])
WIDE = FieldType(SPACE, [SPACE.regular_repr] * 2)
CIRCLE = gspaces.rot2dOnR2(-1, maximum_frequency=2)


def soft(in_type: FieldType, out_type: FieldType, kernel_size: int = 3, **arguments: object) -> RelaxedR2Conv:
    return RelaxedR2Conv(
        in_type, out_type, kernel_size, padding=kernel_size // 2, relax={"rotation": 0.25}, initial_softness=0.3,
        **arguments,
    )  # fmt: skip


class Block(EquivariantModule):
    """Sum of a body and a shortcut, as in escnn's ``examples/e2wrn.py``."""

    def __init__(self, in_type: FieldType, out_type: FieldType, stride: int = 1) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        self.relu = enn.ReLU(in_type, inplace=True)
        self.norm = enn.InnerBatchNorm(in_type)
        self.conv = soft(in_type, out_type, stride=stride)
        self.shortcut = None
        if stride > 1 or in_type != out_type:
            self.shortcut = R2Conv(in_type, out_type, 1, stride=stride, bias=False)

    def forward(self, features: GeometricTensor) -> GeometricTensor:
        normal = self.relu(self.norm(features))
        output = self.conv(normal)
        output += features if self.shortcut is None else self.shortcut(normal)
        return output

    def evaluate_output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.conv.evaluate_output_shape(shape)


class Network(nn.Module):
    """Lifting, what a subclass does in ``middle``, and a head."""

    def __init__(self, lifted: FieldType = NARROW, last: FieldType = NARROW) -> None:
        super().__init__()
        self.in_type = FieldType(lifted.gspace, [lifted.gspace.trivial_repr])
        self.lift = soft(self.in_type, lifted)
        self.head = nn.Sequential(nn.BatchNorm1d(last.size), nn.Linear(last.size, 3))

    def forward(self, images: Tensor) -> Tensor:
        features = self.lift(GeometricTensor(images, self.in_type))
        return self.head(self.middle(features).tensor.mean((2, 3)))


class Residual(Network):
    def __init__(self) -> None:
        super().__init__(NARROW, WIDE)
        blocks = [Block(NARROW, NARROW), Block(NARROW, WIDE, stride=2)]
        self.blocks = nn.ModuleList([*blocks, enn.SequentialModule(Block(WIDE, WIDE), enn.ELU(WIDE))])

    def middle(self, features: GeometricTensor) -> GeometricTensor:
        for block in self.blocks:
            features = block(features)
        return features


class DirectSum(Network):
    def __init__(self) -> None:
        super().__init__(NARROW, NARROW)
        self.first = soft(NARROW, NARROW)
        self.second = enn.SequentialModule(R2Conv(NARROW, NARROW, 5, padding=2), enn.ReLU(NARROW))
        self.join = soft(NARROW + NARROW, NARROW)

    def middle(self, features: GeometricTensor) -> GeometricTensor:
        joined = enn.tensor_directsum([self.first(features), self.second(features)])
        # Parts of a sequence by their number.
        return self.join(joined) - self.second[0](features) * 0.5


class Concatenation(Network):
    def __init__(self) -> None:
        super().__init__(NARROW, NARROW)
        self.convs = nn.ModuleDict({"small": soft(NARROW, NARROW), "wide": soft(NARROW, NARROW, 5)})
        self.join = soft(WIDE, NARROW)

    def middle(self, features: GeometricTensor) -> GeometricTensor:
        parts = [self.convs[name](features).tensor for name in ("small", "wide")]
        return self.join(enn.GeometricTensor(torch.cat(parts, dim=1), self.join.in_type))


class Restricted(Network):
    """To rotations, at run time."""

    def __init__(self) -> None:
        restricted = NARROW.restrict((None, 4))
        last = FieldType(restricted.gspace, [restricted.gspace.regular_repr])
        super().__init__(NARROW, last)
        self.conv = soft(restricted, last)

    def middle(self, features: GeometricTensor) -> GeometricTensor:
        return self.conv(features.restrict((None, 4)))


class Turned(Network):
    """The fibers alone."""

    def middle(self, features: GeometricTensor) -> GeometricTensor:
        return features + features.transform_fibers(SPACE.fibergroup.element((0, 1)))


class Split(Network):
    def __init__(self) -> None:
        super().__init__(WIDE, NARROW)
        self.conv = soft(NARROW, NARROW)

    def middle(self, features: GeometricTensor) -> GeometricTensor:
        first, second = features.split([1])
        return self.conv(first) + second + features[:, 1:2]


class UNet(Network):
    """Down and up again, by a transposed convolution and by interpolation, with skips."""

    def __init__(self) -> None:
        super().__init__(NARROW, NARROW)
        self.down = soft(NARROW, NARROW, stride=2)
        self.up = enn.R2ConvTransposed(NARROW, NARROW, 3, stride=2, padding=1, output_padding=1)
        self.larger = enn.R2Upsampling(NARROW, 2)
        self.join = soft(NARROW + NARROW + NARROW, NARROW)

    def middle(self, features: GeometricTensor) -> GeometricTensor:
        low = self.down(features)
        return self.join(enn.tensor_directsum([features, self.up(low), self.larger(low)]))


class Gated(Network):
    """Gates and fields in two tensors, norms of any representation, pooling by norms."""

    def __init__(self) -> None:
        fields = FieldType(CIRCLE, [CIRCLE.irrep(1), CIRCLE.irrep(2), CIRCLE.irrep(1)])
        gates = FieldType(CIRCLE, [CIRCLE.trivial_repr] * 3)
        super().__init__(fields, fields)
        self.norm = enn.GNormBatchNorm(fields)
        self.gates = soft(fields, gates)
        self.gate = enn.GatedNonLinearity2((gates, fields))
        self.pool_norms = enn.NormMaxPool(fields, 2)

    def middle(self, features: GeometricTensor) -> GeometricTensor:
        return self.pool_norms(self.gate(self.gates(features), self.norm(features)))


class Fourier(Network):
    """Band-limited fields on SO(2)."""

    def __init__(self) -> None:
        arguments = {"irreps": CIRCLE.fibergroup.bl_irreps(2), "type": "regular", "N": 8, "inplace": False}
        function = enn.FourierELU(CIRCLE, 2, **arguments)
        super().__init__(function.in_type, function.in_type)
        self.norm = enn.IIDBatchNorm2d(function.in_type)
        self.function = function

    def middle(self, features: GeometricTensor) -> GeometricTensor:
        return features + self.function(self.norm(features))


NETWORKS: dict[str, Callable[[], Network]] = {
    "residual": Residual,
    "direct sum": DirectSum,
    "concatenation": Concatenation,
    "restricted": Restricted,
    "turned": Turned,
    "split": Split,
    "U-Net": UNet,
    "gated": Gated,
    "Fourier": Fourier,
}


def images(batch: int = 2) -> Tensor:
    """The same noise in every call."""
    return torch.randn(batch, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
