"""Soft translation by a convolution for each region, one after the other, in place of one grouped convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv

__all__ = ["RegionLoop"]


class RegionLoop(nn.Module):
    """A layer that is soft in translation, on plain tensors: padding k // 2, and sides that the regions divide."""

    def __init__(self, layer: RelaxedR2Conv) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        """(batch, C_in, H, W) → (batch, C_out, H, W)."""
        banks, bias = self.layer.region_banks(images.shape[-2:]), self.layer.expanded_bias
        height, width = (side // count for side, count in zip(images.shape[-2:], banks.shape, strict=False))
        margin = banks.shape[-1] // 2
        padded = functional.pad(images, 4 * (margin,))
        rows = []
        for top, row in zip(range(0, images.shape[-2], height), banks, strict=True):
            lefts = range(0, images.shape[-1], width)
            tiles = [padded[..., top : top + height + 2 * margin, at : at + width + 2 * margin] for at in lefts]
            rows.append(torch.cat([functional.conv2d(*pair, bias) for pair in zip(tiles, row, strict=True)], dim=-1))
        return torch.cat(rows, dim=-2)
