"""Between feature maps and tiles: what both orders of contraction share."""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

import torch
from torch import Tensor

from .integral_operator import integrate_stationary
from .patches import Patches
from .positional_kernel import PositionalKernel
from .tiled_integral import Contraction, Tensors, Workspace, integrate_tiles

__all__ = ["MOVED_VALUE", "KernelContraction", "PixelGradient", "joined", "rows_of"]

# Multiplications in the time that one value takes to be written and read: 45 ± 15 on the CPUs that were measured.
MOVED_VALUE = 45


class KernelContraction(Contraction):
    """What both orders share: encoded positions, steered features of a tile, the way from and to feature maps.

    Feature maps have their channels as (block, component, field) here; groups are contracted one after the other.

    Args:
        kernel: of the layer.
        size: height and width of the image in pixels.
    """

    def __init__(self, kernel: PositionalKernel, size: tuple[int, int]) -> None:
        self.kernel = kernel
        self._size = size
        self._output_size = kernel.geometry.output_size(*size)
        self._average = kernel.bank.steered_average
        groups = kernel.geometry.groups
        self.out_channels = self._average.assembly.shape[0] // groups
        support = kernel.bank.grid.support_numbers
        # Column after column of the kernel, as patches are read.
        self._order = sorted(range(len(support)), key=lambda number: self._column_first(support[number]))
        self._support = [support[number] for number in self._order]
        self.pixels = Patches(self._pixel_taps(), kernel.geometry, self._output_size)
        positions = Patches(self._support, kernel.geometry, self._output_size)
        self.positions = positions if kernel.domain == "input" else None
        assembly = self._average.assembly
        out_slices = [slice(part.start // groups, part.stop // groups) for part in assembly.out_slices]
        blocks = [(rows, columns) for rows in out_slices for columns in assembly.in_slices]
        # Number, output channels and input channels of each pair of blocks.
        self._pairs = [(number, *block) for number, block in enumerate(blocks)]
        self.factor_size = self._factor_size()

    @staticmethod
    @abstractmethod
    def cost(kernel: PositionalKernel, batch: int) -> float:
        """Of one position of the output, forward and backward, in multiplications."""

    @abstractmethod
    def _factor_size(self) -> int:
        """Number of values of all factors at one position."""

    def integrate(self, features: Tensor, bias: Tensor | None) -> Tensor:
        """H (batch, C_out, H_out, W_out) of f (batch, C_in, H, W)."""
        kernel, assembly = self.kernel, self._average.assembly
        groups = kernel.geometry.groups
        takes_strict = kernel.strict is not None and self._takes_strict_part()
        strict = self._in_tap_order(kernel.strict) if kernel.strict is not None and takes_strict else None
        positions = self._encoded_positions()
        encoding = kernel.bank.encode_tile(kernel.frequency, self._order)
        parts = []
        for group, part in enumerate(features.chunk(groups, dim=1)):
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

    def _pixel_taps(self) -> list[int]:
        return self._support

    def _column_first(self, tap: int) -> tuple[int, int]:
        row, column = divmod(tap, self.kernel.geometry.kernel_size)
        return column, row

    def _in_tap_order(self, bank: Tensor) -> Tensor:
        """A filter bank (C_out, C_in, k, k) as (C_out, T, C_in)."""
        return self._average.assembly.bank_to_blocks(bank.flatten(2))[..., self.pixels.taps].transpose(1, 2)

    def _steered(self, positions: Tensor, tensors: Tensors) -> list[Tensor]:
        """Steered features of each pair of blocks, (P, |A|, features, T, |B|)."""
        return self.kernel.bank.tile_features(positions, cast(list[Tensor], tensors[1 + len(self._pairs) :]))

    def _weights(self, tensors: Tensors) -> list[Tensor]:
        """(fields_out, fields_in, features) of each pair of blocks."""
        return cast(list[Tensor], tensors[1 : 1 + len(self._pairs)])


class PixelGradient:
    """The gradient of gathered pixels (P, T, C, batch), a sum of products for each block of channels."""

    def __init__(self, pixels: Tensor, workspace: Workspace) -> None:
        self.value = workspace.get("pixel gradient", pixels.shape, pixels)
        self._written: set[int] = set()

    def add(self, columns: slice, left: Tensor, right: Tensor) -> None:
        """Add a product (P, T·|B|, ·) times (P, ·, fields·batch) to some channels."""
        place = self.value[:, :, columns]
        is_first = columns.start not in self._written
        self._written.add(columns.start)
        if place.is_contiguous():
            flat = place.view(*left.shape[:2], -1)
            torch.baddbmm(flat, left, right, beta=0 if is_first else 1, out=flat)
        elif is_first:
            place.copy_(torch.bmm(left, right).view_as(place))
        else:
            place.add_(torch.bmm(left, right).view_as(place))


def rows_of(pixels: Tensor, inner: int) -> Tensor:
    """Pixels (P, T, |B|·fields, batch) as (P, T·|B|, fields·batch), T·|B| = ``inner``."""
    return pixels.reshape(len(pixels), inner, -1)


def joined(answers: dict[int, Tensor]) -> Tensor:
    """The blocks of an output side by side."""
    values = list(answers.values())
    return values[0] if len(values) == 1 else torch.cat(values, dim=1)
