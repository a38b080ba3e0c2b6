"""Two small networks written with escnn, each with a forward of its own, from tensor to tensor.

Together they have strides, transposed convolutions, poolings, skips, induced and disentangled fields, gates and norms.
"""

from collections.abc import Callable

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn

# With the arguments of R2Conv, or of R2ConvTransposed.
Layer = Callable[..., EquivariantModule]

C4 = gspaces.rot2dOnR2(4)
D4 = gspaces.flipRot2dOnR2(4)
SO2, O2 = gspaces.rot2dOnR2(-1, maximum_frequency=2), gspaces.flipRot2dOnR2(-1, maximum_frequency=2)


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


# With the shape of one image.
NETWORKS: dict[str, tuple[Callable[[Layer, Layer], nn.Module], tuple[int, ...]]] = {
    "U-Net, D4": (SkipUNet, (3, 8, 8)),
    "irreps, O(2) and SO(2)": (Irreps, (1, 12, 12)),
}


def images(name: str, batch: int = 3) -> Tensor:
    """The same noise in every call."""
    return torch.randn(batch, *NETWORKS[name][1], generator=torch.Generator().manual_seed(4))
