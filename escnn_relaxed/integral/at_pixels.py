"""The integral with a separate kernel at every pixel, equation (1) evaluated directly: slow, in chunks of pixels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TypeVar

import torch
from einops import einsum, rearrange
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ..kernel.config import Names
from ..kernel.kernel import Kernel
from ..torch_modes import full_precision, has_no_values
from .geometry import ConvolutionGeometry, Geometry, TransposedGeometry, image_size

# Values of the filter banks of a chunk of pixels, 32 MB in single precision.
_MOST_VALUES = 2**23
_Module = TypeVar("_Module", bound=nn.Module)


class BanksAtPixels:
    """K at the pixels of an image, with the present state; recomputed in the backward pass."""

    def __init__(self, kernel: Kernel, weights: Tensor | None, size: tuple[int, ...], averaged: Names) -> None:
        self._kernel = kernel if has_no_values() else _frozen(kernel)
        self._arguments = weights, size, tuple(averaged)
        self._parameters = [*([] if weights is None else [weights]), *kernel.parameters()]
        self._versions = [] if has_no_values() else [value._version for value in self._parameters]
        # Numbers that one pixel takes while its bank is made.
        self.values = kernel.values_at_a_pixel

    def __call__(self, start: int, end: int) -> Tensor:
        """Return the banks of some pixels, (pixels, C_out, C_in, T), in full precision."""
        is_checked = torch.is_grad_enabled() and not has_no_values()
        if is_checked and self._versions != [value._version for value in self._parameters]:
            raise RuntimeError(
                f"a parameter of a {self._kernel.public_name} that is soft in translation was changed in place between "
                f"the forward and the backward pass, which makes its filter banks again: step the optimiser afterwards"
            )
        with full_precision(self._kernel.frequency.like):
            return self._kernel.at_pixels(*self._arguments, start, end)


def _frozen(module: _Module) -> _Module:
    """Return a copy of a module and its submodules that shares the present tensors and settings."""
    frozen: _Module = object.__new__(type(module))
    own = {name: dict(getattr(module, name)) for name in ("_parameters", "_buffers")}
    modules = {name: None if part is None else _frozen(part) for name, part in module._modules.items()}
    vars(frozen).update(vars(module), **own, _modules=modules)
    return frozen


def integrate_at_pixels(features: Tensor, banks: BanksAtPixels, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Return h(x) = Σ_d K(d; x) f(x + d), or its adjoint, where K depends on the position in its input."""
    # The backward pass makes the banks again, so that memory does not grow with the image.
    count = prod(geometry.domain_size(features))
    chunk = max(1, _MOST_VALUES // banks.values)
    starts = range(0, count, chunk)
    image = (features if isinstance(geometry, TransposedGeometry) else geometry.pad(features)).flatten(2)
    numbers = _tap_numbers(image_size(features), geometry, features.device)
    integrate_chunk: Callable[..., Tensor] = _chunk
    if torch.is_grad_enabled() and not has_no_values():
        integrate_chunk = partial(checkpoint, _chunk, use_reentrant=False, preserve_rng_state=False)
    chunks = [integrate_chunk(image, banks, start, min(start + chunk, count), numbers, geometry) for start in starts]
    if isinstance(geometry, TransposedGeometry):
        output = _placed(chunks, numbers, image_size(features), geometry)
    else:
        output = torch.cat(chunks, -1).unflatten(-1, geometry.domain_size(features))
    return output if bias is None else output + bias.to(output.dtype).view(-1, *[1] * len(geometry.padding))


def _chunk(image: Tensor, banks: BanksAtPixels, start: int, end: int, numbers: Tensor, geometry: Geometry) -> Tensor:
    """Return the output at some pixels, (batch, C_out, pixels); for an adjoint their terms at each tap, (…, taps)."""
    filters = banks(start, end).to(image.dtype)
    if isinstance(geometry, TransposedGeometry):
        read, layout = image[:, :, start:end], "pixel out (group given) tap -> pixel group out given tap"
        taps, output = "", "batch group out pixel tap"
    else:
        read, layout = image[:, :, numbers[start:end]], "pixel (group out) given tap -> pixel group out given tap"
        taps, output = " tap", "batch group out pixel"
    filters = rearrange(filters, layout, group=geometry.groups)
    read = read.unflatten(1, (geometry.groups, -1))
    return einsum(read, filters, f"batch group given pixel{taps}, pixel group out given tap -> {output}").flatten(1, 2)


def _placed(chunks: list[Tensor], numbers: Tensor, size: tuple[int, ...], geometry: TransposedGeometry) -> Tensor:
    """Return the output of an adjoint, the sum of the terms of all pixels of the input."""
    whole = tuple((pixels - 1) * geometry.stride + geometry.extent for pixels in size)
    added = torch.cat(chunks, 2).flatten(2)
    output = added.new_zeros(*added.shape[:2], prod(whole)).index_add(2, numbers.flatten(), added).unflatten(2, whole)
    # What the padding cuts away before and behind; torch takes the margins of the last axis first.
    cuts = reversed([*zip(geometry.padding, geometry.output_padding, strict=True)])
    return functional.pad(output, [margin for padding, behind in cuts for margin in (-padding, behind - padding)])


def _tap_numbers(size: tuple[int, ...], geometry: Geometry, device: torch.device) -> Tensor:
    """Return the index of the pixel that each tap reads in the padded image, or writes to before cropping, (P, T)."""
    if isinstance(geometry, ConvolutionGeometry):
        whole = [n + 2 * p for n, p in zip(size, geometry.padding, strict=True)]
    else:
        whole = [(n - 1) * geometry.stride + geometry.extent for n in size]
    numbers = torch.arange(prod(whole), device=device).view(*whole)
    for axis in range(len(whole)):
        numbers = numbers.unfold(axis, geometry.extent, geometry.stride)[..., :: geometry.dilation]
    return numbers.flatten(len(whole)).flatten(0, -2)
