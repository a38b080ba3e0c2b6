"""A kernel that depends on the position, applied tile by tile: no filter is ever kept for all positions (design §3).

A tile is some rows of the output. What the kernel is there, its *factors*, is built for a tile, meets the pixels, and
is forgotten; it is built again when gradients are wanted. A *contraction* says what the factors are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .patches import Patches

__all__ = ["Contraction", "Tensors", "Workspace", "integrate_tiles"]

# Bytes of gathered pixels in a tile: less, and the time goes into calls; more, and they leave the cache.
TILE_BYTES = 2_500_000

# What a kernel is made of; None for a part that it has not.
Tensors = Sequence[Tensor | None]


class Workspace:
    """Memory that one tile after another uses: fresh pages would cost more than what is written to them."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def get(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """An uninitialised tensor; what was got before under this name is lost."""
        size = math.prod(shape)
        if name not in self._memory or self._memory[name].numel() < size:
            self._memory[name] = like.new_empty(size)
        return self._memory[name][:size].view(*shape)


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
    def factors(self, positions: Tensor, tensors: Tensors) -> list[Tensor]:
        """What the kernel is on a tile of P positions, P first.

        Args:
            positions: encoded, (P, T, E, M), T = 1 where they belong to the output.
            tensors: what the kernel is made of.
        """

    @abstractmethod
    def value(self, factors: Sequence[Tensor], tensors: Tensors, pixels: Tensor, workspace: Workspace | None) -> Tensor:
        """The output of a tile, (P, C_out, batch), of pixels (P, T, C, batch); differentiable without a workspace."""

    @abstractmethod
    def gradients(
        self,
        factors: Sequence[Tensor],
        tensors: Tensors,
        pixels: Tensor,
        gradient: Tensor,
        workspace: Workspace,
        wants_pixels: bool,
    ) -> tuple[list[Tensor], dict[int, Tensor], Tensor | None]:
        """Gradients of the factors, of those tensors (by number) that :meth:`value` uses, and of the pixels.

        Args:
            factors: of :meth:`factors`.
            tensors: what the kernel is made of.
            pixels: (P, T, C, batch).
            gradient: of the value.
            workspace: where to write; the gradient of the pixels may lie in it.
            wants_pixels: else that of the pixels is None.
        """


def integrate_tiles(
    contraction: Contraction,
    output_size: tuple[int, int],
    image: Tensor,
    positions: Tensor,
    tensors: Tensors,
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
        workspace = Workspace()
        for rows in _tiles(contraction, image, output_size):
            pixels, encoded = _gather(contraction, image, positions, rows, workspace)
            factors = contraction.factors(encoded, tensors)
            value = contraction.value(factors, tensors, pixels, workspace)
            answer[rows.start * width : rows.stop * width] = value
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


def _gather(
    contraction: Contraction, image: Tensor, positions: Tensor, rows: range, workspace: Workspace
) -> tuple[Tensor, Tensor]:
    pixels = contraction.pixels.gather(
        image, rows, workspace.get("pixels", contraction.pixels.shape(image, rows), image)
    )
    if contraction.positions is None:
        return pixels, positions[rows.start : rows.stop].flatten(0, 1).unsqueeze(1)
    shape = contraction.positions.shape(positions, rows)
    return pixels, contraction.positions.gather(positions, rows, workspace.get("positions", shape, positions))


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
    wants_kernel = any(wanted[1:])
    workspace, width = Workspace(), output_size[1]
    for rows in _tiles(contraction, image, output_size):
        pixels, encoded = _gather(contraction, image, positions, rows, workspace)
        # Factors by autograd; the large products by hand, which need not be computed again.
        leaves = _leaves([encoded, *tensors], wanted[1:])
        with torch.set_grad_enabled(wants_kernel):
            factors = contraction.factors(leaves[0], leaves[1:])
        part = gradient[rows.start * width : rows.stop * width]
        of_factors, of_tensors, of_pixels = contraction.gradients(
            [factor.detach() for factor in factors], tensors, pixels, part, workspace, wanted[0]
        )
        if answer[0] is not None and of_pixels is not None:
            contraction.pixels.scatter_add(answer[0], of_pixels, rows)
        found = _through(factors, of_factors, leaves)
        for number, value in of_tensors.items():
            _add(answer[2 + number], value)
        for place, of_tensor in zip(answer[2:], found[1:], strict=True):
            _add(place, of_tensor)
        if answer[1] is None or found[0] is None:
            continue
        if contraction.positions is None:
            answer[1][rows.start : rows.stop] = found[0].view(len(rows), *positions.shape[1:])
        else:
            contraction.positions.scatter_add(answer[1], found[0], rows)
    return answer


def _leaves(values: Tensors, wanted: Sequence[bool]) -> list[Any]:
    return [
        None if value is None else value.detach().requires_grad_(is_wanted)
        for value, is_wanted in zip(values, wanted, strict=True)
    ]


def _through(factors: Sequence[Tensor], gradients: Sequence[Tensor], leaves: Tensors) -> list[Tensor | None]:
    """Gradients of the leaves that want one, of given gradients of the factors."""
    pairs = [pair for pair in zip(factors, gradients, strict=True) if pair[0].requires_grad]
    chosen = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    if not pairs or not chosen:
        return [None] * len(leaves)
    roots, values = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(roots, chosen, values, allow_unused=True))
    return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def _add(place: Tensor | None, value: Tensor | None) -> None:
    if place is not None and value is not None:
        place += value


def _differentiable_gradients(
    contraction: Contraction, inputs: Sequence[Tensor], wanted: Sequence[bool], gradient: Tensor
) -> list[Tensor | None]:
    """The same with a graph of their own, for second derivatives: all positions at once."""
    # Aliases, because one input may have been computed from another.
    aliases: list[Any] = [None if value is None else value.view_as(value) for value in inputs]
    image, positions, *tensors = aliases
    pixels = contraction.pixels.gather_differentiably(image)
    if contraction.positions is None:
        encoded = positions.flatten(0, 1).unsqueeze(1)
    else:
        encoded = contraction.positions.gather_differentiably(positions)
    answer = contraction.value(contraction.factors(encoded, tensors), tensors, pixels, None)
    chosen = [value for value, is_wanted in zip(aliases, wanted, strict=True) if is_wanted]
    found = iter(torch.autograd.grad(answer, chosen, gradient, create_graph=True, allow_unused=True))
    return [next(found) if is_wanted else None for is_wanted in wanted]
