"""Three architectures of published code on images, small, in the manner of ``drop_in_networks``."""

from __future__ import annotations

import torch
from escnn import nn as enn
from escnn.nn import FieldType, GeometricTensor
from fields_of_networks import D4, SO2, Layer, regular, trivial
from torch import Tensor, nn


def cropped(features: GeometricTensor, pixels: int) -> GeometricTensor:
    """Without a frame of so many pixels."""
    inner = slice(pixels, -pixels)
    return GeometricTensor(features.tensor[:, :, inner, inner], features.type)


class SkipUNet(nn.Module):
    """U-Net over D4: two convolutions a level, strides down, transposed convolutions up, skips beside what comes up."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        image, narrow, wide = trivial(D4, 3), regular(D4), regular(D4, 2)

        def twice(in_type: FieldType, out_type: FieldType, stride: int = 1) -> enn.SequentialModule:
            parts = []
            for fields, step in ((in_type, stride), (out_type, 1)):
                convolved = convolution(fields, out_type, 3, padding=1, stride=step, bias=False)
                parts += [convolved, enn.InnerBatchNorm(out_type), enn.ReLU(out_type, inplace=True)]
            return enn.SequentialModule(*parts)

        self.input_type = image
        self.enter, self.down = twice(image, narrow), nn.ModuleList([twice(narrow, narrow, 2), twice(narrow, wide, 2)])
        up = {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1}
        self.up = nn.ModuleList([transposed(wide, narrow, **up), transposed(narrow, narrow, **up)])
        self.join = nn.ModuleList(twice(narrow + narrow, narrow) for _ in range(2))
        self.last = convolution(narrow, trivial(D4), kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        levels = [self.enter(GeometricTensor(images, self.input_type))]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(enn.tensor_directsum([levels.pop(), up(x)]))
        return torch.sigmoid(self.last(x).tensor)


class DenseHistology(nn.Module):
    """P4M-DenseNet for patches of tissue: no padding, cropped features beside new ones, so that all stays exact."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        growth = regular(D4)
        self.lift = convolution(trivial(D4, 3), growth, kernel_size=3, bias=False)
        fields, blocks = growth, []
        for layers in (2, 1):
            block = nn.ModuleList()
            for _ in range(layers):
                convolved = convolution(fields, growth, kernel_size=3, bias=False)
                block.append(enn.SequentialModule(enn.InnerBatchNorm(fields), enn.ReLU(fields), convolved))
                fields = fields + growth
            blocks.append(block)
            if len(blocks) == 1:
                squeeze = convolution(fields, growth, kernel_size=1, bias=False)
                pool = enn.PointwiseAvgPool(growth, kernel_size=2, stride=2)
                self.transition = enn.SequentialModule(enn.InnerBatchNorm(fields), enn.ReLU(fields), squeeze, pool)
                fields = growth
        self.first, self.second = blocks
        self.leave = enn.SequentialModule(enn.InnerBatchNorm(fields), enn.ReLU(fields), enn.GroupPooling(fields))
        self.linear = nn.Linear(len(fields), 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.lift(self.lift.in_type(images))
        for layer in self.first:
            x = enn.tensor_directsum([cropped(x, 1), layer(x)])
        x = self.transition(x)
        for layer in self.second:
            x = enn.tensor_directsum([cropped(x, 1), layer(x)])
        return torch.sigmoid(self.linear(self.leave(x).tensor.mean((2, 3))))


class PatchAttention(nn.Module):
    """Patches that share no pixel, as irreps of SO(2); they attend to each other by inner products of whole fields."""

    def __init__(self, convolution: Layer, transposed: Layer) -> None:
        super().__init__()
        self.heads, self.input_type = 2, trivial(SO2)
        head = [SO2.irrep(0), SO2.irrep(1), SO2.irrep(2)]
        fields = FieldType(SO2, head * self.heads)
        self.patches = convolution(self.input_type, fields, kernel_size=4, stride=4)
        self.query, self.key, self.value = (convolution(fields, fields, 1, bias=False) for _ in range(3))
        self.together = convolution(fields, fields, kernel_size=1)
        self.bend = enn.NormNonLinearity(fields, function="n_relu", bias=False)
        self.mix = convolution(fields, fields, kernel_size=1)
        self.norms = enn.NormPool(fields)
        self.linear = nn.Linear(len(fields), 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(self.input_type(images))
        of_heads = [
            part(x).tensor.flatten(2).unflatten(1, (self.heads, -1)) for part in (self.query, self.key, self.value)
        ]
        query, key, value = (tokens.transpose(2, 3) for tokens in of_heads)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        attended = attended.transpose(2, 3).reshape_as(x.tensor)
        x = x + self.together(GeometricTensor(attended, x.type))
        x = x + self.mix(self.bend(x))
        return self.linear(self.norms(x).tensor.mean((2, 3)))
