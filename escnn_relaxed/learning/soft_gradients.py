"""The soft weights of a network by layer and subgroup, and their gradients for each input of a batch alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from escnn.nn import GeometricTensor, SequentialModule
from torch import Tensor, distributed, nn

from ..kernel.kernel import WeightGroup
from ..layer.relaxed_layer import RelaxedLayer
from ..measure.forward_probe import Output
from ..network.relaxed_layers import first_input, first_module, input_chunks, relaxed_layers, tensor_of
from .layer_gradients import LayerCall, layer_gradients

# The part of a gradient that gradients of single inputs may miss: far above rounding, even in half precision.
_MOST_MISSED = 0.1


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


def multiply(groups: Sequence[SoftGroup], factors: Tensor) -> None:
    """Multiply the entries of groups, one after the other, by factors in place."""
    entries = [entry for group in groups for entry in group.weights.entries]
    for (parameter, places), of_entry in zip(
        entries, factors.split([len(places) for _, places in entries]), strict=True
    ):
        parameter.view(-1)[places.to(parameter.device)] *= of_entry.to(parameter)


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


def output_of(network: nn.Module, arguments: tuple[Any, ...], output: Output = None) -> Tensor:
    """Return the output of a network as a tensor; a plain batch becomes the fields that a sequence or a layer takes."""
    first: Any = first_module(network)
    takes_fields = type(first).forward is SequentialModule.forward or isinstance(first, RelaxedLayer)
    batch, *others = arguments
    given = first.in_type(batch) if takes_fields and isinstance(batch, Tensor) else batch
    returned = network(given, *others)
    return tensor_of(returned if output is None else output(returned), "network: its output")


def gradients(
    network: nn.Module,
    parameters: Sequence[nn.Parameter],
    arguments: tuple[Any, ...],
    direction: Callable[[Tensor], Tensor],
    picked: Output = None,
) -> list[Tensor]:
    """Return the gradients of ⟨output, direction(output)⟩ of each input, (batch, …) of each parameter."""
    # One pass through the network gives the gradients of the layers' outputs. Those of the parameters of each layer
    # then follow input by input from that layer alone.
    count = len(first_input(arguments))
    wanted = set(map(id, parameters))
    calls: list[LayerCall] = []

    def note(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> GeometricTensor:
        features = given[0] if given else named["input"]
        # What is done in place with features later must not reach those that are noted.
        calls.append(LayerCall(layer, features.tensor.detach().clone(), output.tensor))  # type: ignore[arg-type]
        return GeometricTensor(output.tensor.clone(), output.type)

    layers = [
        module
        for module in network.modules()
        if isinstance(module, RelaxedLayer) and not wanted.isdisjoint(map(id, module.parameters()))
    ]
    handles = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    try:
        # A compiled network would leave the hooks out of its graph.
        with torch.compiler.set_stance("force_eager"):
            output = output_of(network, arguments, picked)
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
        alone = [gradients(network, parameters, one, direction, picked) for one in input_chunks(arguments, 1)]
        return [torch.cat(of) for of in zip(*alone, strict=True)]
    product = (output * direction(output.detach())).sum()
    sources = [*(call.output for call in noted), *parameters]
    slopes = torch.autograd.grad(product, sources, materialize_grads=True)
    slopes, wholes = slopes[: len(noted)], slopes[len(noted) :]
    found = {id(parameter): parameter.new_zeros(count, *parameter.shape) for parameter in parameters}
    for call, slope in zip(noted, slopes, strict=True):
        own = {name: parameter for name, parameter in call.layer.named_parameters() if id(parameter) in wanted}
        for name, of_inputs in layer_gradients(call, slope, own, count).items():
            found[id(own[name])] += of_inputs
    rows = [found[id(parameter)] for parameter in parameters]
    for whole, of_inputs in zip(wholes, rows, strict=True):
        if (of_inputs.sum(0) - whole).norm() > _MOST_MISSED * torch.maximum(of_inputs.norm(), whole.norm()):
            raise ValueError(
                "network: its output depends on soft weights in other ways than by calls of their layers, or equal "
                "calls give other outputs: call each layer as layer(x), not by layer.forward(x) or its filters, and "
                "take sampling='random' or 'grid' for a ContinuousKernel"
            )
    return rows


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
