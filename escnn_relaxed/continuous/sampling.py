"""Random samples of SO(2) and O(2): the grid of rotations, turned by an angle that a forward draws."""

from __future__ import annotations

import math

import torch
from torch import nn

from ..kernel.kernel import Kernel, KernelConfig


def drawn_angle() -> float:
    """Return an angle in [0, 2π), drawn from torch's generator, so that seeds and checkpoints repeat it."""
    return 2 * math.pi * torch.rand((), device="cpu").item()


def draw_samples(network: nn.Module) -> None:
    """Draw one rotation of the samples for all layers of a network that have random ones in its present mode.

    Call it before each forward. A layer that no call has reached draws a rotation for itself, which is right between
    fields of irreps alone. Layers keep the rotation until the next call, so that activation checkpointing repeats it.

    Args:
        network: any module, with layers of ``ContinuousKernel(sampling="random")``.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
        >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
        >>> kernel = ContinuousKernel(sampling="random")
        >>> layers = [RelaxedR2Conv(fields, fields, 5, kernel=kernel) for _ in range(2)]
        >>> draw_samples(nn.SequentialModule(*layers))
        >>> layers[0].kernel.angle == layers[1].kernel.angle != 0
        True
    """
    kernels = [module for module in network.modules() if isinstance(module, Kernel) and module.is_random]
    angle = drawn_angle() if kernels else 0.0
    for kernel in kernels:
        kernel.draw(angle)


def check_can_be_drawn(config: KernelConfig) -> None:
    """Raise a ``ValueError`` unless fields can be read as samples of a continuous group of the plane."""
    gspace = config.domain.gspace
    fields = (*config.in_type.representations, *config.out_type.representations)
    is_sampled = all(field.is_trivial() or field.name == "regular" for field in fields)
    if config.domain.dimension != 2 or not (gspace.fibergroup.continuous or (not gspace.flips_order and is_sampled)):
        raise ValueError(
            f"sampling must be 'grid' here: random samples are those of SO(2) and O(2), or of regular and trivial "
            f"fields of C_N, got {gspace.name} with {sorted({field.name for field in fields})}"
        )
