"""The pixels that the taps read for a tile of output positions, gathered side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .integral_operator import ConvolutionGeometry

__all__ = ["Patches", "Region"]


@dataclass(frozen=True)
class Region:
    """Some rows and columns of the output."""

    rows: range
    columns: range

    def __len__(self) -> int:
        return len(self.rows) * len(self.columns)


@dataclass(frozen=True)
class _Run:
    """Taps of one column of the kernel in consecutive rows."""

    first: int
    last: int
    row: int
    column: int

    def single_taps(self) -> list[_Run]:
        """A run for each tap."""
        return [
            _Run(self.first + i, self.first + i + 1, self.row + i, self.column) for i in range(self.last - self.first)
        ]


class Patches:
    """Reads and writes of a list of taps, for outputs of a given size.

    Args:
        taps: numbers of the taps in a flattened k×k grid; column after column is fastest.
        geometry: where taps and pixels meet.
        output_size: height and width of the output.
    """

    def __init__(self, taps: Sequence[int], geometry: ConvolutionGeometry, output_size: tuple[int, int]) -> None:
        self.taps = list(taps)
        self._geometry = geometry
        self._output_size = output_size
        self._runs = _runs(self.taps, geometry.kernel_size)

    def shape(self, image: Tensor, region: Region) -> tuple[int, ...]:
        """Of what :meth:`gather` gives."""
        return len(region), len(self.taps), *image.shape[2:]

    def gather(self, image: Tensor, region: Region, out: Tensor) -> Tensor:
        """What each tap reads for a region of the output: (positions, T, …).

        Args:
            image: the padded image, (H, W, …), contiguous.
            region: of the output.
            out: where to write it.
        """
        pixels = image.flatten(2)
        patches = out.view(len(region.rows), len(region.columns), len(self.taps), pixels.shape[-1])
        for run in self._runs:
            patches[:, :, run.first : run.last] = self._reads(pixels, region, run)
        return out

    def scatter_add(self, image: Tensor, patches: Tensor, region: Region) -> None:
        """The transpose of :meth:`gather`: add what the taps have read to the pixels that they have read."""
        pixels = image.flatten(2)
        rows = region.rows
        patches = patches.reshape(len(rows), len(region.columns), len(self.taps), pixels.shape[-1])
        # Reads overlap, but not those of one output row by one column of taps, nor those of one tap.
        if len(rows) * len(self._runs) <= len(self.taps):
            parts = [(slice(i, i + 1), range(row, row + 1), run) for i, row in enumerate(rows) for run in self._runs]
        else:
            parts = [(slice(None), rows, single) for run in self._runs for single in run.single_taps()]
        for place, part, run in parts:
            self._reads(pixels, Region(part, region.columns), run).add_(patches[place, :, run.first : run.last])

    def gather_differentiably(self, image: Tensor) -> Tensor:
        """:meth:`gather` of all rows in an operation that can be differentiated again."""
        pixels = self._pixel_numbers(image.shape[1]).to(image.device)
        return image.flatten(0, 1).index_select(0, pixels).unflatten(0, (-1, len(self.taps)))

    def _reads(self, image: Tensor, region: Region, run: _Run) -> Tensor:
        stride, dilation = self._geometry.stride, self._geometry.dilation
        down, right, _ = image.stride()
        row = region.rows.start * stride + run.row * dilation
        column = region.columns.start * stride + run.column * dilation
        return image.as_strided(
            (len(region.rows), len(region.columns), run.last - run.first, image.shape[-1]),
            (stride * down, stride * right, dilation * down, 1),
            row * down + column * right,
        )

    def _pixel_numbers(self, padded_width: int) -> Tensor:
        """Number of the padded pixel that each tap reads for each output, (H_out·W_out·T,)."""
        geometry = self._geometry
        height, width = self._output_size
        taps = torch.tensor(self.taps)
        rows = torch.arange(height)[:, None, None] * geometry.stride
        columns = torch.arange(width)[None, :, None] * geometry.stride
        rows = rows + taps // geometry.kernel_size * geometry.dilation
        columns = columns + taps % geometry.kernel_size * geometry.dilation
        return (rows * padded_width + columns).flatten()


def _runs(taps: Sequence[int], side: int) -> list[_Run]:
    runs: list[_Run] = []
    for number, tap in enumerate(taps):
        row, column = divmod(tap, side)
        last = runs[-1] if runs else None
        if last and (last.column, last.row + last.last - last.first) == (column, row):
            runs[-1] = _Run(last.first, number + 1, last.row, column)
        else:
            runs.append(_Run(number, number + 1, row, column))
    return runs
