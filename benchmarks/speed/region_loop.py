"""Soft translation by a convolution for each region, one after the other, in place of one grouped convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.group.regions import RegionPartition
from escnn_relaxed.integral.regions import _cut, _joined
from escnn_relaxed.torch_modes import full_precision

__all__ = ["RegionLoop"]


class RegionLoop(nn.Module):
    """A layer that is soft in translation, on plain tensors."""

    def __init__(self, layer: RelaxedR2Conv) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        """(batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        layer, geometry = self.layer, self.layer.geometry
        height, width = images.shape[-2:]
        partition = RegionPartition.of(geometry.output_size(height, width), layer.regions)
        with full_precision(images):
            banks = layer._banks_of(partition)
        tiles = _cut(images, geometry, partition).chunk(len(banks), 1)
        outputs = [
            functional.conv2d(tile, bank, None, geometry.stride, 0, geometry.dilation, geometry.groups)
            for tile, bank in zip(tiles, banks, strict=True)
        ]
        result = _joined(torch.cat(outputs, 1), partition)
        bias = layer.expanded_bias()
        return result if bias is None else result + bias.to(result.dtype).view(-1, 1, 1)
