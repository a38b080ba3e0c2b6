"""Between feature maps and tiles: what both orders of contraction share."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from .contraction_cost import PixelCost
from .integral_operator import integrate_stationary
from .patches import Patches
from .positional_kernel import PositionalKernel
from .tap_layout import TapLayout
from .tiled_integral import Contraction, Tensors, integrate_tiles
from .windows import Windows
from .workspace import Workspace

__all__ = [
    "KernelContraction",
    "joined",
    "product",
    "product_with_transposed",
    "windows_of",
]


class KernelContraction(Contraction):
    """What both orders share: encoded positions, steered features of a tile, the way from and to feature maps.

    Feature maps have their channels as (block, component, field) here; groups are contracted one after the other.

    Args:
        kernel: of the layer.
        size: height and width of the image in pixels.
        batch: number of images.
    """

    def __init__(self, kernel: PositionalKernel, size: tuple[int, int], batch: int) -> None:
        self.kernel = kernel
        self._size = size
        self._output_size = kernel.geometry.output_size(*size)
        self._average = kernel.bank.steered_average
        groups = kernel.geometry.groups
        self.out_channels = self._average.assembly.shape[0] // groups
        support = kernel.bank.grid.support_numbers
        # Column after column of the kernel, as pixels lie.
        self._order = sorted(range(len(support)), key=lambda number: self._column_first(support[number]))
        self._support = [support[number] for number in self._order]
        positions = Patches(kernel.geometry, self._output_size, self._support)
        self.positions = positions if kernel.domain == "input" else None
        assembly = self._average.assembly
        self.in_slices = assembly.in_slices
        out_slices = [slice(part.start // groups, part.stop // groups) for part in assembly.out_slices]
        # Number, output channels and number of the input block of each pair of blocks.
        blocks = itertools.product(out_slices, range(len(assembly.in_slices)))
        self._pairs = [(number, *block) for number, block in enumerate(blocks)]
        self.factor_size = self.factor_size_of(kernel)
        self.pixels: TapLayout = Patches(kernel.geometry, self._output_size, self._taps())
        if self.pixel_cost(kernel, batch).overlaps:
            self.pixels = Windows(kernel.geometry, self._output_size)

    @staticmethod
    @abstractmethod
    def cost(kernel: PositionalKernel, batch: int) -> float:
        """Of one position of the output, forward and backward, in multiplications."""

    @staticmethod
    @abstractmethod
    def pixel_cost(kernel: PositionalKernel, batch: int) -> PixelCost:
        """Of reading pixels in this order."""

    @staticmethod
    @abstractmethod
    def factor_size_of(kernel: PositionalKernel) -> int:
        """Number of values of all factors at one position."""

    def integrate(self, features: Tensor, bias: Tensor | None) -> Tensor:
        """H (batch, C_out, H_out, W_out) of f (batch, C_in, H, W)."""
        kernel, assembly = self.kernel, self._average.assembly
        groups = kernel.geometry.groups
        takes_strict = kernel.strict is not None and self._takes_strict_part()
        strict = self._strict_in_slots(kernel.strict) if kernel.strict is not None and takes_strict else None
        positions = self._encoded_positions()
        encoding = kernel.bank.encode_tile(kernel.frequency, self._order)
        parts = []
        # A chunk that is all would be copied in backward.
        for group, part in enumerate(features.chunk(groups, dim=1) if groups > 1 else [features]):
            image = assembly.to_blocks(kernel.geometry.pad(part).permute(2, 3, 1, 0))
            weights = [weight.unflatten(0, (groups, -1))[group] for weight in self._product_weights(features)]
            rows = assembly.rows_of_group(group, groups)
            tensors = (None if strict is None else strict[rows], *weights, *encoding)
            parts.append(integrate_tiles(self, self._output_size, image, positions, tensors))
        answer = torch.cat(parts, dim=1)[:, assembly.group_order(groups)] if groups > 1 else parts[0]
        answer = self._as_images(assembly.from_blocks(answer))
        if kernel.strict is not None and not takes_strict:
            bias = None if bias is None else bias.to(answer.dtype)
            return answer + integrate_stationary(features, kernel.strict.to(answer.dtype), bias, kernel.geometry)
        return answer if bias is None else answer + bias.to(answer.dtype).view(-1, 1, 1)

    def _encoded_positions(self) -> Tensor:
        kernel, positions = self.kernel, self.kernel.positions(self._size)
        encoded = kernel.bank.encode_positions(kernel.frequency, positions.flatten(0, 1), kernel.hardened)
        return encoded.permute(2, 0, 1).contiguous().unflatten(0, positions.shape[:2])

    def _product_weights(self, features: Tensor) -> list[Tensor]:
        """The plain weights, in the precision in which :meth:`value` multiplies by them."""
        return self._average.plain_weights()

    def _as_images(self, answer: Tensor) -> Tensor:
        """(H_out·W_out, C_out, batch) as (batch, C_out, H_out, W_out)."""
        # Matrices are transposed several times as fast as tensors of more dimensions.
        images = answer.flatten(1).t().contiguous()
        return images.view(answer.shape[1], -1, *self._output_size).transpose(0, 1)

    def _takes_strict_part(self) -> bool:
        """Whether the strict part is in the factors; else it is a convolution of its own."""
        return False

    def _taps(self) -> list[int]:
        """Those that the kernel may read, column after column."""
        return self._support

    def _column_first(self, tap: int) -> tuple[int, int]:
        row, column = divmod(tap, self.kernel.geometry.kernel_size)
        return column, row

    def _in_slots(self, values: Tensor, taps: Sequence[int], dimension: int) -> Tensor:
        """Values of some taps at their slots, others zero."""
        if self.pixels.slots == list(taps):
            return values
        shape = [*values.shape[:dimension], len(self.pixels.slots), *values.shape[dimension + 1 :]]
        slots = torch.tensor([self.pixels.slots.index(tap) for tap in taps], device=values.device)
        return values.new_zeros(shape).index_copy(dimension, slots, values)

    def _strict_in_slots(self, bank: Tensor) -> Tensor:
        """A filter bank (C_out, C_in, k, k) as (C_out, slots, C_in)."""
        taps = self._average.assembly.bank_to_blocks(bank.flatten(2)).transpose(1, 2)
        return self._in_slots(taps, range(taps.shape[1]), dimension=1)

    def _steered(self, positions: Tensor, tensors: Tensors) -> list[Tensor]:
        """Steered features of each pair of blocks, (P, |A|, features, T, |B|)."""
        return self.kernel.bank.tile_features(positions, cast(list[Tensor], tensors[1 + len(self._pairs) :]))

    def _weights(self, tensors: Tensors) -> list[Tensor]:
        """(fields_out, fields_in, features) of each pair of blocks."""
        return cast(list[Tensor], tensors[1 : 1 + len(self._pairs)])


def windows_of(pixels: Sequence[Tensor], inner: int) -> list[Tensor]:
    """Windows (positions, slots, |B|·fields, batch) as matrices (positions, ``inner`` = slots·|B|, fields·batch)."""
    return [windows.reshape(len(windows), inner, -1) for windows in pixels]


def product(name: str, left: Tensor, pixels: Sequence[Tensor], workspace: Workspace | None) -> Tensor:
    """Matrices (P, M, K) times those of windows, (P, K, n): (P, M, n), in the workspace if there is one."""
    parts = zip(left.split([len(windows) for windows in pixels]), pixels, strict=True)
    if workspace is None:
        return torch.cat([torch.bmm(part, windows) for part, windows in parts])
    out = workspace.get(name, (*left.shape[:2], pixels[0].shape[2]), left)
    start = 0
    for part, windows in parts:
        torch.bmm(part, windows, out=out[start : start + len(part)])
        start += len(part)
    return out


def product_with_transposed(left: Tensor, pixels: Sequence[Tensor]) -> Tensor:
    """Matrices (P, M, n) times those of windows, transposed, (P, n, K): (P, M, K)."""
    out = left.new_empty(*left.shape[:2], pixels[0].shape[1])
    start = 0
    for windows in pixels:
        places = slice(start, start + len(windows))
        torch.bmm(left[places], windows.mT, out=out[places])
        start = places.stop
    return out


def joined(answers: dict[int, Tensor]) -> Tensor:
    """The blocks of an output side by side."""
    values = list(answers.values())
    return values[0] if len(values) == 1 else torch.cat(values, dim=1)
