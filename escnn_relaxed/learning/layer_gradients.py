"""Gradients of the soft weights of one layer, for each input of a batch alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from escnn.nn import GeometricTensor
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ..checks import has_hooks
from ..integral.factors import as_weight, integrate
from ..integral.geometry import image_size
from ..kernel.modulation import ElementModulation
from ..kernel.tied import TiedKernel
from ..layer.relaxed_layer import RelaxedLayer

# Directions of a space of functions below this part of the largest are rounding.
_ROUNDING = 1e-9
# Values of the filter banks of all inputs that are mapped over at a time, 128 MB in single precision.
_MOST_VALUES = 2**25


class LayerCall(NamedTuple):
    """A call of a layer in a forward pass: what went in and what came out."""

    layer: RelaxedLayer
    features: Tensor
    output: Tensor


def layer_gradients(call: LayerCall, slope: Tensor, own: dict[str, nn.Parameter], count: int) -> dict[str, Tensor]:
    """Return the gradient for each input, (count, …), of each of a layer's own parameters that it does not ignore."""
    if any(map(has_hooks, call.layer.modules())):
        # Tensors of a map must not get into the hands of users.
        return _one_by_one(call, slope, own, count)
    if _has_large_banks(call, count) and _is_modulated(call.layer, own):
        return _of_modulations(call, slope, own, count)
    try:
        return _mapped(call, slope, own, count)
    except RuntimeError:
        # A layer that cannot be mapped over.
        return _one_by_one(call, slope, own, count)


def _has_large_banks(call: LayerCall, count: int) -> bool:
    """Whether filter banks of all inputs take more memory than the features; where they do not, a map is quicker."""
    return count * call.layer.kernel.values_at_a_pixel() > call.features.numel() + call.output.numel()


def _is_modulated(layer: RelaxedLayer, own: dict[str, nn.Parameter]) -> bool:
    """Whether the parameters change a layer through factors of output channels, taps and pixels alone."""
    kernel = layer.kernel
    if type(layer).forward is not RelaxedLayer.forward or layer.expands_itself or type(kernel) is not TiedKernel:
        return False
    # Factors of pairs of channels are about as many as a filter bank has values, so a map over inputs does as well.
    is_of_pairs = kernel.input_modulation is not None
    known = {id(parameter) for parameter in kernel.soft_parameters()}
    return not is_of_pairs and all(id(parameter) in known for parameter in own.values())


def _of_modulations(call: LayerCall, slope: Tensor, own: dict[str, nn.Parameter], count: int) -> dict[str, Tensor]:
    """Return the gradients of the weights of f_G and f_T without a filter bank for each input."""
    # The output is the sum over r of F_r(c; x) times a convolution with S ⊙ u_r ⊙ (1 + f_G). S is the strict kernel, F
    # are the factors at pixels, and u_r is 1 or a direction at each tap. As a function of the taps f_G is a sum of a
    # few functions B, so convolutions with S ⊙ u_r ⊙ B give its gradient, and those with the whole banks give that of
    # F. From these few numbers the gradients of the weights follow for all inputs at once.
    layer, geometry = call.layer, call.layer.geometry
    kernel: Any = layer.kernel
    wanted = {id(parameter) for parameter in own.values()}
    frequencies = {id(parameter) for parameter in kernel.frequency.parameters()}
    strict = kernel.basis(layer.weights).detach()
    banks, factors = strict, None
    if kernel.varies(layer.hardened):
        size = geometry.output_size(*image_size(call.features))
        banks, factors = kernel.filters(layer.weights, size, layer.hardened)
    # A transposed layer has the same kernel in each of several blocks of channels.
    slopes = slope.unflatten(1, (-1, len(strict)))

    def products(bank: Tensor, slopes: Tensor) -> Tensor:
        """Return the output of a bank times slopes, summed over blocks and the images of an input, (count, C, …)."""
        output = integrate(call.features, as_weight(bank, geometry), None, None, geometry)
        return (output.unflatten(1, slopes.shape[1:3]) * slopes).sum(1).unflatten(0, (count, -1)).sum(1)

    made, found = [], []
    if factors is not None and wanted & {id(kernel.position_modulation.weights), *frequencies}:
        made.append(factors)
        found.append(torch.stack([products(bank, slopes) for bank in banks.detach()], 1))
    if kernel.modulation is not None and wanted & {id(kernel.modulation.weights), *frequencies}:
        parts = [(strict, slopes)]
        if factors is not None:
            directions = kernel.position_modulation.tap_directions[: len(factors)]
            parts = [(_times(strict, u), slopes * f) for u, f in zip(directions, factors.detach(), strict=True)]
        made.append(kernel.modulation(kernel.frequency, layer.hardened))
        of_taps = strict.new_zeros(count, *made[-1].shape)
        for function in _tap_functions(kernel.modulation).to(strict):
            for bank, weighted in parts:
                sums = products(_times(bank, function), weighted).reshape(count, len(strict), -1).sum(-1, True)
                of_taps += sums * function
        found.append(of_taps)
    if not made:
        return {}
    rows = torch.autograd.grad(made, list(own.values()), found, is_grads_batched=True, allow_unused=True)
    return {name: row for name, row in zip(own, rows, strict=True) if row is not None}


def _times(bank: Tensor, function: Tensor) -> Tensor:
    """Return a bank times a function of the taps, (T,), or (1,) where it is the same at all taps."""
    return bank * (function.view(bank.shape[2:]) if len(function) > 1 else function)


def _tap_functions(modulation: ElementModulation) -> Tensor:
    """Return an orthonormal basis of the functions of the taps that f may be a sum of, (n, T)."""
    # 1 for the weights of group elements, and those that sides are made of whatever ω′ is.
    along = modulation.exact("along")
    if not len(along):
        return torch.ones(1, 1)
    functions = torch.cat([torch.ones_like(along[0, :1]), along.flatten(0, 1)])
    _, sizes, basis = torch.linalg.svd(functions, full_matrices=False)
    return basis[sizes > _ROUNDING * sizes[0]]


def _product(call: LayerCall, values: Mapping[str, Tensor], features: Tensor, slope: Tensor) -> Tensor:
    """Return ⟨output, slope⟩ of a layer with other values of its parameters."""
    output = functional_call(call.layer, dict(values), (GeometricTensor(features, call.layer.in_type),))
    return (output.tensor * slope).sum()


def _mapped(call: LayerCall, slope: Tensor, own: dict[str, nn.Parameter], count: int) -> dict[str, Tensor]:
    """Return the gradients by a map over inputs, each of which has a filter bank while it is mapped over."""
    values = {name: parameter.detach() for name, parameter in own.items()}
    chunk = max(1, _MOST_VALUES // call.layer.kernel.values_at_a_pixel())
    of_inputs = vmap(grad(partial(_product, call)), in_dims=(None, 0, 0), chunk_size=chunk)
    return of_inputs(values, *_by_input(call, slope, count))


def _one_by_one(call: LayerCall, slope: Tensor, own: dict[str, nn.Parameter], count: int) -> dict[str, Tensor]:
    """Return the gradients by a call of the layer for each input."""
    rows = [
        torch.autograd.grad(_product(call, own, *one), list(own.values()))
        for one in zip(*_by_input(call, slope, count), strict=True)
    ]
    return dict(zip(own, (torch.stack(row) for row in zip(*rows, strict=True)), strict=True))


def _by_input(call: LayerCall, slope: Tensor, count: int) -> list[Tensor]:
    """Return features and slopes with an axis for the inputs."""
    return [images.unflatten(0, (count, -1)) for images in (call.features, slope)]
