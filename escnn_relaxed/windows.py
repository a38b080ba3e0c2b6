"""The pixels that the taps read, as windows that overlap in memory as they do on the image."""

from __future__ import annotations

import torch
from torch import Tensor

from .integral_operator import ConvolutionGeometry
from .tap_layout import Region, TapLayout
from .workspace import Workspace

__all__ = ["Windows"]


class Windows(TapLayout):
    """What a column of the kernel reads is copied once for all the outputs of a row that read it.

    The window of an output is k such *columns* of k pixels that follow each other; that of its neighbour begins one
    further. So k pixels are copied for each output, not k². Matrix products read the windows of a row of outputs as
    they lie; the gradient of the columns is a product with windows too, those of the gradients.

    Args:
        geometry: where taps and pixels meet; without stride and dilation.
        output_size: height and width of the output.
    """

    def __init__(self, geometry: ConvolutionGeometry, output_size: tuple[int, int]) -> None:
        self._side = geometry.kernel_size
        slots = [row * self._side + column for column in range(self._side) for row in range(self._side)]
        super().__init__(geometry, output_size, slots)

    def shape(self, image: Tensor, region: Region) -> tuple[int, ...]:
        """(rows, columns of the image, k, C, batch)."""
        return len(region.rows), len(region.columns) + self._side - 1, self._side, *image.shape[2:]

    def gather(self, image: Tensor, region: Region, out: Tensor) -> Tensor:
        """All in one."""
        return out.copy_(self._columns(image, region))

    def scatter_add(self, image: Tensor, copies: Tensor, region: Region) -> None:
        """In parts that do not overlap: rows by one tap, or all taps by one row."""
        columns = self._columns(image, region)
        if len(region.rows) < self._side:
            for row in range(len(region.rows)):
                columns[row] += copies[row]
        else:
            for tap in range(self._side):
                columns[:, :, tap] += copies[:, :, tap]

    def read(self, copies: Tensor) -> list[Tensor]:
        """Row after row."""
        size = copies.shape[3] * copies.shape[4]
        shape = copies.shape[1] - self._side + 1, len(self.slots), *copies.shape[3:]
        return [row.as_strided(shape, (self._side * size, size, copies.shape[4], 1)) for row in copies]

    def add_product(
        self, matrices: Tensor, gradient: Tensor, copies: Tensor, is_first: bool, workspace: Workspace
    ) -> None:
        """A product for each row, of the windows that each column is in."""
        rows, columns = copies.shape[:2]
        before, outputs = self._side - 1, columns - self._side + 1
        matrices = self._by_column(matrices.view(rows, outputs, matrices.shape[1], self._side, -1), workspace)
        size, length = gradient.shape[1:]
        padded = workspace.get("padded gradient", (rows, columns + before, size, length), gradient)
        padded[:, :before] = 0
        padded[:, before:columns] = gradient.view(rows, outputs, size, length)
        padded[:, columns:] = 0
        for place, left, right in zip(copies.view(rows, columns, -1), matrices, padded, strict=True):
            place = place.view(columns, left.shape[-1], length)
            right = right.as_strided((columns, self._side * size, length), (size * length, length, 1))
            torch.baddbmm(place, left.flatten(1, 2).mT, right, beta=0 if is_first else 1, out=place)

    def _by_column(self, matrices: Tensor, workspace: Workspace) -> Tensor:
        """What each column of the image meets of the windows that it is in, zero beyond the ends of a row.

        Args:
            matrices: (rows, outputs, M, k columns of the kernel, k·b).
            workspace: where to put the answer.

        Returns:
            (rows, columns of the image, k windows, M, k·b).
        """
        rows, outputs, size, side, length = matrices.shape
        shape = rows, outputs + side - 1, side, size, length
        arranged = workspace.get("arranged matrices", shape, matrices).zero_()
        for number in range(side):
            # The first of the k windows has the image's column as its last.
            column = side - 1 - number
            arranged[:, column : column + outputs, number] = matrices[:, :, :, column]
        return arranged

    def _columns(self, image: Tensor, region: Region) -> Tensor:
        down, right = image.stride()[:2]
        first = image.storage_offset() + region.rows.start * down + region.columns.start * right
        return image.as_strided(self.shape(image, region), (down, right, down, *image.stride()[2:]), first)
