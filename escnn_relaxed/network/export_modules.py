"""Modules of escnn as plain ones: by their own ``export()``, or here where that is missing or not the same.

escnn's ``export()`` drops the padding mode of ``R2Conv``, the output padding of ``R2ConvTransposed`` and the
``ceil_mode`` of pooling, makes float32 modules on the CPU whatever the dtype and device, shares memory, and gives a
group pooling that is a class of escnn's.
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

from ..integral.stationary import ConvolutionGeometry, TransposedGeometry, as_convolution
from .plain_modules import ByChannels, FieldMaximum, FieldNorm, Gate, Mask, NormNonLinearity, Squash

__all__ = ["plain_module"]

# The plain module of a part, and its name in error messages.
Export = Callable[[nn.Module, str], nn.Module]


@functools.singledispatch
def plain_module(module: Any, export: Export, name: str) -> nn.Module:
    """The same numbers as ``module`` in eval mode, on plain tensors, in memory of its own.

    Args:
        module: of escnn, in eval mode.
        export: what exports the parts of it that are modules.
        name: its name in the network.

    Raises:
        TypeError: where escnn cannot export it.
    """
    try:
        with _defaults_of(module):
            exported: nn.Module = copy.deepcopy(module.export())
    except NotImplementedError as error:
        reason = " ".join(str(error).split())
        raise TypeError(f"{name}: {type(module).__name__} has no export(){': ' if reason else ''}{reason}") from None
    return exported


@plain_module.register
def _(module: enn.R2Conv, export: Export, name: str) -> nn.Module:
    filter_bank, bias = module.expand_parameters()
    return as_convolution(filter_bank, bias, ConvolutionGeometry.of(module))


@plain_module.register
def _(module: enn.R2ConvTransposed, export: Export, name: str) -> nn.Module:
    filter_bank, bias = module.expand_parameters()
    return as_convolution(filter_bank, bias, TransposedGeometry.of(module))


@plain_module.register
def _(module: enn.InnerBatchNorm, export: Export, name: str) -> nn.Module:
    if not module.track_running_stats:
        raise TypeError(f"{name}: InnerBatchNorm without running statistics is no BatchNorm2d")
    norms = {size: getattr(module, f"batch_norm_[{size}]") for size in set(_sizes(module))}
    values = next(iter(norms.values())).running_mean
    plain = nn.BatchNorm2d(
        module.in_type.size, module.eps, module.momentum, module.affine, device=values.device, dtype=values.dtype
    )
    names = ["running_mean", "running_var", *(["weight", "bias"] if module.affine else [])]
    sizes = torch.tensor(_sizes(module))
    size_of_channel = sizes.repeat_interleave(sizes)
    for size, norm in norms.items():
        channels = (size_of_channel == size).nonzero().flatten()
        for key in names:
            getattr(plain, key)[channels] = getattr(norm, key).repeat_interleave(size)
        if norm.num_batches_tracked is not None and plain.num_batches_tracked is not None:
            plain.num_batches_tracked.copy_(norm.num_batches_tracked)
    return plain


@plain_module.register
def _(module: enn.GroupPooling, export: Export, name: str) -> nn.Module:
    return FieldMaximum(_sizes(module))


@plain_module.register
def _(module: enn.NormPool, export: Export, name: str) -> nn.Module:
    return FieldNorm(_sizes(module))


@plain_module.register(enn.FieldDropout)
@plain_module.register(enn.PointwiseDropout)
def _(module: nn.Module, export: Export, name: str) -> nn.Module:
    return nn.Identity()


@plain_module.register
def _(module: enn.PointwiseMaxPool2D, export: Export, name: str) -> nn.Module:
    return nn.MaxPool2d(module.kernel_size, module.stride, module.padding, module.dilation, ceil_mode=module.ceil_mode)


@plain_module.register
def _(module: enn.PointwiseAvgPool2D, export: Export, name: str) -> nn.Module:
    return nn.AvgPool2d(module.kernel_size, module.stride, module.padding, module.ceil_mode)


@plain_module.register
def _(module: enn.PointwiseAvgPoolAntialiased2D, export: Export, name: str) -> nn.Module:
    return _blur(module.filter, module.stride, module.padding)


@plain_module.register
def _(module: enn.PointwiseMaxPoolAntialiased2D, export: Export, name: str) -> nn.Module:
    maximum = nn.MaxPool2d(module.kernel_size, 1, module.padding, module.dilation, ceil_mode=module.ceil_mode)
    return nn.Sequential(maximum, _blur(module.filter, module.stride, module._pad))


@plain_module.register(enn.DisentangleModule)
@plain_module.register(enn.ReshuffleModule)
def _(module: Any, export: Export, name: str) -> nn.Module:
    # The matrix of a map that acts on the channels of each pixel, by sending every unit vector through.
    values = next(chain(module.parameters(), module.buffers()))
    dtype = values.dtype if values.is_floating_point() else torch.get_default_dtype()
    units = torch.eye(module.in_type.size, dtype=dtype, device=values.device)[..., None, None]
    matrix = module(module.in_type(units)).tensor.transpose(0, 1).contiguous()
    return as_convolution(matrix, None, ConvolutionGeometry(1)).requires_grad_(False)


@plain_module.register
def _(module: enn.MaskModule, export: Export, name: str) -> nn.Module:
    return Mask(module.mask.detach().clone())


@plain_module.register
def _(module: enn.NormNonLinearity, export: Export, name: str) -> nn.Module:
    functions: dict[object, type[nn.Module]] = {
        torch.relu: nn.ReLU,
        torch.sigmoid: nn.Sigmoid,
        nn.functional.softplus: nn.Softplus,
    }
    bias = None
    if module.log_bias is not None:
        # escnn keeps them in the order of the sizes.
        sizes = _sizes(module)
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        bias = torch.empty_like(module.log_bias).flatten()
        bias[order] = module.log_bias.flatten()
    plain = NormNonLinearity(_sizes(module), functions.get(module._function, Squash)(), bias, float(module.eps))
    return plain.to(module.eps.device)


@plain_module.register
def _(module: enn.GatedNonLinearity1, export: Export, name: str) -> nn.Module:
    if not module.drop_gates:
        raise TypeError(f"{name}: GatedNonLinearity1 with drop_gates=False cannot be exported")
    gate_channels = _channels(module.gates_indices, module._contiguous["gate"])
    gated = []
    number = 0
    for size in module._order:
        inputs = _channels(getattr(module, f"input_indices_{size}"), module._contiguous[size])
        outputs = _channels(getattr(module, f"output_indices_{size}"), module._contiguous[size])
        for position, (channel, output) in enumerate(zip(inputs, outputs, strict=True)):
            gated.append((output, channel, number + position // size))
        number += module._nfields[size]
    gated.sort()
    numbers = [gate for _, _, gate in gated]
    bias = module.bias.detach().flatten()[numbers]
    plain = Gate([channel for _, channel, _ in gated], [gate_channels[gate] for gate in numbers], bias)
    return plain.to(module.bias.device)


@plain_module.register
def _(module: enn.MultipleModule, export: Export, name: str) -> nn.Module:
    # Which channels a branch gets, by sending their numbers through.
    device = next(chain(module.parameters(), module.buffers())).device
    numbers = torch.arange(module.in_type.size, dtype=torch.float64, device=device).view(1, -1, 1, 1)
    channels = {
        label: part.tensor.flatten().long() for label, part in module.branching(module.in_type(numbers)).items()
    }
    branches = []
    for number, labels in enumerate(module.merging._labels):
        if len(labels) > 1:
            raise TypeError(f"{name}: a branch of several inputs, {labels}, cannot be exported")
        part = getattr(module.merging, f"submodule_{number}")
        branches.append((channels[labels[0]], export(part, f"{name}.{number}")))
    return ByChannels(branches)


@contextlib.contextmanager
def _defaults_of(module: nn.Module) -> Iterator[None]:
    """Within it new modules get this module's dtype and device, and the random numbers that they draw are put back."""
    values = [value for value in chain(module.parameters(), module.buffers()) if value.is_floating_point()]
    device = values[0].device if values else torch.device("cpu")
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.set_default_dtype(values[0].dtype if values else before)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def _sizes(module: Any) -> list[int]:
    return [field.size for field in module.in_type.representations]


def _channels(indices: Tensor, are_contiguous: bool) -> list[int]:
    """Channel numbers from what escnn keeps of them: the first and the end where they are contiguous, else all."""
    numbers: list[int] = indices.tolist()
    return list(range(*numbers)) if are_contiguous else numbers


def _blur(taps: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> nn.Conv2d:
    blur: nn.Conv2d = nn.utils.skip_init(
        nn.Conv2d,
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
