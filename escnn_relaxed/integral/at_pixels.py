"""The integral with a kernel of its own at every pixel, equation (1) word for word: slow, in chunks of pixels."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Protocol

import torch
from einops import einsum, rearrange
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ..torch_modes import has_no_values
from .geometry import ConvolutionGeometry, Geometry, TransposedGeometry, image_size

# Values of the filter banks of a chunk of pixels, 32 MB in single precision.
_MOST_VALUES = 2**23


class Banks(Protocol):
    """The filter banks (pixels, C_out, C_in, k, …) at the pixels from the first number up to the last."""

    values: int  # numbers that one pixel takes while its bank is made

    def __call__(self, start: int, end: int) -> Tensor:
        """Return them."""


def integrate_at_pixels(features: Tensor, banks: Banks, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Return h(x) = Σ_d K(d; x) f(x + d), or its adjoint, where K depends on the position in its input.

    Filter banks are made again in the backward pass, so that memory does not grow with the image.

    Args:
        features: (batch, C_in, H, W).
        banks: K at the pixels of the output, of an adjoint at those of the input.
        bias: (C_out,).
        geometry: that of the convolution.
    """
    count = prod(geometry.domain_size(features))
    chunk = max(1, _MOST_VALUES // banks.values)
    starts = range(0, count, chunk)
    is_adjoint = isinstance(geometry, TransposedGeometry)
    integrate = _adjoint_chunk if is_adjoint else _chunk
    image = features.flatten(2) if is_adjoint else geometry.pad(features).flatten(2)  # type: ignore[union-attr]
    numbers = _tap_numbers(image_size(features), geometry, features.device)
    parts = [
        _recomputed(integrate, image, banks, start, min(start + chunk, count), numbers, geometry.groups)
        for start in starts
    ]
    if isinstance(geometry, TransposedGeometry):
        output = _placed(parts, numbers, image_size(features), geometry)
    else:
        output = torch.cat(parts, -1).unflatten(-1, geometry.domain_size(features))
    return output if bias is None else output + bias.to(output.dtype).view(-1, *[1] * len(geometry.padding))


def _recomputed(function: Callable[..., Tensor], *arguments: object) -> Tensor:
    if torch.is_grad_enabled() and not has_no_values():
        result: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
        return result
    return function(*arguments)


def _chunk(image: Tensor, banks: Banks, start: int, end: int, numbers: Tensor, groups: int) -> Tensor:
    """Return the output at some pixels, (batch, C_out, pixels), of a padded image (batch, C_in, all its pixels)."""
    read = rearrange(
        image[:, :, numbers[start:end]], "batch (group given) pixel tap -> batch group given pixel tap", group=groups
    )
    made = rearrange(
        banks(start, end).flatten(3).to(image.dtype),
        "pixel (group out) given tap -> pixel group out given tap",
        group=groups,
    )
    pattern = "batch group given pixel tap, pixel group out given tap -> batch group out pixel"
    return einsum(read, made, pattern).flatten(1, 2)


def _adjoint_chunk(image: Tensor, banks: Banks, start: int, end: int, numbers: Tensor, groups: int) -> Tensor:
    """Return what some pixels of the input add to the output at each tap, (batch, C_out, pixels, taps)."""
    read = rearrange(image[:, :, start:end], "batch (group given) pixel -> batch group given pixel", group=groups)
    made = rearrange(
        banks(start, end).flatten(3).to(image.dtype),
        "pixel out (group given) tap -> pixel group out given tap",
        group=groups,
    )
    pattern = "batch group given pixel, pixel group out given tap -> batch group out pixel tap"
    return einsum(read, made, pattern).flatten(1, 2)


def _placed(parts: list[Tensor], numbers: Tensor, size: tuple[int, ...], geometry: TransposedGeometry) -> Tensor:
    """Return the output, given what each pixel of the input adds to it."""
    whole = tuple((pixels - 1) * geometry.stride + geometry.extent for pixels in size)
    added = torch.cat(parts, 2).flatten(2)
    output = added.new_zeros(*added.shape[:2], prod(whole)).index_add(2, numbers.flatten(), added).unflatten(2, whole)
    # What the padding cuts away before and behind; torch takes the margins of the last axis first.
    cuts = reversed([*zip(geometry.padding, geometry.output_padding, strict=True)])
    return functional.pad(output, [margin for padding, added in cuts for margin in (-padding, added - padding)])


def _tap_numbers(size: tuple[int, ...], geometry: Geometry, device: torch.device) -> Tensor:
    """Return the number of the pixel that each tap reads in the padded image, or writes to before it is cut, (P, T)."""
    if isinstance(geometry, ConvolutionGeometry):
        whole = [n + 2 * p for n, p in zip(size, geometry.padding, strict=True)]
    else:
        whole = [(n - 1) * geometry.stride + geometry.extent for n in size]
    numbers = torch.arange(prod(whole), device=device).view(*whole)
    for axis in range(len(whole)):
        numbers = numbers.unfold(axis, geometry.extent, geometry.stride)[..., :: geometry.dilation]
    return numbers.flatten(len(whole)).flatten(0, -2)
