"""What the orders of contraction and the layouts of pixels cost (docs/performance.md)."""

from __future__ import annotations

from dataclasses import dataclass

from .positional_kernel import PositionalKernel

__all__ = ["COPIED_PIXEL", "MOVED_FACTORS", "MOVED_VALUE", "PixelCost"]

# Multiplications in the time that one value takes to be written and read: 45 ± 15 on the CPUs that were measured.
MOVED_VALUE = 45

# How often what the kernel is at a position is moved for being on k² taps where windows overlap.
MOVED_FACTORS = 10

# Multiplications in the time that a pixel takes to be copied within a tile: both layouts take the same time at J = 16.
COPIED_PIXEL = 6


@dataclass(frozen=True)
class PixelCost:
    """What it costs at a position that T taps read their pixels; of one group, forward and backward.

    Attributes:
        overlaps: whether :class:`Windows` take less time than :class:`Patches`.
        moved: values that are moved.
        products: multiplications by values that are 0.
    """

    overlaps: bool
    moved: float
    products: float = 0.0

    @staticmethod
    def of(kernel: PositionalKernel, batch: int, taps: int, factor_size: int, products: float) -> PixelCost:
        """The cheaper layout.

        Pixels are moved four times, T of them or k; but windows have all k² taps: what the kernel is there is moved
        too, and multiplied by. Products row by row would let a GPU wait.

        Args:
            kernel: of the layer.
            batch: number of images.
            taps: T.
            factor_size: number of values that the kernel is at one position.
            products: multiplications by these for each tap.
        """
        geometry = kernel.geometry
        pixels = 4.0 * batch * kernel.bank.steered_average.assembly.shape[1]
        patches = PixelCost(False, taps * pixels)
        if geometry.stride > 1 or geometry.dilation > 1 or kernel.bank.grid.window.device.type != "cpu":
            return patches
        moved = geometry.kernel_size * pixels + MOVED_FACTORS * factor_size
        windows = PixelCost(True, moved, (geometry.kernel_size**2 - taps) * products)
        return windows if windows.moved + windows.products / COPIED_PIXEL < patches.moved else patches
