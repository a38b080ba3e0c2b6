"""Per-input gradients of the soft weights of one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from escnn.nn import GeometricTensor
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ..checks import has_hooks
from ..integral.factors import as_weight, integrate
from ..integral.geometry import image_size
from ..kernel.config import ModulatedKernel
from ..kernel.tied import modulated
from .reference_field import ReferenceField
from .referenced_layer import ReferencedLayer
from .relaxed_layer import RelaxedLayer

# Values of the filter banks of all inputs that are mapped over at a time, 128 MB in single precision.
_MOST_VALUES = 2**25
# A layer whose parameters have per-input gradients: relaxed, or one that adds a reference field.
AnyLayer: TypeAlias = RelaxedLayer | ReferenceField | ReferencedLayer
Layer = TypeVar("Layer", bound=AnyLayer, covariant=True)


@dataclass(frozen=True)
class LayerCall(Generic[Layer]):
    """A call of a layer in a forward pass: its input and its output."""

    layer: Layer
    features: Tensor
    output: Tensor
    edges: tuple[Any, ...] = ()  # coordinates, edge_index and edge_delta of a cloud


RelaxedCall: TypeAlias = LayerCall[RelaxedLayer]


def input_gradients(
    call: LayerCall[AnyLayer], slope: Tensor, own: dict[str, nn.Parameter], count: int
) -> dict[str, Tensor]:
    """Return the per-input gradients, (count, …), of the parameters of a layer that it uses."""
    if isinstance(call.layer, RelaxedLayer):
        return _of_relaxed(LayerCall(call.layer, call.features, call.output), slope, own, count)
    return _of_reference(call.layer, call.features, slope, own, count)


def _of_relaxed(call: RelaxedCall, slope: Tensor, own: dict[str, nn.Parameter], count: int) -> dict[str, Tensor]:
    """Return the gradients of a relaxed layer by the fastest way that it allows."""
    if any(map(has_hooks, call.layer.modules())):
        # Tensors of a map must not get into the hands of users.
        return _one_by_one(call, slope, own, count)
    if _has_large_banks(call, count) and (kernel := _modulated(call, own)) is not None:
        return _of_modulated(call, kernel, slope, own, count)
    try:
        return _mapped(call, slope, own, count)
    except RuntimeError:
        # A layer that cannot be mapped over.
        return _one_by_one(call, slope, own, count)


def _of_reference(
    layer: ReferenceField | ReferencedLayer,
    features: Tensor,
    slope: Tensor,
    own: dict[str, nn.Parameter],
    count: int,
) -> dict[str, Tensor]:
    """Return the gradients of a reference field, which adds the same to all inputs."""
    if not own:
        return {}
    added = layer.added(features[:1])
    # A field beside the features is the last of the channels.
    slopes = slope[:, -added.shape[1] :].unflatten(0, (count, -1)).sum(1)
    rows = torch.autograd.grad(added, list(own.values()), slopes.unsqueeze(1), is_grads_batched=True)
    return dict(zip(own, rows, strict=True))


def _has_large_banks(call: RelaxedCall, count: int) -> bool:
    """Return whether per-input filter banks take more memory than the features; if not, ``vmap`` is faster."""
    return count * call.layer.kernel.values_at_a_pixel > call.features.numel() + call.output.numel()


def _modulated(call: RelaxedCall, own: dict[str, nn.Parameter]) -> ModulatedKernel | None:
    """Return the kernel as factors if the parameters enter through these alone, else None."""
    layer, soft = call.layer, set(map(id, call.layer.soft_parameters()))
    is_other = type(layer).forward is not RelaxedLayer.forward or layer.expands_itself or layer.gates
    if is_other or not soft >= set(map(id, own.values())):
        return None
    size = layer.geometry.output_size(*image_size(call.features))
    return modulated(layer.kernel, layer.weights, size, layer.hardened)


def _of_modulated(
    call: RelaxedCall, kernel: ModulatedKernel, slope: Tensor, own: dict[str, nn.Parameter], count: int
) -> dict[str, Tensor]:
    """Return the per-input gradients of the parameters of factors, without a filter bank for each input."""
    # The output is the sum over r of F_r(c; x) times a convolution with S ⊙ u_r ⊙ (1 + f). As a function of the taps f
    # is a sum of a few functions B, so convolutions with S ⊙ u_r ⊙ B give its gradient, and those with the whole banks
    # give that of F. From these few numbers the gradients of the parameters follow for all inputs at once.
    geometry, strict, f = call.layer.geometry, kernel.strict.detach(), kernel.f
    # A transposed layer has the same kernel in each of several blocks of channels.
    slopes = slope.unflatten(1, (-1, len(strict)))

    def products(bank: Tensor, slopes: Tensor) -> Tensor:
        """Return the sum of the output of a bank times slopes over blocks and the images of an input, (count, C, …)."""
        output = integrate(call.features, as_weight(bank, geometry), None, None, geometry)
        return (output.unflatten(1, slopes.shape[1:3]) * slopes).sum(1).unflatten(0, (count, -1)).sum(1)

    factor_tensors, slopes_of_factors = [], []
    if kernel.factors is not None and kernel.factors.requires_grad:
        whole = strict if f is None else strict * (1 + f.detach().unsqueeze(1))
        factor_tensors.append(kernel.factors)
        slopes_of_factors.append(torch.stack([products(whole * u, slopes) for u in kernel.directions], 1))
    if f is not None and f.requires_grad:
        terms = [(strict, slopes)]
        if kernel.factors is not None:
            factors = kernel.factors.detach()
            terms = [(strict * u, slopes * factor) for u, factor in zip(kernel.directions, factors, strict=True)]
        factor_tensors.append(f)
        of_taps = strict.new_zeros(count, *f.shape)
        for function in kernel.tap_functions.to(strict):
            for bank, weighted in terms:
                sums = products(bank * function, weighted).reshape(count, len(strict), -1).sum(-1, True)
                of_taps += sums * function
        slopes_of_factors.append(of_taps)
    if not factor_tensors:
        return {}
    rows = torch.autograd.grad(
        factor_tensors, list(own.values()), slopes_of_factors, is_grads_batched=True, allow_unused=True
    )
    return {name: row for name, row in zip(own, rows, strict=True) if row is not None}


def _product(call: RelaxedCall, values: Mapping[str, Tensor], features: Tensor, slope: Tensor) -> Tensor:
    """Return ⟨output, slope⟩ of a layer with other values of its parameters."""
    output = functional_call(call.layer, dict(values), (GeometricTensor(features, call.layer.in_type),))
    return (output.tensor * slope).sum()


def _mapped(call: RelaxedCall, slope: Tensor, own: dict[str, nn.Parameter], count: int) -> dict[str, Tensor]:
    """Return the per-input gradients by ``vmap``, with a filter bank for each input."""
    values = {name: parameter.detach() for name, parameter in own.items()}
    chunk = max(1, _MOST_VALUES // call.layer.kernel.values_at_a_pixel)
    of_inputs = vmap(grad(partial(_product, call)), in_dims=(None, 0, 0), chunk_size=chunk)
    return of_inputs(values, *_by_input(call, slope, count))


def _one_by_one(call: RelaxedCall, slope: Tensor, own: dict[str, nn.Parameter], count: int) -> dict[str, Tensor]:
    """Return the per-input gradients by one call of the layer for each input."""
    rows = [
        torch.autograd.grad(_product(call, own, *one), list(own.values()))
        for one in zip(*_by_input(call, slope, count), strict=True)
    ]
    return dict(zip(own, (torch.stack(row) for row in zip(*rows, strict=True)), strict=True))


def _by_input(call: RelaxedCall, slope: Tensor, count: int) -> list[Tensor]:
    """Return features and slopes with an axis for the inputs."""
    return [images.unflatten(0, (count, -1)) for images in (call.features, slope)]
