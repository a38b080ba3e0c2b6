"""The soft weights of a network by layer and subgroup, and their gradients for each input of a batch alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from escnn.nn import GeometricTensor, SequentialModule
from torch import Tensor, distributed, nn
from torch.func import functional_call, grad, vmap

from ..checks import has_hooks
from ..kernel.kernel import WeightGroup
from ..layer.relaxed_layer import RelaxedLayer
from ..network.relaxed_layers import count_inputs, first_module, input_chunks, relaxed_layers, tensor_of

# Values of the filter banks of all inputs that are mapped over at a time, 64 MB in single precision.
_MOST_VALUES = 2**24


@dataclass(frozen=True)
class SoftGroup:
    """The soft weights of a layer that learn, of some subgroups."""

    layer: str  # the first that has them
    weights: WeightGroup
    layers: list[str]  # all that share them

    @cached_property
    def key(self) -> str:
        """A name among all groups."""
        return f"{self.layer}/{self.weights.name}"

    @cached_property
    def size(self) -> int:
        """Number n of weights."""
        return sum(len(places) for _, places in self.weights.entries)


def taken(groups: Sequence[SoftGroup], values: Mapping[int, Tensor]) -> Tensor:
    """Return the entries of groups, one after the other, along the last axis of values by their parameters' ids."""
    entries = [entry for group in groups for entry in group.weights.entries]
    return torch.cat([values[id(of)][..., places.to(of.device)] for of, places in entries], -1)


def soft_groups(network: nn.Module) -> list[SoftGroup]:
    """Return the groups of a network, each once; what is frozen or hardened is in none."""
    groups: list[SoftGroup] = []
    # The number of the group that each entry of a parameter is in.
    known: dict[int, Tensor] = {}
    for name, layer in relaxed_layers(network).items():
        for weights in layer.kernel.weight_groups():
            if weights.is_gone(layer.hardened):
                continue
            own = []
            for parameter, places in weights.entries:
                if not parameter.requires_grad:
                    continue
                here = places.to(parameter.device)
                numbers = known.setdefault(id(parameter), torch.full((parameter.numel(),), -1, device=here.device))
                for number in set(numbers[here].tolist()) - {-1}:
                    groups[number].layers.append(name)
                fresh = here[numbers[here] < 0]
                numbers[fresh] = len(groups)
                if len(fresh):
                    own.append((parameter, fresh))
            if own:
                groups.append(SoftGroup(name, weights._replace(entries=own), [name]))
    return groups


def output_of(network: nn.Module, arguments: tuple[Any, ...]) -> Tensor:
    """Return the output of a network as a tensor; a plain batch becomes the fields that a sequence or a layer takes."""
    first: Any = first_module(network)
    takes_fields = type(first).forward is SequentialModule.forward or isinstance(first, RelaxedLayer)
    batch, *others = arguments
    given = first.in_type(batch) if takes_fields and isinstance(batch, Tensor) else batch
    return tensor_of(network(given, *others), "network: its output")


def gradients(
    network: nn.Module,
    parameters: Sequence[nn.Parameter],
    arguments: tuple[Any, ...],
    direction: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """Return the gradients of ⟨output, direction(output)⟩ of each input, (batch, …) of each parameter."""
    # One pass through the network gives the gradients of the layers' outputs. Those of the parameters of each layer
    # then follow input by input from that layer alone.
    count = count_inputs(arguments)
    wanted = set(map(id, parameters))
    calls: list[_LayerCall] = []

    def note(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> GeometricTensor:
        features = given[0] if given else named["input"]
        # What is done in place with features later must not reach those that are noted.
        calls.append(_LayerCall(layer, features.tensor.detach().clone(), output.tensor))  # type: ignore[arg-type]
        return GeometricTensor(output.tensor.clone(), output.type)

    layers = [
        module
        for module in network.modules()
        if isinstance(module, RelaxedLayer) and not wanted.isdisjoint(map(id, module.parameters()))
    ]
    handles = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    try:
        output = output_of(network, arguments)
    finally:
        for handle in handles:
            handle.remove()
    noted = [call for call in calls if call.output.requires_grad]
    if calls and not noted:
        raise ValueError(
            "network: its layers are called without gradients, which an update needs: take it out of torch.no_grad() "
            "and torch.inference_mode(), and let torch.utils.checkpoint have use_reentrant=False"
        )
    if not noted or not output.requires_grad:
        raise ValueError("network: its output does not depend on the soft weights of its layers")
    if count > 1 and any(len(call.features) != count for call in noted):
        # Where a layer sees several images of an input, each input goes through the network alone.
        alone = [gradients(network, parameters, one, direction) for one in input_chunks(arguments, 1)]
        return [torch.cat(of) for of in zip(*alone, strict=True)]
    product = (output * direction(output.detach())).sum()
    slopes = torch.autograd.grad(product, [call.output for call in noted], materialize_grads=True)
    found = {id(parameter): parameter.new_zeros(count, *parameter.shape) for parameter in parameters}
    for call, slope in zip(noted, slopes, strict=True):
        own = {name: parameter for name, parameter in call.layer.named_parameters() if id(parameter) in wanted}
        for name, of_inputs in _layer_gradients(call, slope, own, count).items():
            found[id(own[name])] += of_inputs
    return [found[id(parameter)] for parameter in parameters]


class _LayerCall(NamedTuple):
    """A call of a layer in a forward pass: what went in and what came out."""

    layer: RelaxedLayer
    features: Tensor
    output: Tensor


def _layer_gradients(call: _LayerCall, slope: Tensor, own: dict[str, nn.Parameter], count: int) -> dict[str, Tensor]:
    """Return the gradients of a layer's parameters for each input, (count, …), without those that the layer ignores.

    Args:
        call: the layer, and the features of all inputs, each of one or more images.
        slope: the gradient of the layer's output.
        own: the parameters by their names in the layer.
        count: number of inputs.
    """
    if any(map(has_hooks, call.layer.modules())):
        # Tensors of a map must not get into the hands of users.
        return _one_by_one(call, slope, own, count)
    try:
        return _mapped(call, slope, own, count)
    except RuntimeError:
        # A layer that cannot be mapped over.
        return _one_by_one(call, slope, own, count)


def _product(call: _LayerCall, values: Mapping[str, Tensor], features: Tensor, slope: Tensor) -> Tensor:
    """Return ⟨output, slope⟩ of a layer with other values of its parameters."""
    output = functional_call(call.layer, dict(values), (GeometricTensor(features, call.layer.in_type),))
    return (output.tensor * slope).sum()


def _mapped(call: _LayerCall, slope: Tensor, own: dict[str, nn.Parameter], count: int) -> dict[str, Tensor]:
    """Return the gradients by a map over inputs, each of which has a filter bank while it is mapped over."""
    values = {name: parameter.detach() for name, parameter in own.items()}
    chunk = max(1, _MOST_VALUES // call.layer.kernel.values_at_a_pixel())
    of_inputs = vmap(grad(partial(_product, call)), in_dims=(None, 0, 0), chunk_size=chunk)
    found: dict[str, Tensor] = of_inputs(values, *_by_input(call, slope, count))
    return found


def _one_by_one(call: _LayerCall, slope: Tensor, own: dict[str, nn.Parameter], count: int) -> dict[str, Tensor]:
    """Return the gradients by a call of the layer for each input."""
    rows = [
        torch.autograd.grad(_product(call, own, *one), list(own.values()))
        for one in zip(*_by_input(call, slope, count), strict=True)
    ]
    return dict(zip(own, (torch.stack(row) for row in zip(*rows, strict=True)), strict=True))


def _by_input(call: _LayerCall, slope: Tensor, count: int) -> list[Tensor]:
    """Return features and slopes with an axis for the inputs."""
    return [images.unflatten(0, (count, -1)) for images in (call.features, slope)]


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Return the mean of values, and its standard error by their spread."""
    return float(values.mean()), float(values.std(correction=0)) / len(values) ** 0.5


def joined_over_processes(rows: Tensor) -> Tensor:
    """Return the rows of all processes, one after the other; of several in main memory."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return rows
    of_all = [rows] * distributed.get_world_size()
    # Each process has a device of its own.
    distributed.all_gather_object(of_all, rows.cpu())
    return torch.cat(of_all)
