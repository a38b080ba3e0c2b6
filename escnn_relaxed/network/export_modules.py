"""Plain forms of escnn's modules: by their own ``export()`` where that is right, else here.

escnn's ``export()`` drops the padding mode of ``R2Conv``, the output padding of ``R2ConvTransposed`` and the
``ceil_mode`` of pooling, makes float32 modules on the CPU whatever the dtype and device, and shares memory. A group
pooling becomes a class of escnn's, a batch norm whose fields of a size are not side by side is refused, and most
modules have no ``export()`` (docs/how-to/export.md lists them).
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from escnn import nn as enn
from torch import Tensor, nn

from ..integral.geometry import ConvolutionGeometry, TransposedGeometry, as_convolution
from .plain_modules import ByChannels, FieldMaximum, FieldNorm, Mask
from .plain_nonlinearities import Joined, NormMaxPool

__all__ = ["Export", "NoPlainFormError", "field_sizes", "plain_module"]

# torch's modules by the number of axes.
_BATCH_NORM = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_MAX_POOL = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
_AVG_POOL = {2: nn.AvgPool2d, 3: nn.AvgPool3d}
_CONVOLUTION: dict[int, type[nn.Conv2d | nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}

# A function from a part of a network to its plain form.
Export = Callable[[nn.Module], nn.Module]


class NoPlainFormError(Exception):
    """Raised for a module that only its own forward can compute."""


@functools.singledispatch
def plain_module(module: Any, export: Export) -> nn.Module:
    """Return a module on plain tensors with the numbers of ``module`` in eval mode, and memory of its own.

    Args:
        module: of escnn, in eval mode.
        export: what exports the parts of it that are modules.

    Raises:
        NoPlainFormError: where escnn cannot export it.
    """
    try:
        with _defaults_of(module):
            exported: nn.Module = copy.deepcopy(module.export())
    except NotImplementedError:
        raise NoPlainFormError from None
    return exported


@plain_module.register(enn.R2Conv)
@plain_module.register(enn.R3Conv)
def _(module: Any, export: Export) -> nn.Module:
    filter_bank, bias = module.expand_parameters()
    return as_convolution(filter_bank, bias, ConvolutionGeometry.of(module))


@plain_module.register
def _(module: enn.R2ConvTransposed, export: Export) -> nn.Module:
    filter_bank, bias = module.expand_parameters()
    return as_convolution(filter_bank, bias, TransposedGeometry.of(module))


@plain_module.register
def _(module: enn.InnerBatchNorm, export: Export) -> nn.Module:
    if not module.track_running_stats:
        raise NoPlainFormError
    norms = {size: getattr(module, f"batch_norm_[{size}]") for size in set(field_sizes(module))}
    values = next(iter(norms.values())).running_mean
    plain = _BATCH_NORM[_axes(module)](
        module.in_type.size, module.eps, module.momentum, module.affine, device=values.device, dtype=values.dtype
    )
    names = ["running_mean", "running_var", *(["weight", "bias"] if module.affine else [])]
    sizes = torch.tensor(field_sizes(module))
    size_of_channel = sizes.repeat_interleave(sizes)
    for size, norm in norms.items():
        channels = (size_of_channel == size).nonzero().flatten()
        for key in names:
            getattr(plain, key)[channels] = getattr(norm, key).repeat_interleave(size)
        if norm.num_batches_tracked is not None and plain.num_batches_tracked is not None:
            plain.num_batches_tracked.copy_(norm.num_batches_tracked)
    return plain


@plain_module.register(enn.DisentangleModule)
@plain_module.register(enn.GNormBatchNorm)
@plain_module.register(enn.IIDBatchNorm2d)
@plain_module.register(enn.IIDBatchNorm3d)
@plain_module.register(enn.InducedNormBatchNorm)
@plain_module.register(enn.NormBatchNorm)
@plain_module.register(enn.ReshuffleModule)
def _(module: Any, export: Export) -> nn.Module:
    if not getattr(module, "track_running_stats", True):
        raise NoPlainFormError
    # In eval mode these map the channels of a pixel affinely: 0 gives the bias, each unit vector a column.
    tensors = [*module.parameters(), *module.buffers()]
    dtype = next((each.dtype for each in tensors if each.is_floating_point()), torch.get_default_dtype())
    exact = copy.deepcopy(module).double()
    channels = module.in_type.size
    axes = _axes(module)
    pixel = (1,) * axes
    units = torch.eye(channels, dtype=torch.float64, device=tensors[0].device).view(channels, channels, *pixel)
    offset = exact(module.in_type(torch.zeros_like(units[:1]))).tensor
    matrix = (exact(module.in_type(units)).tensor - offset).flatten(1).T
    # A grouped convolution with the smallest groups that hold the matrix.
    for size in (1, *sorted(set(field_sizes(module))), channels):
        blocks = [matrix[start : start + size, start : start + size] for start in range(0, channels, size)]
        if channels % size == 0 and torch.equal(torch.block_diag(*blocks), matrix):
            break
    is_linear = isinstance(module, (enn.DisentangleModule, enn.ReshuffleModule))
    bank = torch.cat(blocks).view(channels, -1, *pixel).to(dtype)
    bias = None if is_linear else offset.flatten().to(dtype)
    geometry = ConvolutionGeometry(1, (0,) * axes, groups=channels // size)
    return as_convolution(bank, bias, geometry).requires_grad_(not is_linear)


@plain_module.register
def _(module: enn.GroupPooling, export: Export) -> nn.Module:
    return FieldMaximum(field_sizes(module))


@plain_module.register
def _(module: enn.NormPool, export: Export) -> nn.Module:
    return FieldNorm(field_sizes(module))


@plain_module.register
def _(module: enn.FieldDropout, export: Export) -> nn.Module:
    return nn.Identity()


@plain_module.register
def _(module: enn.NormMaxPool, export: Export) -> nn.Module:
    windows = module.kernel_size, module.stride, module.padding, module.dilation
    pool = nn.MaxPool2d(*windows, return_indices=True, ceil_mode=module.ceil_mode)
    return NormMaxPool(field_sizes(module), pool)


@plain_module.register(enn.PointwiseMaxPool2D)
@plain_module.register(enn.PointwiseMaxPool3D)
def _(module: Any, export: Export) -> nn.Module:
    return _max_pool(module, module.stride)


@plain_module.register(enn.PointwiseAvgPool2D)
@plain_module.register(enn.PointwiseAvgPool3D)
def _(module: Any, export: Export) -> nn.Module:
    return _AVG_POOL[_axes(module)](module.kernel_size, module.stride, module.padding, module.ceil_mode)


@plain_module.register(enn.PointwiseAvgPoolAntialiased2D)
@plain_module.register(enn.PointwiseAvgPoolAntialiased3D)
def _(module: Any, export: Export) -> nn.Module:
    return _blur(module.filter, module.stride, module.padding)


@plain_module.register(enn.PointwiseMaxPoolAntialiased2D)
@plain_module.register(enn.PointwiseMaxPoolAntialiased3D)
def _(module: Any, export: Export) -> nn.Module:
    return nn.Sequential(_max_pool(module, 1), _blur(module.filter, module.stride, module._pad))


@plain_module.register
def _(module: enn.MaskModule, export: Export) -> nn.Module:
    return Mask(module.mask.detach().clone())


@plain_module.register
def _(module: enn.MultipleModule, export: Export) -> nn.Module:
    # Channel numbers are sent through to find which channels a branch gets.
    device = next(chain(module.parameters(), module.buffers())).device
    numbers = torch.arange(module.in_type.size, dtype=torch.float64, device=device).view(1, -1, *(1,) * _axes(module))
    channels = {
        label: part.tensor.flatten().long() for label, part in module.branching(module.in_type(numbers)).items()
    }
    branches = []
    for number, labels in enumerate(module.merging._labels):
        part = export(getattr(module.merging, f"submodule_{number}"))
        if isinstance(part, Joined):
            part = part.module
        elif len(labels) > 1:
            raise NoPlainFormError
        branches.append((torch.cat([channels[label] for label in labels]), part))
    return ByChannels(branches)


@contextlib.contextmanager
def _defaults_of(module: nn.Module) -> Iterator[None]:
    """Give new modules the dtype and device of this one, and restore the random state afterwards."""
    values = [value for value in chain(module.parameters(), module.buffers()) if value.is_floating_point()]
    device = values[0].device if values else torch.device("cpu")
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.set_default_dtype(values[0].dtype if values else before)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def field_sizes(module: Any) -> list[int]:
    """Return the number of channels of each input field."""
    return [field.size for field in module.in_type.representations]


def _axes(module: Any) -> int:
    """Return the number of axes of the images of a module."""
    axes: int = module.in_type.gspace.dimensionality
    return axes


def _max_pool(module: Any, stride: Any) -> nn.Module:
    pool = _MAX_POOL[_axes(module)]
    return pool(module.kernel_size, stride, module.padding, module.dilation, ceil_mode=module.ceil_mode)


def _blur(taps: Tensor, stride: tuple[int, ...], padding: tuple[int, ...]) -> nn.Module:
    kind = _CONVOLUTION[taps.dim() - 2]
    blur = nn.utils.skip_init(
        kind,
        len(taps),
        len(taps),
        tuple(taps.shape[2:]),
        stride=stride,
        padding=padding,
        groups=len(taps),
        bias=False,
        device=taps.device,
        dtype=taps.dtype,
    )
    blur.weight.copy_(taps)
    return blur.requires_grad_(False)
