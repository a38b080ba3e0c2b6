"""Public kinds of network on volumes, small: each takes the class of its convolutions by name."""

from __future__ import annotations

from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn


class SegmentationUNet(nn.Module):
    """Two levels with a skip, as of U-Nets for scans: regular fields of turns about z, batch norm, ReLU, upsampling."""

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        gspace = gspaces.rot2dOnR3(4)
        self.image = FieldType(gspace, [gspace.trivial_repr])
        hidden = FieldType(gspace, [gspace.regular_repr] * 2)
        both = FieldType(gspace, [gspace.regular_repr] * 4)
        labels = FieldType(gspace, [gspace.trivial_repr] * 2)
        self.down = enn.SequentialModule(
            convolution(self.image, hidden, 3, padding=1), enn.IIDBatchNorm3d(hidden), enn.ReLU(hidden)
        )
        self.pool = enn.PointwiseMaxPoolAntialiased3D(hidden, 2)
        self.inner = enn.SequentialModule(convolution(hidden, hidden, kernel_size=3, padding=1), enn.ELU(hidden))
        self.up = enn.R3Upsampling(hidden, scale_factor=2)
        self.last = convolution(both, labels, 1)

    def forward(self, scan: Tensor) -> Tensor:
        """(batch, 1, n, n, n) → (batch, 2, n, n, n)."""
        high = self.down(self.image(scan))
        low = self.up(self.inner(self.pool(high)))
        output: Tensor = self.last(enn.tensor_directsum([high, low])).tensor
        return output


class VoxelGrasping(nn.Module):
    """Volumes of objects to the values of grasps: octahedral irreps with gates, strides, and a mean over the voxels."""

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        gspace = gspaces.octaOnR3()
        self.image = FieldType(gspace, [gspace.trivial_repr])
        fields = FieldType(gspace, [gspace.irrep(0), gspace.irrep(1), gspace.irrep(2)])
        gates = FieldType(gspace, [gspace.trivial_repr] * len(fields))
        self.layers = enn.SequentialModule(
            convolution(self.image, gates + fields, 3, 1, 2, bias=True),
            enn.GatedNonLinearity1(gates + fields, gates=["gate"] * len(gates) + ["gated"] * len(fields)),
            convolution(fields, fields, kernel_size=5, padding=2),
            enn.NormPool(fields),
        )
        self.head = nn.Linear(len(fields), 3)

    def forward(self, scene: Tensor) -> Tensor:
        """(batch, 1, n, n, n) → (batch, 3)."""
        features: Tensor = self.layers(self.image(scene)).tensor
        values: Tensor = self.head(features.mean((2, 3, 4)))
        return values


class FlowStep(nn.Module):
    """Velocities of a flow to their change, with a residual sum: vectors and scalars of O(3), periodic padding."""

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        gspace = gspaces.flipRot3dOnR3()
        self.velocity = FieldType(gspace, [gspace.irrep(1, 1)])
        hidden = FieldType(gspace, [gspace.irrep(0, 0), gspace.irrep(1, 1), gspace.irrep(0, 2)])
        options = {"padding": 1, "padding_mode": "circular"}
        self.first = convolution(self.velocity, hidden, 3, **options)
        self.bend = enn.NormNonLinearity(hidden)
        self.last = convolution(hidden, self.velocity, 3, bias=False, **options)

    def forward(self, velocity: Tensor) -> Tensor:
        """(batch, 3, n, n, n) → the same shape."""
        before = self.velocity(velocity)
        after: GeometricTensor = before + self.last(self.bend(self.first(before)))
        return after.tensor


NETWORKS: dict[str, tuple[type[nn.Module], int]] = {
    "segmentation U-Net": (SegmentationUNet, 1),
    "voxel grasping": (VoxelGrasping, 1),
    "flow": (FlowStep, 3),
}


def volumes_for(name: str) -> Tensor:
    return torch.randn(2, NETWORKS[name][1], 8, 8, 8)
