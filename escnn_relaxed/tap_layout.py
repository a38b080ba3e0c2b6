"""How the pixels that the taps read for a tile of output positions lie in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .integral_operator import ConvolutionGeometry
from .workspace import Workspace

__all__ = ["Region", "TapLayout"]


@dataclass(frozen=True)
class Region:
    """Some rows and columns of the output."""

    rows: range
    columns: range

    def __len__(self) -> int:
        return len(self.rows) * len(self.columns)


class TapLayout(ABC):
    """Reads and writes of the taps, for outputs of a given size.

    An image is padded, (H, W, C, batch), the last two dimensions without gaps. What the taps read for one output lies
    in *slots*; a copy of pixels may serve several outputs.

    Args:
        geometry: where taps and pixels meet.
        output_size: height and width of the output.
        slots: the tap of the flattened k×k grid that each slot holds.
    """

    def __init__(self, geometry: ConvolutionGeometry, output_size: tuple[int, int], slots: Sequence[int]) -> None:
        self.geometry, self.output_size, self.slots = geometry, output_size, list(slots)

    @abstractmethod
    def shape(self, image: Tensor, region: Region) -> tuple[int, ...]:
        """Of the copies for a region of the output."""

    @abstractmethod
    def gather(self, image: Tensor, region: Region, out: Tensor) -> Tensor:
        """Copy what the taps read for a region of the output to ``out``, which is of :meth:`shape` and contiguous."""

    @abstractmethod
    def scatter_add(self, image: Tensor, copies: Tensor, region: Region) -> None:
        """The transpose of :meth:`gather`: add the copies to the pixels that they are of."""

    @abstractmethod
    def read(self, copies: Tensor) -> list[Tensor]:
        """What each output reads, as views of the copies: (positions, slots, C, batch), one or several in turn."""

    @abstractmethod
    def add_product(
        self, matrices: Tensor, gradient: Tensor, copies: Tensor, is_first: bool, workspace: Workspace
    ) -> None:
        """The transpose of :meth:`read`, of a product: add at each output a matrix, transposed, times a gradient.

        Args:
            matrices: (P, M, slots·b).
            gradient: (P, M, n).
            copies: what is added to, C·batch = b·n.
            is_first: whether the copies hold nothing yet.
            workspace: where to put what is needed in between.
        """

    def gather_differentiably(self, image: Tensor) -> Tensor:
        """What all outputs read, (H_out·W_out, slots, …), in an operation that can be differentiated again."""
        pixels = self._pixel_numbers(image.shape[1]).to(image.device)
        return image.flatten(0, 1).index_select(0, pixels).unflatten(0, (-1, len(self.slots)))

    def _pixel_numbers(self, padded_width: int) -> Tensor:
        """Number of the padded pixel that each slot holds for each output, (H_out·W_out·slots,)."""
        geometry = self.geometry
        height, width = self.output_size
        taps = torch.tensor(self.slots)
        rows = torch.arange(height)[:, None, None] * geometry.stride
        columns = torch.arange(width)[None, :, None] * geometry.stride
        rows = rows + taps // geometry.kernel_size * geometry.dilation
        columns = columns + taps % geometry.kernel_size * geometry.dilation
        return (rows * padded_width + columns).flatten()
