"""A kernel that depends on the position, tile by tile: no filter is ever kept for all positions (docs/performance.md).

The output is made strip by strip, some rows each. What the kernel is there, its *factors*, is built for a strip, meets
the pixels of one tile of the strip after the other, and is forgotten; it is built again when gradients are wanted. A
tile is some rows, or a part of one: its positions are consecutive. A *contraction* says what the factors are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .tap_layout import Region, TapLayout
from .workspace import Workspace

__all__ = ["Contraction", "Pixels", "Tensors", "integrate_tiles"]

# Bytes of the pixels that a column of taps reads in a tile: less, and the time goes into calls; more, and they leave
# the cache of a CPU and take more memory than a convolution. Other devices have no such cache, and calls cost more.
TILE_BYTES = {"cpu": 1_250_000, "else": 100_000_000}

# Tensors of the size of the factors while they are built: in all a strip takes about what a tile does.
FACTOR_COPIES = 4

# What a kernel is made of; None for a part that it has not.
Tensors = Sequence[Tensor | None]

# For each block of input channels: what outputs that follow each other read of it, (P, slots, C, batch).
Pixels = Sequence[Sequence[Tensor]]


class Contraction(ABC):
    """An order in which to contract kernel and pixels.

    Attributes:
        pixels: what the taps read of the image.
        in_slices: where the channels of each block of the input lie.
        positions: what the taps read of the encoded positions, None where these belong to the output.
        out_channels: C_out.
        factor_size: number of values of all factors at one position.
    """

    pixels: TapLayout
    in_slices: Sequence[slice]
    positions: TapLayout | None
    out_channels: int
    factor_size: int

    @abstractmethod
    def factors(self, positions: Tensor, tensors: Tensors) -> list[Tensor]:
        """What the kernel is on P positions, P first.

        Args:
            positions: encoded, (P, T, E, M), T = 1 where they belong to the output.
            tensors: what the kernel is made of.
        """

    @abstractmethod
    def value(self, factors: Sequence[Tensor], tensors: Tensors, pixels: Pixels, workspace: Workspace | None) -> Tensor:
        """The output of a tile, (P, C_out, batch); differentiable without a workspace."""

    @abstractmethod
    def gradients(
        self,
        factors: Sequence[Tensor],
        tensors: Tensors,
        pixels: Pixels,
        gradient: Tensor,
        workspace: Workspace,
        of_copies: Sequence[Tensor] | None,
    ) -> tuple[list[Tensor], dict[int, Tensor]]:
        """Gradients of the factors, and of those tensors (by number) that :meth:`value` uses.

        Args:
            factors: of :meth:`factors`.
            tensors: what the kernel is made of.
            pixels: of the tile.
            gradient: of the value.
            workspace: where to write.
            of_copies: for each block of the input, where to write the gradient of its copies; None if it is not wanted.
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
        width = output_size[1]
        answer = image.new_empty(output_size[0] * width, contraction.out_channels, image.shape[-1])
        workspace = Workspace()
        for strip in _strips(contraction, image, output_size):
            encoded = _encoded(contraction, positions, strip, workspace)
            factors = [factor.to(image.dtype) for factor in contraction.factors(encoded, tensors)]
            for tile in _tiles(contraction, image, strip):
                pixels = _read(contraction, _copies(contraction, image, tile, workspace))
                part = [factor[_places(tile, width, strip.rows.start)] for factor in factors]
                answer[_places(tile, width)] = contraction.value(part, tensors, pixels, workspace)
        return answer

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            return None, None, *_differentiable_gradients(ctx.contraction, inputs, wanted, gradients[0])
        return None, None, *_tiled_gradients(ctx.contraction, ctx.output_size, inputs, wanted, gradients[0])


def _strips(contraction: Contraction, image: Tensor, output_size: tuple[int, int]) -> list[Region]:
    """Rows for which factors are built at a time."""
    height, width = output_size
    bytes_of_row = FACTOR_COPIES * width * contraction.factor_size * image.element_size()
    rows = max(1, _tile_bytes(image) // max(1, bytes_of_row))
    return [Region(part, range(width)) for part in _split(range(height), rows)]


def _tiles(contraction: Contraction, image: Tensor, strip: Region) -> list[Region]:
    """Parts of a strip whose pixels are gathered at a time."""
    bytes_of_position = contraction.pixels.geometry.kernel_size * image[0, 0].numel() * image.element_size()
    positions = max(1, _tile_bytes(image) // max(1, bytes_of_position))
    width = len(strip.columns)
    if positions >= width:
        return [Region(rows, strip.columns) for rows in _split(strip.rows, positions // width)]
    # Parts of a row, as equal as can be.
    columns = math.ceil(width / math.ceil(width / positions))
    return [Region(range(row, row + 1), part) for row in strip.rows for part in _split(strip.columns, columns)]


def _tile_bytes(image: Tensor) -> int:
    return TILE_BYTES.get(image.device.type, TILE_BYTES["else"])


def _split(whole: range, count: int) -> list[range]:
    return [range(start, min(start + count, whole.stop)) for start in range(whole.start, whole.stop, count)]


def _places(tile: Region, width: int, first_row: int = 0) -> slice:
    """Numbers of the positions of a tile, counted from the start of some row."""
    start = (tile.rows.start - first_row) * width + tile.columns.start
    return slice(start, start + len(tile))


def _copies(contraction: Contraction, image: Tensor, tile: Region, workspace: Workspace) -> list[Tensor]:
    """What the taps read for a tile, for each block of channels."""
    blocks = [image[:, :, channels] for channels in contraction.in_slices]
    return [
        contraction.pixels.gather(
            block, tile, workspace.get(f"copies {number}", contraction.pixels.shape(block, tile), block)
        )
        for number, block in enumerate(blocks)
    ]


def _read(contraction: Contraction, copies: Sequence[Tensor]) -> Pixels:
    return [contraction.pixels.read(block) for block in copies]


def _encoded(contraction: Contraction, positions: Tensor, strip: Region, workspace: Workspace) -> Tensor:
    if contraction.positions is None:
        return positions[strip.rows.start : strip.rows.stop].flatten(0, 1).unsqueeze(1)
    shape = contraction.positions.shape(positions, strip)
    return contraction.positions.gather(positions, strip, workspace.get("positions", shape, positions))


def _tiled_gradients(
    contraction: Contraction,
    output_size: tuple[int, int],
    inputs: Sequence[Tensor],
    wanted: Sequence[bool],
    gradient: Tensor,
) -> list[Tensor | None]:
    """Gradients of the wanted inputs, each strip and tile built anew."""
    image, positions, *tensors = inputs
    gradient = gradient.flatten(1).contiguous().view_as(gradient)
    answer = [torch.zeros_like(value) if is_wanted else None for value, is_wanted in zip(inputs, wanted, strict=True)]
    workspace, width = Workspace(), output_size[1]
    for strip in _strips(contraction, image, output_size):
        # Factors by autograd; the large products by hand, which need not be computed again.
        leaves = _leaves([_encoded(contraction, positions, strip, workspace), *tensors], wanted[1:])
        with torch.set_grad_enabled(any(wanted[1:])):
            factors = [factor.to(image.dtype) for factor in contraction.factors(leaves[0], leaves[1:])]
        values = [factor.detach() for factor in factors]
        of_factors = [torch.empty_like(value, memory_format=torch.contiguous_format) for value in values]
        for tile in _tiles(contraction, image, strip):
            copies, places = _copies(contraction, image, tile, workspace), _places(tile, width, strip.rows.start)
            of_copies = [
                workspace.get(f"gradient of copies {number}", block.shape, block) for number, block in enumerate(copies)
            ]
            found, of_tensors = contraction.gradients(
                [value[places] for value in values],
                tensors,
                _read(contraction, copies),
                gradient[_places(tile, width)],
                workspace,
                of_copies if wanted[0] else None,
            )
            for place, of_factor in zip(of_factors, found, strict=True):
                place[places] = of_factor
            for number, of_tensor in of_tensors.items():
                _add(answer[2 + number], of_tensor)
            if answer[0] is not None:
                for channels, block in zip(contraction.in_slices, of_copies, strict=True):
                    contraction.pixels.scatter_add(answer[0][:, :, channels], block, tile)
        of_positions, *of_leaves = _through(factors, of_factors, leaves)
        for total, of_leaf in zip(answer[2:], of_leaves, strict=True):
            _add(total, of_leaf)
        _put_back(contraction, answer[1], of_positions, strip)
    return answer


def _put_back(contraction: Contraction, place: Tensor | None, of_positions: Tensor | None, strip: Region) -> None:
    if place is None or of_positions is None:
        return
    if contraction.positions is None:
        place[strip.rows.start : strip.rows.stop] = of_positions.view(len(strip.rows), *place.shape[1:])
    else:
        contraction.positions.scatter_add(place, of_positions, strip)


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
        place.add_(value)


def _differentiable_gradients(
    contraction: Contraction, inputs: Sequence[Tensor], wanted: Sequence[bool], gradient: Tensor
) -> list[Tensor | None]:
    """The same with a graph of their own, for second derivatives: all positions at once."""
    # Aliases, because one input may have been computed from another.
    aliases: list[Any] = [None if value is None else value.view_as(value) for value in inputs]
    image, positions, *tensors = aliases
    windows = contraction.pixels.gather_differentiably(image)
    pixels = [[windows[:, :, channels]] for channels in contraction.in_slices]
    if contraction.positions is None:
        encoded = positions.flatten(0, 1).unsqueeze(1)
    else:
        encoded = contraction.positions.gather_differentiably(positions)
    factors = [factor.to(image.dtype) for factor in contraction.factors(encoded, tensors)]
    answer = contraction.value(factors, tensors, pixels, None)
    chosen = [value for value, is_wanted in zip(aliases, wanted, strict=True) if is_wanted]
    found = iter(torch.autograd.grad(answer, chosen, gradient, create_graph=True, allow_unused=True))
    return [next(found) if is_wanted else None for is_wanted in wanted]
