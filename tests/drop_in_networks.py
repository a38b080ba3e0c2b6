"""Five small networks written with escnn, each with a forward of its own, from tensor to tensor.

Together they have strides, transposed convolutions, all kinds of pooling, joined, restricted, induced and disentangled
fields, gates, norms, functions on SO(2), masks, arguments of the basis, recurrence, and weights drawn in a loop. Every
class takes what stands for ``R2Conv`` and ``R2ConvTransposed``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn

# With the arguments of R2Conv, or of R2ConvTransposed.
Layer = Callable[..., EquivariantModule]

C4 = gspaces.rot2dOnR2(4)
D4, D6 = gspaces.flipRot2dOnR2(4), gspaces.flipRot2dOnR2(6)
SO2, O2 = gspaces.rot2dOnR2(-1, maximum_frequency=2), gspaces.flipRot2dOnR2(-1, maximum_frequency=2)
BASIS = {"sigma": 0.5, "frequencies_cutoff": 2.0, "maximum_offset": 1}


def trivial(space: gspaces.GSpace2D, count: int = 1) -> FieldType:
    return FieldType(space, [space.trivial_repr] * count)


def regular(space: gspaces.GSpace2D, count: int = 1) -> FieldType:
    return FieldType(space, [space.regular_repr] * count)


class SkipUNet(nn.Module):
    """U-Net over D4: down by a stride and by a maximum, up by a transposed convolution and by upsampling, skips."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        image, narrow, wide = trivial(D4, 3), regular(D4), regular(D4, 2)

        def block(in_type: FieldType, out_type: FieldType, stride: int = 1) -> enn.SequentialModule:
            convolved = convolution(in_type, out_type, 3, padding=1, stride=stride, bias=False)
            return enn.SequentialModule(convolved, enn.InnerBatchNorm(out_type), enn.ReLU(out_type, inplace=True))

        self.input_type = image
        self.enter, self.down, self.bottom = block(image, narrow), block(narrow, narrow, 2), block(narrow, wide)
        self.pool, self.upsample = enn.PointwiseMaxPool(narrow, 2), enn.R2Upsampling(wide, scale_factor=2)
        self.join = block(wide + narrow, narrow)
        self.up = transposed(narrow, narrow, 3, stride=2, padding=1, output_padding=1)
        self.last = convolution(narrow + narrow, trivial(D4), kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.enter(GeometricTensor(images, self.input_type))
        middle = self.down(fine)
        coarse = self.bottom(self.pool(middle))
        joined = self.join(enn.tensor_directsum([self.upsample(coarse), middle]))
        return torch.sigmoid(self.last(enn.tensor_directsum([fine, self.up(joined)])).tensor)


class ConvLSTM(nn.Module):
    """A cell over C4 that reads frames in turn: (batch, time, 1, H, W) → (batch, 1, H, W)."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        self.frame, self.hidden = trivial(C4), regular(C4, 2)
        self.gates = convolution(self.frame + self.hidden, regular(C4, 8), kernel_size=3, padding=1)
        self.readout = convolution(self.hidden, self.frame, kernel_size=1)

    def forward(self, frames: Tensor) -> Tensor:
        batch, _, _, height, width = frames.shape
        hidden = cell = frames.new_zeros(batch, self.hidden.size, height, width)
        for frame in frames.unbind(1):
            joined = enn.tensor_directsum([self.frame(frame), self.hidden(hidden)])
            gates, candidate = self.gates(joined).tensor.split([3 * self.hidden.size, self.hidden.size], dim=1)
            keep, take, give = torch.sigmoid(gates).chunk(3, dim=1)
            cell = keep * cell + take * torch.tanh(candidate)
            hidden = give * torch.tanh(cell)
        return self.readout(self.hidden(hidden)).tensor


class FourierFields(nn.Module):
    """Band-limited functions on SO(2), ELU on samples of them, blurred pooling (escnn's tutorial)."""

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


class Irreps(nn.Module):
    """Induced fields of O(2), restricted to SO(2) and disentangled; gates, norms, and pooling by norms."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        turns = O2.fibergroup.subgroup((None, -1))[0]
        induced = FieldType(O2, [O2.induced_repr((None, -1), turns.irrep(1))])
        self.lift = convolution(trivial(O2), induced, 5, padding=2)
        self.bend = enn.InducedNormNonLinearity(induced)
        restricted = induced.restrict((None, -1))
        self.disentangle = enn.DisentangleModule(restricted)
        space = restricted.gspace
        fields, gates = FieldType(space, [space.irrep(1), space.irrep(2)]), trivial(space, 2)
        self.mix = convolution(self.disentangle.out_type, fields + gates, 3, padding=1)
        self.gate = enn.GatedNonLinearity1(fields + gates, ["gated", "gated", "gate", "gate"])
        self.norm = enn.NormBatchNorm(fields)
        self.pool = enn.NormMaxPool(fields, 2)
        self.conv = convolution(fields, fields, 3, padding=1, bias=False)
        self.relu = enn.NormNonLinearity(fields, function="n_relu")
        self.norms = enn.NormPool(fields)
        self.linear = nn.Linear(2, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.bend(self.lift(self.lift.in_type(images))).restrict((None, -1))
        x = self.pool(self.norm(self.gate(self.mix(self.disentangle(x)))))
        x = x + self.relu(self.conv(x))
        return self.linear(self.norms(x).tensor.mean((2, 3)))


class Block(EquivariantModule):
    """A block of escnn's ``examples/e2wrn.py``."""

    def __init__(self, convolution: Layer, in_type: FieldType, out_type: FieldType, stride: int) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        self.bn1, self.relu1 = enn.InnerBatchNorm(in_type), enn.ReLU(in_type, inplace=True)
        self.conv1 = convolution(in_type, out_type, kernel_size=3, padding=1, bias=False, **BASIS)
        self.bn2, self.relu2 = enn.InnerBatchNorm(out_type), enn.ReLU(out_type, inplace=True)
        self.conv2 = convolution(out_type, out_type, kernel_size=3, padding=1, stride=stride, bias=False, **BASIS)
        self.shortcut = convolution(in_type, out_type, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: GeometricTensor) -> GeometricTensor:
        normal = self.relu1(self.bn1(x))
        out = self.conv2(self.relu2(self.bn2(self.conv1(normal))))
        out += self.shortcut(normal)
        return out

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.conv2.evaluate_output_shape(self.conv1.evaluate_output_shape(input_shape))


class ResNet(nn.Module):
    """Classifier over D6 of masked images, with large steps and arguments of the basis; a loop draws weights."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        fields = regular(D6)
        self.mask = enn.MaskModule(trivial(D6, 3), 17, margin=1)
        self.conv1 = convolution(trivial(D6, 3), fields, 5, padding=2, stride=4, bias=False, **BASIS)
        self.layers = nn.Sequential(Block(convolution, fields, fields, 1), Block(convolution, fields, fields, 2))
        self.pool, self.gpool = enn.PointwiseAvgPool(fields, kernel_size=2, stride=1), enn.GroupPooling(fields)
        self.drop, self.linear = nn.Dropout(0.0), nn.Linear(4, 5)
        for name, module in self.named_modules():
            # isinstance(module, R2Conv), with the name that stands in the place of R2Conv.
            if isinstance(module, type(self.conv1)):
                init = enn.init.deltaorthonormal_init if "conv2" in name else enn.init.generalized_he_init
                init(module.weights.data, module.basisexpansion)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layers(self.conv1(self.mask(enn.GeometricTensor(images, self.mask.in_type))))
        x = self.gpool(self.pool(x)).tensor
        return self.linear(self.drop(x.reshape(x.size(0), -1)))


# With the shape of one image; (time, channels, height, width) for the ConvLSTM.
NETWORKS: dict[str, tuple[Callable[[Layer, Layer], nn.Module], tuple[int, ...]]] = {
    "U-Net, D4": (SkipUNet, (3, 8, 8)),
    "ConvLSTM, C4": (ConvLSTM, (3, 1, 8, 8)),
    "SO(2), Fourier": (FourierFields, (1, 11, 11)),
    "irreps, O(2) and SO(2)": (Irreps, (1, 12, 12)),
    "ResNet, D6, arguments of the basis": (ResNet, (3, 17, 17)),
}


def images(name: str, batch: int = 3) -> Tensor:
    """The same noise in every call."""
    return torch.randn(batch, *NETWORKS[name][1], generator=torch.Generator().manual_seed(4))
