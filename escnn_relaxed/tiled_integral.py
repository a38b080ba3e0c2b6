"""A kernel that depends on the position, applied tile by tile: no filter is ever kept for all positions (design §3).

The integral over a tile is a sum of matrix products, h = Σ L R. One of the factors holds pixels, the other the kernel,
or its features; a *contraction* says which. Both are built for a tile of rows of the output, used and forgotten, and
built again when gradients are wanted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .patches import Patches

__all__ = ["Contraction", "Product", "integrate_tiles"]

# Bytes of gathered pixels in a tile: less, and the time goes into calls; more, and they leave the cache.
TILE_BYTES = 2_500_000


@dataclass(frozen=True)
class Product:
    """One term L R of a tile, for positions (and what else goes side by side) n.

    Attributes:
        left: (n, channels, inner), or (channels, inner) where it is the same for all n.
        right: (n, inner, batch).
        channels: which channels of the output it adds to.
    """

    left: Tensor
    right: Tensor
    channels: slice

    def value(self) -> Tensor:
        """L R: (n, channels, batch)."""
        left = self.left if self.left.dim() == 3 else self.left.expand(len(self.right), -1, -1)
        return torch.bmm(left, self.right)

    def gradients(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Those of left and right, for the gradient (n, channels, batch) of the value."""
        if self.left.dim() == 3:
            return torch.bmm(gradient, self.right.mT), torch.bmm(self.left.mT, gradient)
        # One product over all n and the batch, not one for each n.
        left = self.right.transpose(0, 1).flatten(1) @ gradient.transpose(1, 2).flatten(0, 1)
        return left.mT, torch.bmm(self.left.mT.expand(len(self.right), -1, -1), gradient)


class Contraction(ABC):
    """An order in which to contract kernel and pixels.

    Attributes:
        pixels: what the taps read of the image.
        positions: what they read of the encoded positions, None where these belong to the output.
        out_channels: C_out.
    """

    pixels: Patches
    positions: Patches | None
    out_channels: int

    @abstractmethod
    def products(self, pixels: Tensor, positions: Tensor, tensors: Sequence[Tensor | None]) -> list[Product]:
        """The terms of a tile of P output positions.

        Args:
            pixels: (P, T, C, batch).
            positions: encoded, (P, T, E, M), T = 1 where they belong to the output.
            tensors: what the kernel is made of.
        """

    def tile(self, pixels: Tensor, positions: Tensor, tensors: Sequence[Tensor | None]) -> Tensor:
        """The output of a tile, (P, C_out, batch)."""
        return self.sum(self.products(pixels, positions, tensors), len(pixels))

    def sum(self, products: Sequence[Product], count: int) -> Tensor:
        """The sum of terms for ``count`` positions: (P, C_out, batch)."""
        answer: dict[int, Tensor] = {}
        for product in products:
            key = product.channels.start
            value = product.value().view(count, -1, product.right.shape[-1])
            answer[key] = answer[key] + value if key in answer else value
        return torch.cat([answer[key] for key in sorted(answer)], dim=1)


def integrate_tiles(
    contraction: Contraction,
    output_size: tuple[int, int],
    image: Tensor,
    positions: Tensor,
    tensors: Sequence[Tensor | None],
) -> Tensor:
    """H on every output position: (H_out·W_out, C_out, batch).

    Differentiable twice. Memory beside the answer is that of a tile.

    Args:
        contraction: the order.
        output_size: H_out and W_out.
        image: padded, (H, W, C, batch), contiguous.
        positions: encoded, (H, W, E, M) or, where they belong to the output, (H_out, W_out, E, M), contiguous.
        tensors: what the kernel is made of.
    """
    answer: Tensor = _TiledIntegral.apply(contraction, output_size, image, positions, *tensors)
    return answer


class _TiledIntegral(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        contraction: Contraction,
        output_size: tuple[int, int],
        image: Tensor,
        positions: Tensor,
        *tensors: Tensor | None,
    ) -> Tensor:
        ctx.contraction, ctx.output_size = contraction, output_size
        ctx.save_for_backward(image, positions, *tensors)
        height, width = output_size
        answer = image.new_empty(height * width, contraction.out_channels, image.shape[-1])
        for rows in _tiles(contraction, image, output_size):
            pixels, encoded = _gather(contraction, image, positions, rows)
            answer[rows.start * width : rows.stop * width] = contraction.tile(pixels, encoded, tensors)
        return answer

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            return None, None, *_differentiable_gradients(ctx.contraction, inputs, wanted, gradients[0])
        return None, None, *_tiled_gradients(ctx.contraction, ctx.output_size, inputs, wanted, gradients[0])


def _tiles(contraction: Contraction, image: Tensor, output_size: tuple[int, int]) -> list[range]:
    height, width = output_size
    pixel = image.shape[2] * image.shape[3] * image.element_size()
    rows = max(1, TILE_BYTES // max(1, width * len(contraction.pixels.taps) * pixel))
    return [range(start, min(start + rows, height)) for start in range(0, height, rows)]


def _gather(contraction: Contraction, image: Tensor, positions: Tensor, rows: range) -> tuple[Tensor, Tensor]:
    pixels = contraction.pixels.gather(image, rows)
    if contraction.positions is not None:
        return pixels, contraction.positions.gather(positions, rows)
    return pixels, positions[rows.start : rows.stop].flatten(0, 1).unsqueeze(1)


def _tiled_gradients(
    contraction: Contraction,
    output_size: tuple[int, int],
    inputs: Sequence[Tensor],
    wanted: Sequence[bool],
    gradient: Tensor,
) -> list[Tensor | None]:
    """Gradients of the wanted inputs, each tile built anew."""
    image, positions, *tensors = inputs
    answer = [torch.zeros_like(value) if is_wanted else None for value, is_wanted in zip(inputs, wanted, strict=True)]
    width = output_size[1]
    for rows in _tiles(contraction, image, output_size):
        part = gradient[rows.start * width : rows.stop * width]
        values = [*_gather(contraction, image, positions, rows), *tensors]
        found = _tile_gradients(contraction, values, wanted, part)
        for place, number, patches in ((answer[0], 0, contraction.pixels), (answer[1], 1, contraction.positions)):
            value = found[number]
            if place is None or value is None:
                continue
            if patches is None:
                place[rows.start : rows.stop] = value.view(len(rows), *place.shape[1:])
            else:
                patches.scatter_add(place, value, rows)
        for place, value in zip(answer[2:], found[2:], strict=True):
            if place is not None and value is not None:
                place += value
    return answer


def _tile_gradients(
    contraction: Contraction, values: Sequence[Tensor | None], wanted: Sequence[bool], gradient: Tensor
) -> list[Tensor | None]:
    """Gradients of what one tile is built from; those of the products by hand, which need not be computed again."""
    leaves = [
        None if value is None else value.detach().requires_grad_(is_wanted)
        for value, is_wanted in zip(values, wanted, strict=True)
    ]
    pixels, positions, *tensors = leaves
    if pixels is None or positions is None:
        raise RuntimeError("a tile has pixels and positions")
    with torch.enable_grad():
        products = contraction.products(pixels, positions, tensors)
    factors: list[Tensor] = []
    gradients: list[Tensor] = []
    for product in products:
        part = gradient[:, product.channels].reshape(len(product.right), -1, product.right.shape[-1])
        for factor, value in zip((product.left, product.right), product.gradients(part), strict=True):
            if factor.requires_grad:
                factors.append(factor)
                gradients.append(value)
    chosen = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    found = iter(torch.autograd.grad(factors, chosen, gradients, allow_unused=True) if factors else [])
    return [next(found, None) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def _differentiable_gradients(
    contraction: Contraction, inputs: Sequence[Tensor], wanted: Sequence[bool], gradient: Tensor
) -> list[Tensor | None]:
    """The same with a graph of their own, for second derivatives: all positions at once."""
    # Aliases, because one input may have been computed from another.
    aliases = [None if value is None else value.view_as(value) for value in inputs]
    image, positions, *tensors = aliases
    pixels = contraction.pixels.gather_differentiably(image)
    if contraction.positions is not None:
        encoded = contraction.positions.gather_differentiably(positions)
    else:
        encoded = positions.flatten(0, 1).unsqueeze(1)
    answer = contraction.tile(pixels, encoded, tensors)
    chosen = [value for value, is_wanted in zip(aliases, wanted, strict=True) if is_wanted]
    found = iter(torch.autograd.grad(answer, chosen, gradient, create_graph=True, allow_unused=True))
    return [next(found) if is_wanted else None for is_wanted in wanted]
