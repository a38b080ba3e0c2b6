"""The two orders in which a kernel that depends on the position is contracted with pixels, and the choice (design §3).

κ = W φ is linear in its features, so h = Σ_d W φ(d; y) f(y) may be read in two ways:

- *basis first*, W (Σ_d φ f): for many channels, pixels meet the few features before the many weights;
- *bank first*, Σ_d (W φ) f: for many images and few channels, the filter bank of a tile serves the whole batch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from .integral_operator import image_size, integrate_stationary
from .patches import Patches
from .positional_kernel import PositionalKernel
from .tiled_integral import Contraction, Product, integrate_tiles

__all__ = ["BankFirst", "BasisFirst", "KernelContraction", "choose_contraction"]


class KernelContraction(Contraction):
    """What both orders share: encoded positions, the features of a tile, the way from and to feature maps.

    Args:
        kernel: of the layer.
        size: height and width of the image in pixels.
    """

    def __init__(self, kernel: PositionalKernel, size: tuple[int, int]) -> None:
        self.kernel = kernel
        self._size = size
        self._output_size = kernel.geometry.output_size(*size)
        side = kernel.geometry.kernel_size
        support = kernel.bank.grid.support_numbers
        # Column after column of the kernel, as patches are read.
        self._order = sorted(range(len(support)), key=lambda number: divmod(support[number], side)[::-1])
        self._support = [support[number] for number in self._order]
        self.pixels = Patches(self._pixel_taps(), kernel.geometry, self._output_size)
        positions = Patches(self._support, kernel.geometry, self._output_size)
        self.positions = positions if kernel.domain == "input" else None

    @staticmethod
    @abstractmethod
    def multiplications(kernel: PositionalKernel, batch: int) -> float:
        """Multiplications for each position of the output, forward and backward."""

    @abstractmethod
    def integrate(self, features: Tensor, bias: Tensor | None) -> Tensor:
        """H (batch, C_out, H_out, W_out) of f (batch, C_in, H, W)."""

    def _pixel_taps(self) -> list[int]:
        return self._support

    def _integrate(self, features: Tensor, strict: Tensor | None) -> Tensor:
        """The same in this contraction's own order of channels, without a bias."""
        kernel = self.kernel
        elements_last = kernel.geometry.pad(features).permute(2, 3, 1, 0).contiguous()
        positions = kernel.positions(self._size)
        encoded = kernel.bank.encode_positions(kernel.frequency, positions.flatten(0, 1), kernel.hardened)
        encoded = encoded.permute(2, 0, 1).unflatten(0, positions.shape[:2]).contiguous()
        weights = kernel.bank.steered_average.plain_weights()
        taps = kernel.bank.encode_taps(kernel.frequency, self._order)
        tensors = (*taps, strict, *weights, *kernel.bank.kernel.decoder_parameters)
        answer = integrate_tiles(self, self._output_size, elements_last, encoded, tensors)
        return answer.unflatten(0, self._output_size).permute(3, 2, 0, 1)

    def _features(self, positions: Tensor, tensors: Sequence[Tensor | None]) -> Tensor:
        """(J′, M, R, T, P) of a tile."""
        taps, mean, window, _, *others = tensors
        parameters = cast(list[Tensor], others[len(self.kernel.bank.steered_average.block_pairs) :])
        # Views: memory stays in the order of the patches.
        encoded = positions.permute(2, 3, 1, 0)
        return self.kernel.bank.decode(cast(Tensor, taps), mean, cast(Tensor, window), encoded, parameters)

    def _weights(self, tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """(fields_out, fields_in, P) of each pair of blocks."""
        return cast(list[Tensor], list(tensors[4 : 4 + len(self.kernel.bank.steered_average.block_pairs)]))


class BasisFirst(KernelContraction):
    """Pixels meet the steered features first, then the weights; the strict part is a convolution of its own."""

    @staticmethod
    def multiplications(kernel: PositionalKernel, batch: int) -> float:
        """Three products with each factor and, in backward, the first one again."""
        taps, total = len(kernel.bank.grid.support_numbers), 0.0
        for shape in kernel.bank.steered_average.pair_shapes():
            rows = shape.features * shape.out_size
            total += 4 * rows * taps * shape.in_size * shape.in_count + 3 * rows * shape.in_count * shape.out_count
        if kernel.strict is not None:
            total += 3 * kernel.strict.numel()
        return batch * total

    def integrate(self, features: Tensor, bias: Tensor | None) -> Tensor:
        """H (batch, C_out, H_out, W_out) of f (batch, C_in, H, W)."""
        assembly = self.kernel.bank.steered_average.assembly
        self.out_channels = assembly.out_slices[-1].stop
        soft = assembly.from_blocks(self._integrate(assembly.to_blocks(features), None))
        if self.kernel.strict is not None:
            return soft + integrate_stationary(features, self.kernel.strict, bias, self.kernel.geometry)
        return soft if bias is None else soft + bias.to(soft.dtype).view(-1, 1, 1)

    def products(self, pixels: Tensor, positions: Tensor, tensors: Sequence[Tensor | None]) -> list[Product]:
        """W (φ f) for each pair of blocks."""
        average = self.kernel.bank.steered_average
        count, taps, _, batch = pixels.shape
        hidden = self._features(positions, tensors).flatten(3)
        pairs = iter(zip(average.block_pairs, self._weights(tensors), strict=True))
        read = [pixels[:, :, part] for part in average.assembly.in_slices]
        products = []
        for channels in average.assembly.out_slices:
            for pixels_of_block in read:
                pair, weights = next(pairs)
                steered = pair.steering(hidden).unflatten(-1, (taps, count)).to(pixels.dtype)
                features, out_size, in_size = steered.shape[:3]
                # (P, |A|·features, T·|B|) times (P, T·|B|, fields·batch)
                left = steered.permute(4, 1, 0, 3, 2).reshape(count, out_size * features, taps * in_size)
                right = pixels_of_block.reshape(count, taps * in_size, -1)
                met = torch.bmm(left, right).view(count * out_size, -1, batch)
                products.append(Product(weights.to(met.dtype).transpose(1, 2).flatten(1), met, channels))
        return products


class BankFirst(KernelContraction):
    """The filter bank of a tile, the strict part in it, serves the whole batch."""

    @staticmethod
    def multiplications(kernel: PositionalKernel, batch: int) -> float:
        """Three products with the filter bank; it is built twice and differentiated once with respect to each factor."""
        support = len(kernel.bank.grid.support_numbers)
        channels = math.prod(kernel.bank.steered_average.assembly.shape)
        total = 3.0 * batch * len(kernel.taps()) * channels
        for shape in kernel.bank.steered_average.pair_shapes():
            entries = shape.out_size * shape.out_count * shape.in_size * shape.in_count
            total += 4 * shape.features * entries * support
        return total

    def _pixel_taps(self) -> list[int]:
        if self.kernel.strict is None:
            return self._support
        side = self.kernel.geometry.kernel_size
        others = sorted(set(range(side**2)) - set(self._support), key=lambda tap: divmod(tap, side)[::-1])
        return [*self._support, *others]

    def integrate(self, features: Tensor, bias: Tensor | None) -> Tensor:
        """H (batch, C_out, H_out, W_out) of f (batch, C_in, H, W)."""
        strict = self.kernel.strict
        self.out_channels = self.kernel.bank.steered_average.assembly.shape[0]
        if strict is not None:
            strict = strict.flatten(2)[..., self.pixels.taps]
        answer = self._integrate(features, strict)
        return answer if bias is None else answer + bias.to(answer.dtype).view(-1, 1, 1)

    def products(self, pixels: Tensor, positions: Tensor, tensors: Sequence[Tensor | None]) -> list[Product]:
        """(W φ) f, for each group of channels."""
        count, _, _, batch = pixels.shape
        hidden = self._features(positions, tensors)
        bank = self.kernel.bank.steered_average.weighted(hidden.flatten(3), self._weights(tensors))
        bank = bank.unflatten(-1, (-1, count))
        strict = tensors[3]
        if strict is not None:
            strict = strict.unsqueeze(-1)
            support = bank.shape[2]
            rest = strict[:, :, support:].expand(-1, -1, -1, count)
            bank = torch.cat([bank + strict[:, :, :support], rest], dim=2)
        groups = self.kernel.geometry.groups
        # (P·groups, C_out/groups, T·C_in/groups) times (P·groups, T·C_in/groups, batch)
        left = bank.to(pixels.dtype).permute(3, 0, 2, 1).reshape(count * groups, len(bank) // groups, -1)
        right = pixels.unflatten(2, (groups, -1)).transpose(1, 2).reshape(count * groups, -1, batch)
        return [Product(left, right, slice(0, len(bank)))]


def choose_contraction(kernel: PositionalKernel, features: Tensor) -> KernelContraction:
    """The order of fewer multiplications for this layer and batch (design §3); groups go bank first.

    Args:
        kernel: of the layer.
        features: f, (batch, C_in, H, W).
    """
    orders: list[type[KernelContraction]] = [BankFirst]
    if kernel.geometry.groups == 1:
        orders.append(BasisFirst)
    best = min(orders, key=lambda order: order.multiplications(kernel, features.shape[0]))
    return best(kernel, image_size(features))
