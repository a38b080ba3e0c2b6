"""Plain forms of escnn's non-linearities."""

from __future__ import annotations

import copy
from typing import Any

import torch
from escnn import nn as enn
from torch import Tensor, nn

from .export_modules import Export, NoPlainFormError, field_sizes, plain_module
from .plain_modules import FieldMaximum, FieldNorm, Gate, NormNonLinearity, Squash
from .plain_nonlinearities import Concatenated, Fourier, Joined, VectorField

_FUNCTIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "<lambda>": Squash,
}


@plain_module.register
def _(module: enn.PointwiseNonLinearity, export: Export) -> nn.Module:
    return _function(module)


@plain_module.register
def _(module: enn.ConcatenatedNonLinearity, export: Export) -> nn.Module:
    return Concatenated(_function(module))


@plain_module.register
def _(module: enn.VectorFieldNonLinearity, export: Export) -> nn.Module:
    return VectorField(module._rotations)


@plain_module.register(enn.FourierPointwise)
@plain_module.register(enn.QuotientFourierPointwise)
def _(module: Any, export: Export) -> nn.Module:
    return Fourier(module.A.clone(), module.Ainv.clone(), _function(module))


@plain_module.register
def _(module: enn.NormNonLinearity, export: Export) -> nn.Module:
    sizes = field_sizes(module)
    return _of_norms(module, sizes, _in_order(module.log_bias, sizes))


@plain_module.register
def _(module: enn.InducedNormNonLinearity, export: Export) -> nn.Module:
    sizes, parts = field_sizes(module), _parts_of_fields(module)
    counts = [size // part for size, part in zip(sizes, parts, strict=True)]
    bias = _in_order(module.log_bias, list(zip(sizes, parts, strict=True)))
    if bias is not None:
        bias = bias.repeat_interleave(torch.tensor(counts, device=bias.device))
    return _of_norms(module, _repeated(parts, counts), bias)


@plain_module.register
def _(module: enn.InducedNormPool, export: Export) -> nn.Module:
    parts = _parts_of_fields(module)
    counts = [size // part for size, part in zip(field_sizes(module), parts, strict=True)]
    return nn.Sequential(FieldNorm(_repeated(parts, counts)), FieldMaximum(counts))


@plain_module.register
def _(module: enn.GatedNonLinearity1, export: Export) -> nn.Module:
    if not module.drop_gates:
        raise NoPlainFormError
    return _gate(module)


@plain_module.register
def _(module: enn.GatedNonLinearity2, export: Export) -> nn.Module:
    return Joined(_gate(module))


@plain_module.register
def _(module: enn.GatedNonLinearityUniform, export: Export) -> nn.Module:
    if module.gate_function is not torch.sigmoid:
        raise NoPlainFormError
    return _gate(module)


def _gate(module: Any) -> Gate:
    """Return a plain gate, found from slopes: output = channel · σ(gate − bias), at inputs 1 and biases 0."""
    probe = copy.deepcopy(module).float().requires_grad_()
    torch.nn.init.zeros_(probe.bias)
    types = module.in_type if isinstance(module.in_type, tuple) else (module.in_type,)
    sizes = [fields.size for fields in types]
    pixel = (1,) * types[0].gspace.dimensionality
    ones = torch.ones(1, sum(sizes), *pixel, device=probe.bias.device, requires_grad=True)
    channels, gates, numbers = [], [], []
    with torch.enable_grad():
        outputs = probe(*(fields(part) for fields, part in zip(types, ones.split(sizes, dim=1), strict=True)))
        for output in outputs.tensor.flatten():
            by_channel, by_bias = torch.autograd.grad(output, (ones, probe.bias), retain_graph=True)
            # The slope by the channel is σ(1) = 0.73, by its gate σ′(1) = 0.20, by all others 0.
            order = by_channel.flatten().argsort(descending=True).tolist()
            channels.append(order[0])
            gates.append(order[1])
            numbers.append(int(by_bias.flatten().abs().argmax()))
    return Gate(channels, gates, module.bias.detach().flatten()[numbers]).to(module.bias.device)


def _function(module: Any) -> nn.Module:
    """Return torch's module for the function of a non-linearity."""
    name = module._function.__name__.rstrip("_")
    if name not in _FUNCTIONS:
        raise NoPlainFormError
    return _FUNCTIONS[name]()


def _of_norms(module: Any, sizes: list[int], bias: Tensor | None) -> nn.Module:
    plain = NormNonLinearity(sizes, _function(module), bias, float(module.eps))
    return plain.to(module.eps.device)


def _in_order(values: Tensor | None, keys: list[Any]) -> Tensor | None:
    """Return one value for each field, in the order of the fields; escnn keeps them sorted by ``keys``."""
    if values is None:
        return None
    order = sorted(range(len(keys)), key=keys.__getitem__)
    ordered = torch.empty_like(values).flatten()
    ordered[order] = values.flatten()
    return ordered


def _parts_of_fields(module: Any) -> list[int]:
    """Return the size of the parts of each induced field."""
    return [
        next(int(word.split("_")[-1]) for word in field.supported_nonlinearities if word.startswith("induced_norm"))
        for field in module.in_type.representations
    ]


def _repeated(values: list[int], counts: list[int]) -> list[int]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
