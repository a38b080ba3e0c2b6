"""Σ_d (W φ) f: the filter bank of a tile serves the whole batch (docs/performance.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .contraction import MOVED_VALUE, KernelContraction, PixelGradient, joined, rows_of
from .positional_kernel import PositionalKernel
from .tiled_integral import Tensors, Workspace

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
            answer = torch.bmm(bank, rows_of(pixels[:, :, columns], bank.shape[2]))
            answers[rows.start] = answers[rows.start] + answer if rows.start in answers else answer
        return joined(answers)

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
        of_pixels = PixelGradient(pixels, workspace) if wants_pixels else None
        for (_, rows, columns), bank in zip(self._pairs, factors, strict=True):
            part = gradient[:, rows]
            of_factors.append(torch.bmm(part, rows_of(pixels[:, :, columns], bank.shape[2]).mT))
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


def _with_strict_part(bank: Tensor, strict: Tensor) -> Tensor:
    """A bank (P, C_out, T, C_in) on the support plus one (C_out, T, C_in) whose first taps are those of the support."""
    support = bank.shape[2]
    soft = bank + strict[:, :support]
    rest = strict[:, support:]
    return torch.cat([soft, rest.expand(len(bank), *rest.shape)], dim=2) if rest.shape[1] else soft
