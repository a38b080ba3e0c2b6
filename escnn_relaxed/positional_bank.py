"""The filter bank of every position, of a kernel that is soft in translation; runs without escnn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from .filter_bank import ContinuousFilterBank
from .integral_operator import ConvolutionGeometry, PositionalBank
from .precision import full_precision

__all__ = ["positional_bank"]


def positional_bank(
    bank: ContinuousFilterBank,
    strict: Tensor | None,
    frequency: Mapping[str, Tensor],
    hardened: Sequence[str],
    geometry: ConvolutionGeometry,
    domain: str,
    size: tuple[int, int],
) -> tuple[list[int], PositionalBank]:
    """The taps where K may be non-zero, and K at a tap for an image.

    Args:
        bank: the continuous kernel.
        strict: a stationary kernel that is added to it, (C_out, C_in/groups, k, k).
        frequency: ω′ of each subgroup.
        hardened: subgroups on which the kernel is projected.
        geometry: where taps and pixels meet.
        domain: κ sees the position of the ``"input"`` or of the ``"output"``.
        size: height and width of the image in pixels.
    """
    if domain == "input":
        grid = bank.grid.pixel_grid(size, geometry.padding, geometry.padding_mode)
    else:
        grid = bank.grid.output_grid(size, geometry.padding, geometry.output_size(*size), geometry.stride)
    numbers = {tap: number for number, tap in enumerate(bank.grid.support_numbers)}
    flat = None if strict is None else strict.flatten(2)

    def bank_at(tap: int, window: tuple[slice, slice]) -> Tensor:
        positions = (grid[window] if domain == "input" else grid).reshape(-1, 2)
        parts = []
        if flat is not None:
            parts.append(flat[..., tap, None].expand(-1, -1, len(positions)))
        if tap in numbers:
            with full_precision(positions):
                parts.append(bank.at_positions(frequency, numbers[tap], positions, hardened))
        at_tap: Tensor = sum(parts[1:], parts[0])
        return at_tap

    return list(numbers) if flat is None else list(range(geometry.kernel_size**2)), bank_at
