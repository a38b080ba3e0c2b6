"""Σ_d (W φ) f: the filter bank of a tile serves the whole batch (docs/performance.md)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .contraction import (
    KernelContraction,
    joined,
    product,
    product_with_transposed,
    windows_of,
)
from .contraction_cost import MOVED_VALUE, PixelCost
from .positional_kernel import PositionalKernel
from .tiled_integral import Pixels, Tensors
from .workspace import Workspace

__all__ = ["BankFirst"]


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
        pixels, groups = BankFirst.pixel_cost(kernel, batch), kernel.geometry.groups
        moved = groups * pixels.moved + 8 * entries
        return 3 * batch * entries + groups * pixels.products + building + MOVED_VALUE * moved

    @staticmethod
    def pixel_cost(kernel: PositionalKernel, batch: int) -> PixelCost:
        """Pixels meet the filter bank three times."""
        out_channels, in_channels = kernel.bank.steered_average.assembly.shape
        products = 3.0 * batch * out_channels // kernel.geometry.groups * in_channels
        return PixelCost.of(kernel, batch, len(kernel.taps()), BankFirst.factor_size_of(kernel), products)

    @staticmethod
    def factor_size_of(kernel: PositionalKernel) -> int:
        """That of the filter bank of one group."""
        out_channels, in_channels = kernel.bank.steered_average.assembly.shape
        return len(kernel.taps()) * (out_channels // kernel.geometry.groups) * in_channels

    def factors(self, positions: Tensor, tensors: Tensors) -> list[Tensor]:
        """The filter bank of each pair of blocks, (P, C_out, slots·C_in)."""
        strict, banks = tensors[0], []
        described = zip(self._pairs, self._weights(tensors), self._steered(positions, tensors), strict=True)
        for (_, rows, block), weights, steered in described:
            # (P, |A|, T, |B|, features) times (features, fields_out·fields_in)
            bank = steered.permute(0, 1, 3, 4, 2) @ weights.flatten(0, 1).mT
            bank = bank.unflatten(-1, weights.shape[:2]).permute(0, 1, 4, 2, 3, 5).flatten(4).flatten(1, 2)
            bank = self._in_slots(bank, self._support, dimension=2)
            if strict is not None:
                bank = bank + strict[rows, :, self.in_slices[block]]
            banks.append(bank.flatten(2))
        return banks

    def value(self, factors: Sequence[Tensor], tensors: Tensors, pixels: Pixels, workspace: Workspace | None) -> Tensor:
        """(W φ) f, (P, C_out, batch)."""
        answers: dict[int, Tensor] = {}
        for (number, rows, block), bank in zip(self._pairs, factors, strict=True):
            answer = product(f"answer {number}", bank, windows_of(pixels[block], bank.shape[2]), workspace)
            answers[rows.start] = answers[rows.start] + answer if rows.start in answers else answer
        return joined(answers)

    def gradients(
        self,
        factors: Sequence[Tensor],
        tensors: Tensors,
        pixels: Pixels,
        gradient: Tensor,
        workspace: Workspace,
        of_copies: Sequence[Tensor] | None,
    ) -> tuple[list[Tensor], dict[int, Tensor]]:
        """Gradients of the filter banks and the copies."""
        of_factors = []
        written: set[int] = set()
        for (_, rows, block), bank in zip(self._pairs, factors, strict=True):
            part = gradient[:, rows]
            of_factors.append(product_with_transposed(part, windows_of(pixels[block], bank.shape[2])))
            if of_copies is not None:
                self.pixels.add_product(bank, part, of_copies[block], block not in written, workspace)
                written.add(block)
        return of_factors, {}

    def _takes_strict_part(self) -> bool:
        return not self._average.assembly.changes_basis

    def _taps(self) -> list[int]:
        if self.kernel.strict is None or not self._takes_strict_part():
            return self._support
        return sorted(range(self.kernel.geometry.kernel_size**2), key=self._column_first)
