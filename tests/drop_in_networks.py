"""Fourteen kinds of networks that are written with escnn, small: each a forward of its own, from tensor to tensor.

Every class takes what stands for ``R2Conv`` and for ``R2ConvTransposed``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from escnn import nn as enn
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from fields_of_networks import C4, C8, D4, D8, SO2, Layer, regular, trivial
from public_networks import DenseHistology, PatchAttention, SkipUNet
from torch import Tensor, nn

GALAXY_BASIS = {"sigma": 0.5, "frequencies_cutoff": 2.0, "maximum_offset": 1}


class Digits(nn.Module):
    """Classifier over C8 with blurred pooling and invariant features (escnn's ``examples/model.py``)."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        self.input_type = trivial(C8)
        lifted, fields = regular(C8), regular(C8, 2)
        self.block1 = enn.SequentialModule(
            convolution(self.input_type, lifted, kernel_size=5, padding=2, bias=False),
            enn.InnerBatchNorm(lifted),
            enn.ReLU(lifted, inplace=True),
        )
        self.pool1 = enn.SequentialModule(enn.PointwiseAvgPoolAntialiased(lifted, sigma=0.66, stride=2))
        self.block2 = enn.SequentialModule(
            convolution(lifted, fields, kernel_size=5, padding=2, bias=False),
            enn.InnerBatchNorm(fields),
            enn.ReLU(fields, inplace=True),
        )
        self.pool2 = enn.PointwiseAvgPoolAntialiased(fields, sigma=0.66, stride=1, padding=0)
        self.gpool = enn.GroupPooling(fields)
        self.fully_net = nn.Sequential(nn.Linear(2 * 3**2, 8), nn.BatchNorm1d(8), nn.ELU(inplace=True), nn.Linear(8, 3))

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool1(self.block1(enn.GeometricTensor(images, self.input_type)))
        x = self.gpool(self.pool2(self.block2(x)))
        return self.fully_net(x.tensor.reshape(x.tensor.shape[0], -1))


class Segmentation(nn.Module):
    """U-Net over D4 with pooling, upsampling and skips; a class for each pixel."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        narrow, wide = regular(D4), regular(D4, 2)
        self.down = nn.ModuleList(
            [self.block(convolution, trivial(D4, 3), narrow), self.block(convolution, narrow, wide)]
        )
        self.pool = enn.PointwiseMaxPool(narrow, kernel_size=2, stride=2)
        self.upsample = enn.R2Upsampling(wide, scale_factor=2)
        self.up = self.block(convolution, wide + narrow, narrow)
        self.classify = convolution(narrow, trivial(D4, 2), kernel_size=1)

    @staticmethod
    def block(convolution: Layer, in_type: FieldType, out_type: FieldType) -> enn.SequentialModule:
        convolved = convolution(in_type, out_type, 3, padding=1, bias=False)
        return enn.SequentialModule(convolved, enn.InnerBatchNorm(out_type), enn.ReLU(out_type))

    def forward(self, images: Tensor) -> Tensor:
        fine = self.down[0](self.down[0].in_type(images))
        coarse = self.down[1](self.pool(fine))
        joined = enn.tensor_directsum([self.upsample(coarse), fine])
        return self.classify(self.up(joined)).tensor


class TransposedUNet(nn.Module):
    """U-Net over C4, down by strides and up by transposed convolutions, on sides 4n + 1."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        fields = regular(C4, 2)
        self.lift = convolution(trivial(C4), fields, 3, padding=1)
        self.downs = nn.ModuleList(convolution(fields, fields, 3, stride=2, padding=1) for _ in range(2))
        self.ups = nn.ModuleList(transposed(fields, fields, 3, stride=2, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(enn.InnerBatchNorm(fields) for _ in range(2))
        self.relu = enn.ReLU(fields)
        self.last = convolution(fields, trivial(C4), 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.lift(GeometricTensor(images, self.lift.in_type))
        skips = []
        for down in self.downs:
            skips.append(x)
            x = self.relu(down(x))
        for up, norm in zip(self.ups, self.norms, strict=True):
            x = self.relu(norm(up(x))) + skips.pop()
        return self.last(x).tensor


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


class WideBlock(EquivariantModule):
    """A block of escnn's ``examples/e2wrn.py``."""

    def __init__(self, convolution: Layer, in_type: FieldType, out_type: FieldType, stride: int) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        self.bn1, self.relu1 = enn.InnerBatchNorm(in_type), enn.ReLU(in_type, inplace=True)
        self.conv1 = convolution(in_type, out_type, kernel_size=3, padding=1, bias=False)
        self.bn2, self.relu2 = enn.InnerBatchNorm(out_type), enn.ReLU(out_type, inplace=True)
        self.conv2 = convolution(out_type, out_type, kernel_size=3, padding=1, stride=stride, bias=False)
        self.shortcut = convolution(in_type, out_type, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: GeometricTensor) -> GeometricTensor:
        normal = self.relu1(self.bn1(x))
        out = self.conv2(self.relu2(self.bn2(self.conv1(normal))))
        out += self.shortcut(normal)
        return out

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.conv2.evaluate_output_shape(self.conv1.evaluate_output_shape(input_shape))


class WideResNet(nn.Module):
    """Over D4, weights drawn in a loop over the modules: He's rule, delta-orthonormal in the blocks."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        narrow, wide = regular(D4), regular(D4, 2)
        self.conv1 = convolution(trivial(D4, 3), narrow, kernel_size=3, padding=1, bias=False)
        self.layers = nn.Sequential(WideBlock(convolution, narrow, narrow, 1), WideBlock(convolution, narrow, wide, 2))
        self.bn, self.relu, self.mp = enn.InnerBatchNorm(wide), enn.ReLU(wide), enn.GroupPooling(wide)
        self.linear = nn.Linear(2, 3)
        for name, module in self.named_modules():
            # isinstance(module, R2Conv), with the name that stands in the place of R2Conv.
            if isinstance(module, type(self.conv1)):
                init = enn.init.deltaorthonormal_init if "conv2" in name else enn.init.generalized_he_init
                init(module.weights.data, module.basisexpansion)
            elif isinstance(module, nn.BatchNorm3d):
                module.weight.data.fill_(1)
                module.bias.data.zero_()
            elif isinstance(module, nn.Linear):
                module.bias.data.zero_()

    def forward(self, images: Tensor) -> Tensor:
        out = self.layers(self.conv1(enn.GeometricTensor(images, self.conv1.in_type)))
        out = self.mp(self.relu(self.bn(out))).tensor
        return self.linear(nn.functional.adaptive_avg_pool2d(out, 1).flatten(1))


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


class Galaxies(nn.Module):
    """Over D8, large steps, with arguments of the basis; odds of answers to a tree of questions."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        fields = regular(D8)
        self.mask = enn.MaskModule(trivial(D8, 3), 17, margin=1)
        self.conv1 = convolution(trivial(D8, 3), fields, 5, padding=2, stride=4, bias=False, **GALAXY_BASIS)
        self.relu1 = enn.ReLU(fields, inplace=True)
        self.conv2 = convolution(fields, fields, 3, padding=1, **GALAXY_BASIS)
        self.relu2 = enn.ReLU(fields, inplace=True)
        self.pool = enn.PointwiseAvgPool(fields, kernel_size=2, stride=2)
        self.gpool = enn.GroupPooling(fields)
        self.drop, self.linear = nn.Dropout(0.0), nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.relu1(self.conv1(self.mask(enn.GeometricTensor(images, self.mask.in_type))))
        x = self.gpool(self.pool(self.relu2(self.conv2(x)))).tensor
        answers = self.linear(self.drop(x.reshape(x.size(0), -1)))
        return torch.cat([torch.softmax(answers[:, :2], 1), torch.softmax(answers[:, 2:], 1)], dim=1)


class Keypoints(nn.Module):
    """Self-supervised, over C4: descriptors of an image beside those of the turned image, turned back."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        fields = regular(C4)
        self.turn = C4.fibergroup.element(1)
        self.first = convolution(trivial(C4), fields, 3, padding=1)
        self.second = convolution(fields, fields, 3, padding=1)
        self.score = convolution(fields + fields, trivial(C4), 3, padding=1)
        self.relu = enn.ReLU(fields)

    def descriptors(self, images: GeometricTensor) -> GeometricTensor:
        return self.second(self.relu(self.first(images)))

    def forward(self, images: Tensor) -> Tensor:
        plain, turned = (self.descriptors(self.first.in_type(of)) for of in (images, images.transpose(2, 3).flip(2)))
        turned = turned.transform_fibers(~self.turn)
        back = GeometricTensor(turned.tensor.flip(2).transpose(2, 3), turned.type)
        return self.score(enn.tensor_directsum([plain, back])).tensor


# With the shape of one image; (time, channels, height, width) for the ConvLSTM.
NETWORKS: dict[str, tuple[Callable[[Layer, Layer], nn.Module], tuple[int, ...]]] = {
    "digits, C8, blurred pooling": (Digits, (1, 13, 13)),
    "segmentation U-Net, D4, upsampling": (Segmentation, (3, 12, 12)),
    "U-Net, C4, transposed convolutions": (TransposedUNet, (1, 13, 13)),
    "ConvLSTM, C4": (ConvLSTM, (3, 1, 8, 8)),
    "wide ResNet, D4, loops that draw weights": (WideResNet, (3, 9, 9)),
    "SO(2), Fourier": (FourierFields, (1, 11, 11)),
    "SO(2), gates and norms": (GatedIrreps, (1, 12, 12)),
    "vector fields, C8": (VectorFields, (1, 11, 11)),
    "robot policy, D4 and C4": (RobotPolicy, (2, 11, 11)),
    "galaxies, D8, arguments of the basis": (Galaxies, (3, 17, 17)),
    "key points, C4, turned fibers": (Keypoints, (1, 11, 11)),
    "U-Net, D4, transposed convolutions and joined skips": (SkipUNet, (3, 8, 8)),
    "DenseNet for histology, D4": (DenseHistology, (3, 20, 20)),
    "attention of patches, SO(2)": (PatchAttention, (1, 16, 16)),
}


def images(name: str, batch: int = 3) -> Tensor:
    """The same noise in every call."""
    return torch.randn(batch, *NETWORKS[name][1], generator=torch.Generator().manual_seed(4))
