"""Non-linearities of escnn as plain modules, by their channels, biases and functions."""

from __future__ import annotations

from collections.abc import Callable
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
    gate_channels = _channels(module.gates_indices, module._contiguous["gate"])
    return _gate(
        module,
        lambda size: _channels(getattr(module, f"input_indices_{size}"), module._contiguous[size]),
        lambda size: _channels(getattr(module, f"output_indices_{size}"), module._contiguous[size]),
        gate_channels,
    )


@plain_module.register
def _(module: enn.GatedNonLinearity2, export: Export) -> nn.Module:
    def gated_channels(size: int) -> list[int]:
        return _channels(getattr(module, f"indices_{size}"), module._contiguous[size])

    count = module.in_type[0].size
    return Joined(
        _gate(
            module,
            lambda size: [count + channel for channel in gated_channels(size)],
            gated_channels,
            list(range(count)),
        )
    )


@plain_module.register
def _(module: enn.GatedNonLinearityUniform, export: Export) -> nn.Module:
    if module.gate_function is not torch.sigmoid:
        raise NoPlainFormError
    numbers: list[int] = module.expansion.argmax(dim=1).tolist()
    starts = range(0, module.in_type.size, module.rho_in.size)
    channels = [start + module.n_gates + position for start in starts for position in range(len(numbers))]
    gates = [start + number for start in starts for number in numbers]
    return Gate(channels, gates, module.bias.detach()[0][:, numbers].flatten()).to(module.bias.device)


def _gate(
    module: Any, inputs_of: Callable[[int], list[int]], outputs_of: Callable[[int], list[int]], gate_channels: list[int]
) -> Gate:
    """Fields in the order of their sizes, by which escnn hands out gates; each by one of them.

    Args:
        module: what has a bias for each gate.
        inputs_of: numbers of the channels of all fields of a size.
        outputs_of: where they come out.
        gate_channels: numbers of the channels that are gates.
    """
    gated = []
    number = 0
    for size in module._order:
        for position, (channel, output) in enumerate(zip(inputs_of(size), outputs_of(size), strict=True)):
            gated.append((output, channel, number + position // size))
        number += module._nfields[size]
    gated.sort()
    numbers = [gate for _, _, gate in gated]
    bias = module.bias.detach().flatten()[numbers]
    plain = Gate([channel for _, channel, _ in gated], [gate_channels[gate] for gate in numbers], bias)
    return plain.to(module.bias.device)


def _channels(indices: Tensor, are_contiguous: bool) -> list[int]:
    """Channel numbers from what escnn keeps of them: the first and the end where they are contiguous, else all."""
    numbers: list[int] = indices.tolist()
    return list(range(*numbers)) if are_contiguous else numbers


def _function(module: Any) -> nn.Module:
    """The module of a function of torch's, in place or not."""
    name = module._function.__name__.rstrip("_")
    if name not in _FUNCTIONS:
        raise NoPlainFormError
    return _FUNCTIONS[name]()


def _of_norms(module: Any, sizes: list[int], bias: Tensor | None) -> nn.Module:
    plain = NormNonLinearity(sizes, _function(module), bias, float(module.eps))
    return plain.to(module.eps.device)


def _in_order(values: Tensor | None, keys: list[Any]) -> Tensor | None:
    """One value for each field, of which escnn keeps them in the order of some keys, in memory of their own."""
    if values is None:
        return None
    order = sorted(range(len(keys)), key=keys.__getitem__)
    ordered = torch.empty_like(values).flatten()
    ordered[order] = values.flatten()
    return ordered


def _parts_of_fields(module: Any) -> list[int]:
    """Of each induced field, the size of the fields that it consists of."""
    return [
        next(int(word.split("_")[-1]) for word in field.supported_nonlinearities if word.startswith("induced_norm"))
        for field in module.in_type.representations
    ]


def _repeated(values: list[int], counts: list[int]) -> list[int]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
