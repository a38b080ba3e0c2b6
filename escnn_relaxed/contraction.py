"""The two orders in which a kernel that depends on the position is contracted with pixels, and the choice (design §3).

κ = W φ is linear in its features, so h = Σ_d W φ(d; y) f(y) may be read in two ways:

- *basis first*, W (Σ_d φ f): for many channels, pixels meet the few features before the many weights;
- *bank first*, Σ_d (W φ) f: for many images and few channels, the filter bank of a tile serves the whole batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from .integral_operator import image_size, integrate_stationary
from .patches import Patches
from .positional_kernel import PositionalKernel
from .tiled_integral import Contraction, Tensors, Workspace, integrate_tiles

__all__ = ["BankFirst", "BasisFirst", "KernelContraction", "choose_contraction"]


# Multiplications in the time that one value takes to be written and read: 45 ± 15 on the CPUs that were measured.
MOVED_VALUE = 45


def choose_contraction(kernel: PositionalKernel, features: Tensor) -> KernelContraction:
    """The order that costs less for this layer and batch: multiplications, and values moved at 45 of them each.

    Args:
        kernel: of the layer.
        features: f, (batch, C_in, H, W).
    """
    orders: list[type[KernelContraction]] = [BankFirst, BasisFirst]
    best = min(orders, key=lambda order: order.cost(kernel, features.shape[0]))
    return best(kernel, image_size(features))


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
            weights = [weight.unflatten(0, (groups, -1))[group] for weight in self._average.plain_weights()]
            rows = assembly.rows_of_group(group, groups)
            tensors = (None if strict is None else strict[rows], *weights, *encoding)
            parts.append(integrate_tiles(self, self._output_size, image, positions, tensors))
        answer = torch.cat(parts, dim=1)[:, assembly.group_order(groups)] if groups > 1 else parts[0]
        answer = self._as_images(assembly.from_blocks(answer))
        if kernel.strict is not None and not takes_strict:
            return answer + integrate_stationary(features, kernel.strict, bias, kernel.geometry)
        return answer if bias is None else answer + bias.to(answer.dtype).view(-1, 1, 1)

    def _encoded_positions(self) -> Tensor:
        kernel, positions = self.kernel, self.kernel.positions(self._size)
        encoded = kernel.bank.encode_positions(kernel.frequency, positions.flatten(0, 1), kernel.hardened)
        return encoded.permute(2, 0, 1).contiguous().unflatten(0, positions.shape[:2])

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


class BasisFirst(KernelContraction):
    """Pixels meet the steered features first, then the weights; the strict part is a convolution of its own."""

    @staticmethod
    def cost(kernel: PositionalKernel, batch: int) -> float:
        """Pixels meet features four times and then weights three times; both results are moved, pixels as gathered."""
        taps, groups = len(kernel.bank.grid.support_numbers), kernel.geometry.groups
        products, moved = 0.0, 4.0 * taps * groups * kernel.bank.steered_average.assembly.shape[1]
        for shape in kernel.bank.steered_average.pair_shapes():
            met = groups * shape.features * shape.out_size * shape.in_count
            products += 4 * met * taps * shape.in_size + 3 * met * shape.out_count / groups
            moved += 5 * met
        if kernel.strict is not None:
            products += 3 * kernel.strict.numel()
        return batch * (products + MOVED_VALUE * moved)

    def _factor_size(self) -> int:
        shapes = self._average.pair_shapes()
        return len(self._support) * sum(shape.features * shape.out_size * shape.in_size for shape in shapes)

    def factors(self, positions: Tensor, tensors: Tensors) -> list[Tensor]:
        """Steered features of each pair of blocks, (P, |A|·features, T·|B|)."""
        return [steered.flatten(3).flatten(1, 2) for steered in self._steered(positions, tensors)]

    def value(self, factors: Sequence[Tensor], tensors: Tensors, pixels: Tensor, workspace: Workspace | None) -> Tensor:
        """W (φ f), (P, C_out, batch)."""
        answers: dict[int, Tensor] = {}
        for (number, rows, columns), weights in zip(self._pairs, self._weights(tensors), strict=True):
            met = self._meet(factors[number], pixels[:, :, columns], weights, workspace)
            answer = torch.bmm(_matrix(weights).expand(len(met), -1, -1), met).view(len(pixels), -1, pixels.shape[-1])
            answers[rows.start] = answers[rows.start] + answer if rows.start in answers else answer
        return _joined(answers)

    def gradients(
        self,
        factors: Sequence[Tensor],
        tensors: Tensors,
        pixels: Tensor,
        gradient: Tensor,
        workspace: Workspace,
        wants_pixels: bool,
    ) -> tuple[list[Tensor], dict[int, Tensor], Tensor | None]:
        """Gradients of the steered features, the weights and the pixels."""
        of_factors, of_weights = [], {}
        of_pixels = _PixelGradient(pixels, workspace) if wants_pixels else None
        for (number, rows, columns), weights in zip(self._pairs, self._weights(tensors), strict=True):
            steered, read = factors[number], pixels[:, :, columns]
            met = self._meet(steered, read, weights, workspace)
            part = gradient[:, rows].reshape(len(met), len(weights), -1)
            matrix = _matrix(weights)
            # One product over all positions and the batch, not one for each position.
            of_matrix = met.transpose(0, 1).flatten(1) @ part.transpose(1, 2).flatten(0, 1)
            of_weights[1 + number] = of_matrix.view(weights.shape[2], weights.shape[1], -1).permute(2, 1, 0)
            of_met = _product("gradient", matrix.mT.expand(len(met), -1, -1), part, workspace)
            of_met = of_met.view(*steered.shape[:2], -1)
            of_factors.append(torch.bmm(of_met, _rows(read, steered.shape[2]).mT))
            if of_pixels is not None:
                of_pixels.add(columns, steered.mT, of_met)
        return of_factors, of_weights, None if of_pixels is None else of_pixels.value

    def _meet(self, steered: Tensor, pixels: Tensor, weights: Tensor, workspace: Workspace | None) -> Tensor:
        """φ f: (P·|A|, features·fields_in, batch)."""
        met = _product("met", steered, _rows(pixels, steered.shape[2]), workspace)
        return met.view(-1, weights.shape[2] * weights.shape[1], pixels.shape[-1])


class BankFirst(KernelContraction):
    """The filter bank of a tile, with the strict part in it, serves the whole batch."""

    @staticmethod
    def cost(kernel: PositionalKernel, batch: int) -> float:
        """Pixels meet the filter bank three times; the bank is moved eight times on the way from and to the weights."""
        support, taps = len(kernel.bank.grid.support_numbers), len(kernel.taps())
        out_channels, in_channels = kernel.bank.steered_average.assembly.shape
        building = 0.0
        for shape in kernel.bank.steered_average.pair_shapes():
            entries = shape.out_size * shape.out_count * shape.in_size * shape.in_count
            building += 4 * shape.features * entries * support
        entries = taps * out_channels * in_channels
        moved = 4 * batch * taps * in_channels * kernel.geometry.groups + 8 * entries
        return 3 * batch * entries + building + MOVED_VALUE * moved

    def _factor_size(self) -> int:
        return len(self.pixels.taps) * self.out_channels * self._average.assembly.shape[1]

    def factors(self, positions: Tensor, tensors: Tensors) -> list[Tensor]:
        """The filter bank of each pair of blocks, (P, C_out, T·C_in)."""
        strict, banks = tensors[0], []
        described = zip(self._pairs, self._weights(tensors), self._steered(positions, tensors), strict=True)
        for (_, rows, columns), weights, steered in described:
            # (P, |A|, T, |B|, features) times (features, fields_out·fields_in)
            bank = steered.permute(0, 1, 3, 4, 2) @ weights.flatten(0, 1).mT
            bank = bank.unflatten(-1, weights.shape[:2]).permute(0, 1, 4, 2, 3, 5).flatten(4).flatten(1, 2)
            if strict is not None:
                bank = _with_strict_part(bank, strict[rows, :, columns])
            banks.append(bank.flatten(2))
        return banks

    def value(self, factors: Sequence[Tensor], tensors: Tensors, pixels: Tensor, workspace: Workspace | None) -> Tensor:
        """(W φ) f, (P, C_out, batch)."""
        answers: dict[int, Tensor] = {}
        for (_, rows, columns), bank in zip(self._pairs, factors, strict=True):
            answer = torch.bmm(bank, _rows(pixels[:, :, columns], bank.shape[2]))
            answers[rows.start] = answers[rows.start] + answer if rows.start in answers else answer
        return _joined(answers)

    def gradients(
        self,
        factors: Sequence[Tensor],
        tensors: Tensors,
        pixels: Tensor,
        gradient: Tensor,
        workspace: Workspace,
        wants_pixels: bool,
    ) -> tuple[list[Tensor], dict[int, Tensor], Tensor | None]:
        """Gradients of the filter banks and the pixels."""
        of_factors = []
        of_pixels = _PixelGradient(pixels, workspace) if wants_pixels else None
        for (_, rows, columns), bank in zip(self._pairs, factors, strict=True):
            part = gradient[:, rows]
            of_factors.append(torch.bmm(part, _rows(pixels[:, :, columns], bank.shape[2]).mT))
            if of_pixels is not None:
                of_pixels.add(columns, bank.mT, part)
        return of_factors, {}, None if of_pixels is None else of_pixels.value

    def _takes_strict_part(self) -> bool:
        return not self._average.assembly.changes_basis

    def _pixel_taps(self) -> list[int]:
        if self.kernel.strict is None or not self._takes_strict_part():
            return self._support
        others = set(range(self.kernel.geometry.kernel_size**2)) - set(self._support)
        return [*self._support, *sorted(others, key=self._column_first)]


class _PixelGradient:
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


def _rows(pixels: Tensor, inner: int) -> Tensor:
    """Pixels (P, T, |B|·fields, batch) as (P, T·|B|, fields·batch), T·|B| = ``inner``."""
    return pixels.reshape(len(pixels), inner, -1)


def _matrix(weights: Tensor) -> Tensor:
    """Weights (fields_out, fields_in, features) as (fields_out, features·fields_in)."""
    return weights.transpose(1, 2).flatten(1)


def _product(name: str, left: Tensor, right: Tensor, workspace: Workspace | None) -> Tensor:
    """Left @ right, in the workspace if there is one."""
    if workspace is None:
        return torch.bmm(left, right)
    out = workspace.get(name, (len(left), left.shape[1], right.shape[2]), right)
    return torch.bmm(left, right, out=out)


def _joined(answers: dict[int, Tensor]) -> Tensor:
    """The blocks of an output side by side."""
    values = list(answers.values())
    return values[0] if len(values) == 1 else torch.cat(values, dim=1)


def _with_strict_part(bank: Tensor, strict: Tensor) -> Tensor:
    """A bank (P, C_out, T, C_in) on the support plus one (C_out, T, C_in) whose first taps are those of the support."""
    support = bank.shape[2]
    soft = bank + strict[:, :support]
    rest = strict[:, support:]
    return torch.cat([soft, rest.expand(len(bank), *rest.shape)], dim=2) if rest.shape[1] else soft
