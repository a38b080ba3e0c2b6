"""Regions of an output: tiles of equal size, symmetric about its centre, at most G along each axis.

K is constant on *cells*, G along each axis, which divide every image alike. A region takes the mean of K over the part
of the cells that it covers. So the mean of K over an image of any size is the mean over the cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from einops import einsum
from torch import Tensor

from ..torch_modes import has_no_values, has_values, untraced

# Partitions of images of some sizes. So many that training on changing sizes finds its own.
_KNOWN: dict[Any, RegionPartition] = {}
_MOST_KNOWN = 1024
# The fewest pixels of a region along an axis. With fewer, making filter banks would cost more than applying them.
LEAST_SIDE = 4


def region_limit(regions: int) -> float:
    """The largest ω′ of translation that G regions resolve: G/4."""
    # Centres lie 2/G apart, and a feature makes about ω′ waves over a distance of 1: half a wave to the next centre.
    return regions / 4


@dataclass(frozen=True)
class Tiling:
    """The tiles of one size into which the pixels of an axis are cut, symmetric about the centre."""

    size: int  # pixels of the axis
    count: int
    side: int  # pixels of a tile
    # Whether the pixel at the centre is in two tiles, which takes their mean, and pixels of an outermost tile beyond
    # the image.
    doubles_centre: bool = field(init=False, compare=False, repr=False)
    cut: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        doubles_centre = self.size % 2 == 1 and self.count % 2 == 0
        object.__setattr__(self, "doubles_centre", doubles_centre)
        object.__setattr__(self, "cut", (self.count * self.side - self.size - doubles_centre) // 2)

    @staticmethod
    def of(size: int, regions: int) -> Tiling:
        """Return the most tiles up to ``regions``; the outermost keep four pixels and more than half of their side."""
        for count in range(min(regions, size // LEAST_SIDE), 1, -1):
            side = math.ceil((size + (size * (count + 1)) % 2) / count)
            # The tiles reach as far beyond one end as beyond the other.
            side += count * (size - side) % 2
            tiling = Tiling(size, count, side)
            kept = side - tiling.cut
            if kept >= LEAST_SIDE and kept > side / 2:
                return tiling
        return Tiling(size, 1, size)

    @property
    def starts(self) -> list[int]:
        """First pixel of each tile; the first tile may start before the image."""
        is_behind = [self.doubles_centre and number >= self.count / 2 for number in range(self.count)]
        return [number * self.side - self.cut - behind for number, behind in enumerate(is_behind)]

    def cell_weights(self, cells: int) -> list[list[float]]:
        """Return the part of each tile, within the image, that lies in each cell: a row of sum 1 for each tile."""
        borders = [min(max(start, 0), self.size) / self.size for start in (*self.starts, self.size)]
        if self.doubles_centre:
            borders[self.count // 2] = 0.5
        return [
            [
                max(min(upper, (cell + 1) / cells) - max(lower, cell / cells), 0.0) / (upper - lower)
                for cell in range(cells)
            ]
            for lower, upper in pairwise(borders)
        ]

    def join(self, values: Tensor, dimension: int) -> Tensor:
        """Return the pixels of an axis, put together from tiles that follow each other along a dimension."""
        length = self.size + self.doubles_centre
        if self.cut:
            values = values.narrow(dimension, self.cut, length)
        if not self.doubles_centre:
            return values
        before, first, second, behind = values.split([length // 2 - 1, 1, 1, length // 2 - 1], dimension)
        return torch.cat([before, (first + second) / 2, behind], dimension)

    def divide(self, values: Tensor, dimension: int) -> Tensor:
        """Return the tiles of an axis, 0 beyond the image, cut from its pixels: the adjoint of :meth:`join`."""
        if self.doubles_centre:
            half = self.size // 2
            before, centre, behind = values.split([half, 1, half], dimension)
            values = torch.cat([before, centre / 2, centre / 2, behind], dimension)
        if not self.cut:
            return values
        shape = list(values.shape)
        shape[dimension] = self.cut
        beyond = values.new_zeros(shape)
        return torch.cat([beyond, values, beyond], dimension)


@dataclass(frozen=True)
class RegionPartition:
    """The regions of an output: the tiles along each axis, (height, width), and the number G of cells along each."""

    axes: tuple[Tiling, ...]
    cells: int
    _weights: dict[Any, tuple[Tensor, ...]] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(output_size: tuple[int, ...], cells: int) -> RegionPartition:
        """Return at most G regions along each axis of an output of some size in pixels; the same object each time."""
        if has_no_values():
            return RegionPartition(tuple(Tiling.of(size, cells) for size in output_size), cells)
        key = output_size, cells
        if key not in _KNOWN:
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[key] = RegionPartition(tuple(Tiling.of(size, cells) for size in output_size), cells)
        return _KNOWN[key]

    @staticmethod
    def of_cells(cells: int, dimension: int = 2) -> RegionPartition:
        """Return the partition in which each cell is a region."""
        return RegionPartition((Tiling(cells, cells, 1),) * dimension, cells)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of tiles along each axis."""
        return tuple(axis.count for axis in self.axes)

    @property
    def is_of_cells(self) -> bool:
        """Whether each region is a cell."""
        return all(axis.count * axis.side == axis.size and axis.count == self.cells for axis in self.axes)

    def weights(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return the cell weights of each axis, on the device of ``like``, made once."""
        if not has_values(like):
            # Compilers take Python's own numbers for constants.
            return self._made(like.dtype, like.device)
        key = like.dtype, like.device
        if key not in self._weights:
            with torch.inference_mode(False), untraced():
                self._weights[key] = self._made(*key)
        return self._weights[key]

    def _made(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
        """Return the cell weights of each axis, newly made."""
        return tuple(torch.tensor(axis.cell_weights(self.cells), dtype=dtype, device=device) for axis in self.axes)

    def means(self, values: Tensor, dimension: int) -> Tensor:
        """Return the means over the regions of values at the cells, which follow each other along a dimension."""
        if self.is_of_cells:
            return values
        last = values.dim() - 1  # ONNX takes no negative axis of a transposition
        at_cells = values.movedim(dimension, last).unflatten(-1, (self.cells,) * len(self.axes))
        names = [(f"region{number}", f"cell{number}") for number in range(len(self.axes))]
        regions, cells = (" ".join(of) for of in zip(*names, strict=True))
        pattern = f"{', '.join(map(' '.join, names))}, ... {cells} -> ... {regions}"
        parts: tuple[Any, ...] = (*self.weights(values), at_cells, pattern)
        means: Tensor = einsum(*parts)
        return means.flatten(-len(self.axes)).movedim(last, dimension)
