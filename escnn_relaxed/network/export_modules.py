"""Plain forms of escnn's modules: by their own ``export()`` where that is right, else here.

escnn's ``export()`` drops the padding mode of ``R2Conv``, the output padding of transposed layers and the
``ceil_mode`` of pooling, makes float32 modules on the CPU whatever the dtype and device, and shares memory. A group
pooling becomes a class of escnn's, a batch norm whose fields of a size are not side by side is refused, and most
modules have no ``export()`` (docs/how-to/save-and-load.md lists them).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from escnn import nn as enn
from torch import Tensor, nn

from ..integral.constant_field import SumWithField
from ..integral.geometry import ConvolutionGeometry, TransposedGeometry, as_convolution
from ..layer.plain_cloud import plain_strict_convolution
from ..layer.referenced_layer import ReferencedLayer
from ..on_escnn.point_sampler import POINT_CONVOLUTIONS
from . import plain_modules as plain

# torch's modules by the names of escnn's functions.
_FUNCTIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
}

# By the number of axes of the images.
_BATCH_NORMS: dict[int, type[nn.Module]] = {0: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}

# A function from a part of a network to its plain form.
Export = Callable[[nn.Module], nn.Module]


class NoPlainFormError(Exception):
    """Raised for a module that only its own forward can compute."""


@functools.singledispatch
def plain_module(module: Any, export: Export) -> nn.Module:
    """Return a module on plain tensors with the same numbers as escnn's in eval mode; shares no memory."""
    values = [value for value in chain(module.parameters(), module.buffers()) if value.is_floating_point()]
    device = values[0].device if values else torch.device("cpu")
    before = torch.get_default_dtype()
    # escnn makes modules of torch's default dtype and device, and draws weights for them.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.set_default_dtype(values[0].dtype if values else before)
        try:
            exported: nn.Module = copy.deepcopy(module.export())
        except NotImplementedError:
            raise NoPlainFormError from None
        finally:
            torch.set_default_dtype(before)
    return exported


@plain_module.register
def _(module: enn.MultipleModule, export: Export) -> nn.Module:
    # Channel numbers are sent through to find which channels a branch gets.
    device = next(chain(module.parameters(), module.buffers())).device
    numbers = torch.arange(module.in_type.size, dtype=torch.float64, device=device).view(1, -1, *(1,) * _axes(module))
    parts = module.branching(module.in_type(numbers)).items()
    channels = {label: part.tensor.flatten().long() for label, part in parts}
    branches = []
    for number, labels in enumerate(module.merging._labels):
        if len(labels) > 1:
            raise NoPlainFormError
        branches.append((channels[labels[0]], export(getattr(module.merging, f"submodule_{number}"))))
    return plain.ByChannels(branches)


@plain_module.register
def _(module: ReferencedLayer, export: Export) -> nn.Module:
    return SumWithField(export(module.layer), module.reference.constant_field(), export(module.reference_layer))


def _convolution(module: Any) -> nn.Module:
    filter_bank, bias = module.expand_parameters()
    if isinstance(module, enn.Linear):
        return as_convolution(filter_bank, bias, ConvolutionGeometry(1, ()))
    is_transposed = isinstance(module, (enn.R2ConvTransposed, enn.R3ConvTransposed))
    return as_convolution(filter_bank, bias, (TransposedGeometry if is_transposed else ConvolutionGeometry).of(module))


def _max_pool(module: Any, stride: Any = None) -> nn.Module:
    windows = module.kernel_size, stride or module.stride, module.padding, module.dilation
    return (nn.MaxPool2d if _axes(module) == 2 else nn.MaxPool3d)(*windows, ceil_mode=module.ceil_mode)


def _avg_pool(module: Any) -> nn.Module:
    kind = nn.AvgPool2d if _axes(module) == 2 else nn.AvgPool3d
    return kind(module.kernel_size, module.stride, module.padding, module.ceil_mode)


def _blurred_max_pool(module: Any) -> nn.Module:
    return nn.Sequential(_max_pool(module, stride=1), _blur(module, module._pad))


def _blur(module: Any, padding: Any = None) -> nn.Module:
    """Return the convolution of each channel with its taps, (C, 1, k, …)."""
    taps, padding = module.filter, tuple(padding or module.padding)
    geometry = ConvolutionGeometry(taps.shape[-1], padding, stride=module.stride, groups=len(taps))
    return as_convolution(taps, None, geometry).requires_grad_(False)


def _batch_norm(module: Any) -> nn.Module:
    """Return the batch norm of channels that share the values of their field."""
    if not module.track_running_stats:
        raise NoPlainFormError
    norms = {size: getattr(module, f"batch_norm_[{size}]") for size in set(_sizes(module))}
    values = next(iter(norms.values())).running_mean
    exported: Any = _BATCH_NORMS[_axes(module)](
        module.in_type.size, module.eps, module.momentum, module.affine, device=values.device, dtype=values.dtype
    )
    names = ["running_mean", "running_var", *(["weight", "bias"] if module.affine else [])]
    sizes = torch.tensor(_sizes(module))
    size_of_channel = sizes.repeat_interleave(sizes)
    for size, norm in norms.items():
        channels = (size_of_channel == size).nonzero().flatten()
        for key in names:
            getattr(exported, key)[channels] = getattr(norm, key).repeat_interleave(size)
        exported.num_batches_tracked.copy_(norm.num_batches_tracked)
    return exported


def _affine_map(module: Any) -> nn.Module:
    """Return the 1×1 convolution of a module that is affine in the channels of a pixel in eval mode."""
    # 0 gives the bias, each unit vector a column.
    if not getattr(module, "track_running_stats", True):
        raise NoPlainFormError
    tensors = [*module.parameters(), *module.buffers()]
    dtype = next((each.dtype for each in tensors if each.is_floating_point()), torch.get_default_dtype())
    exact = copy.deepcopy(module).double()
    channels, pixel = module.in_type.size, (1,) * _axes(module)
    units = torch.eye(channels, dtype=torch.float64, device=tensors[0].device).view(channels, channels, *pixel)
    offset = exact(module.in_type(torch.zeros_like(units[:1]))).tensor
    matrix = (exact(module.in_type(units)).tensor - offset).flatten(1).T
    # A grouped convolution with the smallest groups that hold the matrix.
    for size in (1, *sorted(set(_sizes(module))), channels):
        blocks = [matrix[start : start + size, start : start + size] for start in range(0, channels, size)]
        if channels % size == 0 and torch.equal(torch.block_diag(*blocks), matrix):
            break
    is_linear = isinstance(module, enn.DisentangleModule)
    bias = None if is_linear else offset.flatten().to(dtype)
    matrix = torch.cat(blocks).to(dtype)
    return _on_channels(module, matrix, bias, channels // size).requires_grad_(not is_linear)


def _on_channels(module: Any, matrix: Tensor, bias: Tensor | None, groups: int) -> nn.Module:
    """Return the convolution that maps the channels of each pixel by a matrix (C_out, C_in/groups)."""
    axes = _axes(module)
    filters = matrix.view(*matrix.shape, *(1,) * axes)
    return as_convolution(filters, bias, ConvolutionGeometry(1, (0,) * axes, groups=groups))


def _function(module: Any) -> nn.Module:
    """Return torch's module for the function of a non-linearity."""
    name = module._function.__name__.rstrip("_")
    if name not in _FUNCTIONS:
        raise NoPlainFormError
    return _FUNCTIONS[name]()


def _fourier(module: Any) -> nn.Module:
    """Return a function of values on a group, between two maps of the coefficients of each field."""
    fields = module.in_type.size // module.A.shape[1]
    before, after = (_on_channels(module, each.repeat(fields, 1), None, fields) for each in (module.A, module.Ainv))
    return nn.Sequential(before.requires_grad_(False), _function(module), after.requires_grad_(False))


def _norm_function(module: Any) -> nn.Module:
    sizes, bias = _sizes(module), None
    if module.log_bias is not None:
        # One for each field; escnn keeps them sorted by size.
        bias = torch.empty_like(module.log_bias).flatten()
        bias[sorted(range(len(sizes)), key=sizes.__getitem__)] = module.log_bias.flatten()
    exported = plain.NormNonLinearity(sizes, _function(module), bias, float(module.eps))
    return exported.to(module.eps.device)


def _gate(module: Any) -> nn.Module:
    """Return a plain gate, output = channel · σ(gate − bias), identified from slopes at inputs 1 and biases 0."""
    drops_gates = getattr(module, "drop_gates", True)
    if not drops_gates or getattr(module, "gate_function", torch.sigmoid) is not torch.sigmoid:
        raise NoPlainFormError
    probe = copy.deepcopy(module).float().requires_grad_()
    torch.nn.init.zeros_(probe.bias)
    ones = torch.ones(1, module.in_type.size, *(1,) * _axes(module), device=probe.bias.device, requires_grad=True)
    channels, gates, numbers = [], [], []
    with torch.enable_grad():
        for output in probe(module.in_type(ones)).tensor.flatten():
            by_channel, by_bias = torch.autograd.grad(output, (ones, probe.bias), retain_graph=True)
            # The slope by the channel is σ(1) = 0.73, by its gate σ′(1) = 0.20, by all others 0.
            channel, gate, *_ = by_channel.flatten().argsort(descending=True).tolist()
            channels.append(channel)
            gates.append(gate)
            numbers.append(int(by_bias.flatten().abs().argmax()))
    return plain.Gate(channels, gates, module.bias.detach().flatten()[numbers]).to(module.bias.device)


def _sizes(module: Any) -> list[int]:
    """Return the number of channels of each input field."""
    return [field.size for field in module.in_type.representations]


def _axes(module: Any) -> int:
    """Return the number of axes of the images of a module."""
    return int(module.in_type.gspace.dimensionality)


# The classes of escnn that do not export themselves, or not all of themselves, by what makes their plain form.
_FORMS: dict[Callable[[Any], nn.Module], tuple[type[nn.Module], ...]] = {
    _convolution: (enn.R2Conv, enn.R3Conv, enn.R2ConvTransposed, enn.R3ConvTransposed, enn.Linear),
    plain_strict_convolution: (*POINT_CONVOLUTIONS.values(),),
    _batch_norm: (enn.InnerBatchNorm,),
    _affine_map: (
        *(enn.GNormBatchNorm, enn.IIDBatchNorm1d, enn.IIDBatchNorm2d, enn.IIDBatchNorm3d, enn.NormBatchNorm),
        enn.DisentangleModule,
    ),
    _max_pool: (enn.PointwiseMaxPool2D, enn.PointwiseMaxPool3D),
    _blurred_max_pool: (enn.PointwiseMaxPoolAntialiased2D, enn.PointwiseMaxPoolAntialiased3D),
    _avg_pool: (enn.PointwiseAvgPool2D, enn.PointwiseAvgPool3D),
    _blur: (enn.PointwiseAvgPoolAntialiased2D, enn.PointwiseAvgPoolAntialiased3D),
    _function: (enn.PointwiseNonLinearity,),
    _fourier: (enn.FourierPointwise, enn.QuotientFourierPointwise),
    _norm_function: (enn.NormNonLinearity,),
    _gate: (enn.GatedNonLinearity1, enn.GatedNonLinearityUniform),
    lambda module: nn.Identity(): (enn.FieldDropout,),
    # A permutation has no dtype, as a convolution would have.
    lambda module: plain.ByChannels([(module.indices.clone(), nn.Identity())]): (enn.ReshuffleModule,),
    lambda module: plain.Mask(module.mask.detach().clone()): (enn.MaskModule,),
    lambda module: plain.FieldMaximum(_sizes(module)): (enn.GroupPooling,),
    lambda module: plain.FieldNorm(_sizes(module)): (enn.NormPool,),
}


for _form, _kinds in _FORMS.items():
    for _kind in _kinds:
        plain_module.register(_kind)(lambda module, export, form=_form: form(module))
