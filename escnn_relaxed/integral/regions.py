"""Soft translation by regions: a filter bank for each, all of them in one grouped convolution; runs without escnn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional

from ..group.regions import RegionPartition, Tiling
from .stationary import (
    ConvolutionGeometry,
    PlanarGeometry,
    TransposedGeometry,
    image_size,
    integrate_stationary,
)

__all__ = ["integrate_regions"]


def integrate_regions(
    features: Tensor, banks: Tensor, bias: Tensor | None, geometry: PlanarGeometry, partition: RegionPartition
) -> Tensor:
    """h(x) = Σ_d K(d; x) f(x + d), where K is a filter bank for each region of x, or its adjoint.

    Tiles of the padded image, each with the pixels around it that its taps read, lie side by side as channels of one
    grouped convolution. In the adjoint these are tiles of the input, and what they give is added where they overlap.

    Args:
        features: f, (batch, C_in, H, W).
        banks: (regions, C_out, C_in/groups, k, k), regions row after row; (regions, C_in, C_out/groups, k, k) of a
            transposed convolution.
        bias: (C_out,) or None.
        geometry: where taps and pixels meet.
        partition: the regions of the output, of a transposed convolution those of the input.
    """
    if len(banks) == 1:
        return integrate_stationary(features, banks.squeeze(0), bias, geometry)
    one, groups = banks.flatten(0, 1), len(banks) * geometry.groups
    if isinstance(geometry, TransposedGeometry):
        output = functional.conv_transpose2d(
            _divided(features, partition), one, None, geometry.stride, 0, 0, groups, geometry.dilation
        )
        result = _added(output, image_size(features), geometry, partition)
    else:
        tiles = _cut(features, geometry, partition)
        output = functional.conv2d(tiles, one, None, geometry.stride, 0, geometry.dilation, groups)
        result = _joined(output, partition)
    # Autocast casts the bias of a convolution too.
    return result if bias is None else result + bias.to(result.dtype).view(-1, 1, 1)


def _cut(features: Tensor, geometry: ConvolutionGeometry, partition: RegionPartition) -> Tensor:
    """What the taps of each region read, (batch, regions·C_in, height, width)."""
    padding = geometry.padding
    if geometry.padding_mode != "zeros":
        features, padding = geometry.pad(features), (0, 0)
    rows = _Windows.of(partition.rows, geometry, padding[0])
    columns = _Windows.of(partition.columns, geometry, padding[1])
    height, width = image_size(features)
    # Where strides do not fit the image its last pixels are not read: negative padding takes them away.
    margins = columns.before, columns.span - columns.before - width, rows.before, rows.span - rows.before - height
    padded = functional.pad(features, margins) if any(margins) else features
    tiles = columns.stack(rows.stack(padded, 2), 4)
    return rearrange(tiles, "batch channel row down column right -> batch (row column channel) down right")


@dataclass(frozen=True)
class _Windows:
    """What the tiles of one axis read of the image.

    Attributes:
        starts: first pixel of each, from the first that is read.
        side: pixels that one reads.
        before: pixels that the first reads before the image.
    """

    starts: list[int]
    side: int
    before: int

    @staticmethod
    def of(axis: Tiling, geometry: ConvolutionGeometry, padding: int) -> _Windows:
        """The windows of the tiles of an axis, for an image with ``padding`` pixels of zeros on either side."""
        side = (axis.side - 1) * geometry.stride + geometry.extent
        starts = [(start + axis.cut) * geometry.stride for start in axis.starts]
        return _Windows(starts, side, padding + axis.cut * geometry.stride)

    @property
    def span(self) -> int:
        """Number of pixels from the first that any tile reads to the last."""
        return self.starts[-1] + self.side

    def stack(self, values: Tensor, dimension: int) -> Tensor:
        """One slice of ``values`` for each tile, (…, span, …) → (…, count, side, …): ``dimension`` counts the tiles."""
        # Slices and not `unfold`, whose backward takes two to three times as long on a CPU.
        return torch.stack([values.narrow(dimension, start, self.side) for start in self.starts], dimension)

    def add(self, tiles: Tensor, dimension: int) -> Tensor:
        """Tiles (…, count, side, …) added where they overlap, (…, span, …): the adjoint of :meth:`stack`."""
        behind = [0, 0] * (tiles.dim() - dimension - 2)
        parts = zip(self.starts, tiles.unbind(dimension), strict=True)
        placed = [functional.pad(part, [*behind, start, self.span - start - self.side]) for start, part in parts]
        return sum(placed[1:], placed[0])


def _joined(output: Tensor, partition: RegionPartition) -> Tensor:
    """The tiles put together: (batch, regions·C_out, side, side) → (batch, C_out, H_out, W_out)."""
    tiles = rearrange(
        output,
        "batch (row column channel) down right -> batch channel (row down) (column right)",
        row=partition.rows.count,
        column=partition.columns.count,
    )
    return partition.columns.join(partition.rows.join(tiles, 2), 3)


def _divided(features: Tensor, partition: RegionPartition) -> Tensor:
    """The tiles of the image, (batch, regions·C_in, side, side): the adjoint of :func:`_joined`."""
    return rearrange(
        partition.columns.divide(partition.rows.divide(features, 2), 3),
        "batch channel (row down) (column right) -> batch (row column channel) down right",
        row=partition.rows.count,
        column=partition.columns.count,
    )


def _added(output: Tensor, size: tuple[int, int], geometry: TransposedGeometry, partition: RegionPartition) -> Tensor:
    """What the tiles give, added where they overlap: the adjoint of :func:`_cut` for an input of this size."""
    rows = _Windows.of(partition.rows, geometry.adjoint, geometry.padding[0])
    columns = _Windows.of(partition.columns, geometry.adjoint, geometry.padding[1])
    tiles = rearrange(
        output,
        "batch (row column channel) down right -> batch channel row down column right",
        row=partition.rows.count,
        column=partition.columns.count,
    )
    whole = rows.add(columns.add(tiles, 4), 2)
    height, width = geometry.output_size(*size)
    # Where no tile gives anything, in the output's padding, there are zeros.
    margins = -columns.before, width + columns.before - columns.span, -rows.before, height + rows.before - rows.span
    return functional.pad(whole, margins)
