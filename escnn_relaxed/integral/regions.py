"""Soft translation by regions: a filter bank for each, all in one grouped convolution. Runs without escnn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional

from ..group.regions import RegionPartition, Tiling
from .geometry import (
    ConvolutionGeometry,
    Geometry,
    TransposedGeometry,
    image_size,
    integrate_stationary,
)


def integrate(
    features: Tensor, banks: Tensor, bias: Tensor | None, geometry: Geometry, partition: RegionPartition | None = None
) -> Tensor:
    """Return h(x) = Σ_d K(d; x) f(x + d), where K may be a filter bank for each region of x, or its adjoint."""
    # The image is cut into tiles, each with the pixels around it that its taps read. They lie side by side as channels
    # of one grouped convolution. The adjoint has tiles of the input, and their outputs are added where they overlap.
    if partition is None:
        return integrate_stationary(features, banks, bias, geometry)
    regions = prod(partition.counts)
    if regions == 1:
        return integrate_stationary(features, banks.squeeze(0), bias, geometry)
    whole, margins, groups = banks.flatten(0, 1), (0,) * len(geometry.padding), regions * geometry.groups
    if isinstance(geometry, TransposedGeometry):
        of_tiles = replace(geometry, padding=margins, output_padding=margins, groups=groups)
        output = integrate_stationary(_divided(features, partition), whole, None, of_tiles)
        result = _added(output, image_size(features), geometry, partition)
    else:
        of_slices = replace(geometry, padding=margins, padding_mode="zeros", groups=groups)
        output = integrate_stationary(_cut(features, geometry, partition), whole, None, of_slices)
        result = _joined(output, partition)
    # Autocast casts the bias of a convolution too.
    return result if bias is None else result + bias.to(result.dtype).view(-1, *[1] * len(partition.axes))


def _cut(features: Tensor, geometry: ConvolutionGeometry, partition: RegionPartition) -> Tensor:
    """Return the pixels that the taps of each region read, (batch, regions·C_in, height, width)."""
    padding = geometry.padding
    if geometry.padding_mode != "zeros":
        features, padding = geometry.pad(features), (0,) * len(padding)
    slices = [_Slices.of(axis, geometry, added) for axis, added in zip(partition.axes, padding, strict=True)]
    # Where strides do not fit the image, its last pixels are not read: negative padding takes them away.
    margins = [
        margin
        for of, size in reversed(list(zip(slices, image_size(features), strict=True)))
        for margin in (of.before, of.span - of.before - size)
    ]
    tiles = functional.pad(features, margins) if any(margins) else features
    for number, of in enumerate(slices):
        tiles = of.stack(tiles, 2 + 2 * number)
    tile, pixel = _axis_names(partition)
    pairs = " ".join(f"{t} {p}" for t, p in zip(tile, pixel, strict=True))
    return rearrange(tiles, f"batch channel {pairs} -> batch ({' '.join(tile)} channel) {' '.join(pixel)}")


@dataclass(frozen=True)
class _Slices:
    """The slices of the image that the tiles of one axis read."""

    starts: list[int]  # the first pixel of each, counted from the first that any reads
    side: int
    before: int  # pixels that the first reads before the image

    @staticmethod
    def of(axis: Tiling, geometry: ConvolutionGeometry, padding: int) -> _Slices:
        """Return the slices of the tiles of an axis, for an image with ``padding`` pixels of zeros on either side."""
        side = (axis.side - 1) * geometry.stride + geometry.extent
        starts = [(start + axis.cut) * geometry.stride for start in axis.starts]
        return _Slices(starts, side, padding + axis.cut * geometry.stride)

    @property
    def span(self) -> int:
        """The number of pixels from the first that any tile reads to the last."""
        return self.starts[-1] + self.side

    def stack(self, values: Tensor, dimension: int) -> Tensor:
        """Return a slice for each tile, (…, span, …) → (…, count, side, …), where ``dimension`` counts the tiles."""
        # Slices and not `unfold`, whose backward takes two to three times as long on a CPU.
        return torch.stack([values.narrow(dimension, start, self.side) for start in self.starts], dimension)

    def add(self, tiles: Tensor, dimension: int) -> Tensor:
        """Return tiles (…, count, side, …) added where they overlap, (…, span, …): the adjoint of :meth:`stack`."""
        behind = [0, 0] * (tiles.dim() - dimension - 2)
        parts = zip(self.starts, tiles.unbind(dimension), strict=True)
        placed = [functional.pad(part, [*behind, start, self.span - start - self.side]) for start, part in parts]
        return sum(placed[1:], placed[0])


def _joined(output: Tensor, partition: RegionPartition) -> Tensor:
    """Put tiles together: (batch, regions·C_out, side, side) → (batch, C_out, H_out, W_out)."""
    tile, pixel = _axis_names(partition)
    axes = " ".join(f"({t} {p})" for t, p in zip(tile, pixel, strict=True))
    pattern = f"batch ({' '.join(tile)} channel) {' '.join(pixel)} -> batch channel {axes}"
    tiles = rearrange(output, pattern, **dict(zip(tile, partition.counts, strict=True)))
    for number, axis in enumerate(partition.axes):
        tiles = axis.join(tiles, 2 + number)
    return tiles


def _divided(features: Tensor, partition: RegionPartition) -> Tensor:
    """Return the tiles of the image, (batch, regions·C_in, side, side): the adjoint of :func:`_joined`."""
    for number, axis in enumerate(partition.axes):
        features = axis.divide(features, 2 + number)
    tile, pixel = _axis_names(partition)
    axes = " ".join(f"({t} {p})" for t, p in zip(tile, pixel, strict=True))
    pattern = f"batch channel {axes} -> batch ({' '.join(tile)} channel) {' '.join(pixel)}"
    return rearrange(features, pattern, **dict(zip(tile, partition.counts, strict=True)))


def _added(output: Tensor, size: tuple[int, ...], geometry: TransposedGeometry, partition: RegionPartition) -> Tensor:
    """Add the outputs of the tiles where they overlap: the adjoint of :func:`_cut` for an input of this size."""
    axes = list(zip(partition.axes, geometry.padding, strict=True))
    slices = [_Slices.of(axis, geometry.adjoint, padding) for axis, padding in axes]
    tile, pixel = _axis_names(partition)
    pairs = " ".join(f"{t} {p}" for t, p in zip(tile, pixel, strict=True))
    pattern = f"batch ({' '.join(tile)} channel) {' '.join(pixel)} -> batch channel {pairs}"
    whole = rearrange(output, pattern, **dict(zip(tile, partition.counts, strict=True)))
    for number, of in reversed(list(enumerate(slices))):
        whole = of.add(whole, 2 + 2 * number)
    # The output's padding, which no tile reaches, is 0.
    margins = [
        margin
        for of, count in reversed(list(zip(slices, geometry.output_size(*size), strict=True)))
        for margin in (-of.before, count + of.before - of.span)
    ]
    return functional.pad(whole, margins)


def _axis_names(partition: RegionPartition) -> tuple[list[str], list[str]]:
    """Return names of the tiles and of the pixels of a tile along each axis, for patterns."""
    numbers = range(len(partition.axes))
    return [f"tile{number}" for number in numbers], [f"pixel{number}" for number in numbers]


class RegionConvolution(nn.Module):
    """A convolution with a bank for each region of the output (of an adjoint: input), for images of any size."""

    def __init__(self, banks: Tensor, bias: Tensor | None, geometry: Geometry, cells: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(banks)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.geometry = geometry
        self.cells = cells

    def forward(self, features: Tensor) -> Tensor:
        """Apply the convolution: (batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        partition = RegionPartition.of(self.geometry.domain_size(features), self.cells)
        return integrate(features, partition.means(self.weight, 0), self.bias, self.geometry, partition)
