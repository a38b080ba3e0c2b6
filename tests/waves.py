"""Smooth fields that are turned in closed form, so that a layer's own error off the pixel grid can be measured."""

from __future__ import annotations

import math

import numpy as np
import torch
from escnn.group import GroupElement
from escnn.nn import EquivariantModule
from torch import Tensor
from transformations import fiber_action


class Waves:
    """Random smooth fields f(p) = Σ a_w cos(2π k_w·p + φ_w), band-limited: |k_w| cycles per pixel at most."""

    def __init__(self, channels: int, cycles_per_pixel: float, size: int = 7, batch: int = 64, waves: int = 16) -> None:
        self.size = size
        angle = 2 * math.pi * torch.rand(batch, waves, dtype=torch.float64)
        radius = cycles_per_pixel * torch.rand(batch, waves, dtype=torch.float64).sqrt()
        self.wave = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
        self.amplitude = torch.randn(batch, channels, waves, dtype=torch.float64)
        self.phase = 2 * math.pi * torch.rand(batch, channels, waves, dtype=torch.float64)

    def sample(self, rotation: np.ndarray) -> Tensor:
        """f(R⁻¹p) on the pixels of a square image, y up: (batch, channels, size, size)."""
        line = torch.arange(self.size, dtype=torch.float64) - (self.size - 1) / 2
        points = torch.stack([line.expand(self.size, -1), -line[:, None].expand(-1, self.size)], dim=-1)
        points = points @ torch.from_numpy(rotation)  # rows p become R⁻¹p
        phase = 2 * math.pi * torch.einsum("hwx,bnx->bnhw", points, self.wave)
        value = torch.cos(phase[:, None] + self.phase[..., None, None])
        return torch.einsum("bcn,bcnhw->bchw", self.amplitude, value)


@torch.no_grad()
def error_at_centre(module: EquivariantModule, waves: Waves, element: GroupElement) -> float:
    """‖(L g f)(0) − ρ(g) (L f)(0)‖ / ‖(L f)(0)‖."""
    action = module.in_type.gspace.basespace_action(element)
    turned = fiber_action(waves.sample(action), module.in_type, element)
    answer = module(module.in_type(waves.sample(np.eye(2)))).tensor
    found = module(module.in_type(turned)).tensor
    return float((found - fiber_action(answer, module.out_type, element)).norm() / answer.norm())
