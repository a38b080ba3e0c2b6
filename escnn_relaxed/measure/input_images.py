"""Images to measure equivariance on: noise, and images that can be turned without losing their corners."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_size
from .pixel_grid import PixelGrid

__all__ = ["faded", "noise", "without_what_leaves"]

_BATCH = 16
_SEED = 0
# Of the smooth noise, in pixels: cubic interpolation turns it at a cost of about a percent.
_BLUR = 2.0
# Part of the inscribed circle's radius over which an image is faded.
_EDGE = 0.25


def noise(module: nn.Module, channels: int, input_size: Any) -> tuple[Tensor, Tensor]:
    """White and smooth noise of unit variance for a module, (16, C, H, W) each, the same in every call.

    Raises:
        TypeError: for a size that is no integer or pair of integers.
        ValueError: for a size below 1.
    """
    height, width = check_size("input_size", input_size)
    # A generator of its own, so that measuring in training changes nothing of what is drawn there.
    generator = torch.Generator().manual_seed(_SEED)
    white = torch.randn(_BATCH, channels, height, width, generator=generator, dtype=torch.float64)
    row, column = torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width)
    response = torch.exp(-2 * (math.pi * _BLUR) ** 2 * (row**2 + column**2))
    smooth = torch.fft.ifft2(torch.fft.fft2(white) * response).real
    smooth = smooth / smooth.square().mean().sqrt()
    tensors = (tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point())
    like = next(tensors, torch.zeros(()))
    return white.to(like), smooth.to(like)


def faded(features: Tensor) -> Tensor:
    """Images (…, H, W) times a window: 1 inside, falling as cos² to 0 on the circle through the outermost pixels."""
    height, width = features.shape[-2:]
    distance = torch.from_numpy((PixelGrid(height, width).positions() ** 2).sum(-1) ** 0.5)
    radius = max(min(height, width) - 1, 1) / 2
    fall = ((distance - (1 - _EDGE) * radius) / (_EDGE * radius)).clamp(0, 1)
    return features * torch.cos(math.pi / 2 * fall).square().to(features)


def without_what_leaves(features: Tensor, rows: int, columns: int) -> Tensor:
    """Images with 0 where a shift by rows down and columns to the right would push them out."""
    kept = torch.zeros_like(features)
    inside = [
        slice(max(0, -pixels), max(0, size - max(0, pixels)))
        for pixels, size in zip((rows, columns), features.shape[-2:], strict=True)
    ]
    kept[..., inside[0], inside[1]] = features[..., inside[0], inside[1]]
    return kept
