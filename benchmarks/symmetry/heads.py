"""The ends of a classifier: pooled, a linear map of all channels, and a soft head between the two."""

from __future__ import annotations

import math

import torch
from escnn import nn as enn
from torch import Tensor, nn

# ω′ of the functions of the pose, and the root mean square of what a weight of 1 makes of them, as in RelaxedR2Conv.
FREQUENCY, UNIT = 0.25, 0.2


class PooledHead(nn.Module):
    """The largest channel of each field or its norm, the mean over the image, and a linear map: blind to the pose."""

    def __init__(self, in_type: enn.FieldType, classes: int) -> None:
        super().__init__()
        is_finite = in_type.gspace.fibergroup.order() > 0
        # Fields of a continuous group are irreps, whose norm is invariant.
        self.pooling = enn.GroupPooling(in_type) if is_finite else enn.NormPool(in_type)
        self.linear = nn.Linear(len(in_type), classes)

    def forward(self, features: enn.GeometricTensor) -> Tensor:
        """Return logits (batch, classes)."""
        logits: Tensor = self.linear(self.pooling(features).tensor.mean(dim=(2, 3)))
        return logits


class FreeHead(nn.Module):
    """A linear map of all channels, which sees the pose, of their means over the image or at each of some pixels."""

    def __init__(self, in_type: enn.FieldType, classes: int, pixels: int = 1) -> None:
        super().__init__()
        self.linear, self.pixels = nn.Linear(in_type.size * pixels, classes), pixels

    def forward(self, features: enn.GeometricTensor) -> Tensor:
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

    def __init__(self, in_type: enn.FieldType, classes: int) -> None:
        super().__init__()
        self.pooled = PooledHead(in_type, classes)
        self.register_buffer("functions", pose_functions(in_type))
        self.alpha = nn.Parameter(torch.zeros(classes, len(in_type), len(self.functions)))

    def forward(self, features: enn.GeometricTensor) -> Tensor:
        """Return logits (batch, classes)."""
        channels = features.tensor.mean(dim=(2, 3))
        factors = 1 + self.alpha @ self.functions
        weights = self.pooled.linear.weight.unsqueeze(2) * factors
        logits: Tensor = self.pooled(features) + channels @ weights.flatten(1).mT
        return logits


HEADS: dict[str, type[nn.Module]] = {"pooled": PooledHead, "free": FreeHead, "soft": SoftHead}


def pose_functions(fields: enn.FieldType) -> Tensor:
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
