"""Trained layers and networks of ``R2Conv``, for what is done with networks that exist."""

from __future__ import annotations

import small
import torch
from escnn import nn
from escnn.nn import R2Conv
from small import shake


def convolution(space: str, pair: str, kernel_size: int = 3, make: type = R2Conv, **arguments: object) -> R2Conv:
    """A trained layer: weights and bias away from their start."""
    layer = make(*small.types(space, pair), kernel_size, **arguments)
    shake(layer)
    return layer


def network(space: str = "C4", **arguments: object) -> nn.SequentialModule:
    """Three layers with escnn's batch norm, ReLU and pooling."""
    regular = small.field_type(space, "two regular")
    return nn.SequentialModule(
        convolution(space, "trivial -> two regular", padding=1, **arguments),
        nn.InnerBatchNorm(regular),
        nn.ReLU(regular),
        convolution(space, "two regular -> two regular", padding=1, **arguments),
        nn.PointwiseMaxPool2D(regular, kernel_size=2),
        convolution(space, "two regular -> two regular", padding=1, **arguments),
        nn.GroupPooling(regular),
    )


def train_a_step(module: torch.nn.Module, rate: float = 0.1) -> None:
    """One step of gradient descent on a target that is not equivariant."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(parameters, lr=rate)
    dtype = parameters[0].dtype
    found = module(module.in_type(small.random_input(module.in_type, 8, 8, dtype=dtype))).tensor
    torch.nn.functional.mse_loss(found, torch.randn_like(found)).backward()
    optimiser.step()
