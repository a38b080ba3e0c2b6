"""The pixels that the taps read, gathered side by side for each output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .integral_operator import ConvolutionGeometry
from .tap_layout import Region, TapLayout
from .workspace import Workspace

__all__ = ["Patches"]


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


class Patches(TapLayout):
    """What each output reads has copies of its own, side by side.

    Args:
        geometry: where taps and pixels meet.
        output_size: height and width of the output.
        slots: the tap of each slot; column after column of the kernel is fastest.
    """

    def __init__(self, geometry: ConvolutionGeometry, output_size: tuple[int, int], slots: Sequence[int]) -> None:
        super().__init__(geometry, output_size, slots)
        self._runs = _runs(self.slots, geometry.kernel_size)

    def shape(self, image: Tensor, region: Region) -> tuple[int, ...]:
        """(positions, slots, C, batch)."""
        return len(region), len(self.slots), *image.shape[2:]

    def gather(self, image: Tensor, region: Region, out: Tensor) -> Tensor:
        """Run after run of taps."""
        pixels = image.flatten(2)
        patches = out.view(len(region.rows), len(region.columns), len(self.slots), pixels.shape[-1])
        for run in self._runs:
            patches[:, :, run.first : run.last] = self._reads(pixels, region, run)
        return out

    def scatter_add(self, image: Tensor, copies: Tensor, region: Region) -> None:
        """In parts that do not overlap."""
        pixels = image.flatten(2)
        rows = region.rows
        patches = copies.reshape(len(rows), len(region.columns), len(self.slots), pixels.shape[-1])
        # Reads overlap, but not those of one output row by one column of taps, nor those of one tap.
        if len(rows) * len(self._runs) <= len(self.slots):
            parts = [(slice(i, i + 1), range(row, row + 1), run) for i, row in enumerate(rows) for run in self._runs]
        else:
            parts = [(slice(None), rows, single) for run in self._runs for single in run.single_taps()]
        for place, part, run in parts:
            self._reads(pixels, Region(part, region.columns), run).add_(patches[place, :, run.first : run.last])

    def read(self, copies: Tensor) -> list[Tensor]:
        """The copies as they are."""
        return [copies]

    def add_product(
        self, matrices: Tensor, gradient: Tensor, copies: Tensor, is_first: bool, workspace: Workspace
    ) -> None:
        """One product."""
        place = copies.view(*matrices.mT.shape[:2], -1)
        torch.baddbmm(place, matrices.mT, gradient, beta=0 if is_first else 1, out=place)

    def _reads(self, image: Tensor, region: Region, run: _Run) -> Tensor:
        stride, dilation = self.geometry.stride, self.geometry.dilation
        down, right, _ = image.stride()
        row = region.rows.start * stride + run.row * dilation
        column = region.columns.start * stride + run.column * dilation
        return image.as_strided(
            (len(region.rows), len(region.columns), run.last - run.first, image.shape[-1]),
            (stride * down, stride * right, dilation * down, 1),
            image.storage_offset() + row * down + column * right,
        )


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
