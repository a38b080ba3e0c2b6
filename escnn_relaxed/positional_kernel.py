"""A kernel that is soft in translation: what every way to apply it needs to know; runs without escnn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from .filter_bank import ContinuousFilterBank
from .integral_operator import ConvolutionGeometry, PositionalBank
from .precision import full_precision

__all__ = ["PositionalKernel"]


@dataclass(frozen=True)
class PositionalKernel:
    """K(d; y) = strict(d) + κ(d; y).

    Attributes:
        bank: the continuous kernel.
        strict: a stationary kernel that is added to it, (C_out, C_in/groups, k, k), or None.
        frequency: ω′ of each subgroup.
        hardened: subgroups on which the kernel is projected.
        geometry: where taps and pixels meet.
        domain: κ sees the position of the ``"input"`` or of the ``"output"``.
    """

    bank: ContinuousFilterBank
    strict: Tensor | None
    frequency: Mapping[str, Tensor]
    hardened: Sequence[str]
    geometry: ConvolutionGeometry
    domain: str

    def positions(self, size: tuple[int, int]) -> Tensor:
        """Position of each padded pixel, or each output, of an image of this size: (H, W, 2)."""
        geometry, grid = self.geometry, self.bank.grid
        if self.domain == "input":
            return grid.pixel_grid(size, geometry.padding, geometry.padding_mode)
        return grid.output_grid(size, geometry.padding, geometry.output_size(*size), geometry.stride)

    def taps(self) -> list[int]:
        """Numbers of the taps where K may be non-zero."""
        return self.bank.grid.support_numbers if self.strict is None else list(range(self.geometry.kernel_size**2))

    def bank_at(self, size: tuple[int, int]) -> PositionalBank:
        """K at a tap and a window of positions, for an image of this size."""
        positions = self.positions(size)
        numbers = {tap: number for number, tap in enumerate(self.bank.grid.support_numbers)}
        flat = None if self.strict is None else self.strict.flatten(2)

        def bank_at(tap: int, window: tuple[slice, slice]) -> Tensor:
            read = (positions[window] if self.domain == "input" else positions).reshape(-1, 2)
            parts = []
            if flat is not None:
                parts.append(flat[..., tap, None].expand(-1, -1, len(read)))
            if tap in numbers:
                with full_precision(read):
                    parts.append(self.bank.at_positions(self.frequency, numbers[tap], read, self.hardened))
            at_tap: Tensor = sum(parts[1:], parts[0])
            return at_tap

        return bank_at
