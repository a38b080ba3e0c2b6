"""The soft weights of a network by layer and subgroup, and their per-input gradients."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from escnn.nn import GeometricTensor, SequentialModule
from torch import Tensor, distributed, nn

from ..kernel.config import WeightGroup
from ..layer.cloud_gradients import cloud_gradients
from ..layer.input_gradients import AnyLayer, LayerCall, input_gradients
from ..layer.reference_field import ReferenceField
from ..layer.referenced_layer import ReferencedLayer
from ..layer.relaxed_layer import RelaxedLayer
from ..measure.forward_probe import OutputSelector
from ..network.relaxed_layers import Softened, first_input, first_module, input_chunks, relaxed_layers

# The part of a gradient that gradients of single inputs may miss: far above rounding, even in half precision.
_MOST_MISSED = 0.1
# Below this many units in the last place of the terms that make it up a gradient is rounding.
_ROUNDING = 16


@dataclass(frozen=True)
class SoftGroup:
    """The trainable soft weights of a layer in some subgroups."""

    layer: str  # the first that has them and is soft
    weights: WeightGroup
    layers: list[str]  # all that share them
    key: str  # a name among all groups: whatever is hardened or frozen, the weights have the same one

    @property
    def former_key(self) -> str:
        """The key in states of older versions, in which groups of one layer and subgroup had the same."""
        return f"{self.layer}/{self.weights.name}"

    @cached_property
    def size(self) -> int:
        """Number n of weights."""
        return sum(len(places) for _, places in self.weights.entries)


class SoftWeights:
    """The trainable soft weights of a network."""

    def __init__(self, network: nn.Module) -> None:
        layers = relaxed_layers(network)
        _check_whole(network, layers)
        self.groups = soft_groups(network)
        learning = {id(parameter) for group in self.groups for parameter, _ in group.weights.entries}
        every = learning | {id(parameter) for layer in layers.values() for parameter in layer.soft_parameters()}
        named = {name: of for name, of in network.named_parameters(remove_duplicate=False) if id(of) in every}
        self.parameters = list({id(of): of for of in named.values() if id(of) in learning}.values())
        self._network = network
        self._learns = {name: (of, of.requires_grad) for name, of in named.items()}
        self._hardened = {name: (layer, layer.hardened) for name, layer in layers.items()}

    def is_current(self) -> bool:
        """Return True while the network has the same parameters, frozen alike, and layers hardened alike."""
        try:
            return all(
                attrgetter(name)(self._network) is of and of.requires_grad == learns
                for name, (of, learns) in self._learns.items()
            ) and all(
                self._network.get_submodule(name) is layer and layer.hardened == hardened
                for name, (layer, hardened) in self._hardened.items()
            )
        except AttributeError:
            return False

    def values(self) -> Tensor:
        """Return α of all groups, concatenated."""
        return gather_entries(self.groups, {id(parameter): parameter.flatten() for parameter in self.parameters})


def gather_entries(groups: Sequence[SoftGroup], values: Mapping[int, Tensor]) -> Tensor:
    """Return the entries of groups concatenated along the last axis, from values keyed by parameter ids."""
    entries = [entry for group in groups for entry in group.weights.entries]
    return torch.cat([values[id(of)][..., places.to(of.device)] for of, places in entries], -1)


def scale_entries(groups: Sequence[SoftGroup], factors: Tensor) -> None:
    """Multiply the entries of groups by factors in place, in their order."""
    entries = [entry for group in groups for entry in group.weights.entries]
    for (parameter, places), of_entry in zip(
        entries, factors.split([len(places) for _, places in entries]), strict=True
    ):
        parameter.view(-1)[places.to(parameter.device)] *= of_entry.to(parameter)


def soft_groups(network: nn.Module) -> list[SoftGroup]:
    """Return the groups of a network, each once, without frozen and hardened weights."""
    groups: list[SoftGroup] = []
    keys: list[str] = []
    # The number of the group that each entry of a parameter is in, and of the first key that it had: the one of a layer
    # that may be hardened, while another that shares the weights is soft.
    memberships, owners = dict[int, Tensor](), dict[int, Tensor]()
    for name, layer in relaxed_layers(network).items():
        for key, weights in _keyed_groups(name, layer):
            is_gone, own = weights.is_gone(layer.hardened), []
            for parameter, places in weights.entries:
                here = places.to(parameter.device)
                unknown = torch.full((parameter.numel(),), -1, device=here.device)
                owner = owners.setdefault(id(parameter), unknown)
                owner[here[owner[here] < 0]] = len(keys)
                if is_gone or not parameter.requires_grad:
                    continue
                numbers = memberships.setdefault(id(parameter), unknown.clone().fill_(-1))
                for number in set(numbers[here].tolist()) - {-1}:
                    groups[number].layers.append(name)
                fresh = here[numbers[here] < 0]
                numbers[fresh] = len(groups)
                if len(fresh):
                    own.append((parameter, fresh))
            keys.append(key)
            if own:
                parameter, places = own[0]
                first = keys[int(owners[id(parameter)][places[0]])]
                is_free = all(group.key != first for group in groups)
                groups.append(SoftGroup(name, weights._replace(entries=own), [name], first if is_free else key))
    return groups


def _keyed_groups(name: str, layer: Softened) -> Iterator[tuple[str, WeightGroup]]:
    """Yield the groups of a layer with keys of layer and subgroup, and a number where several have one subgroup."""
    counts = Counter[str]()
    for weights in layer.weight_groups():
        key = f"{name}/{weights.name}"
        counts[key] += 1
        yield key if counts[key] == 1 else f"{key}/{counts[key]}", weights


def _check_whole(network: nn.Module, layers: Mapping[str, Softened]) -> None:
    """Raise a ``ValueError`` for layers whose weights are spread over processes, or under a gate."""
    wrappers = [module for module in network.modules() if type(module).__name__ == "FullyShardedDataParallel"]
    inside = {id(module) for wrapper in wrappers for module in wrapper.modules()}
    for name, layer in layers.items():
        if layer.gates:
            raise ValueError(
                f"network: a gate is on the softness of {name!r}, and the evidence is that of softness without one: "
                f"remove it first"
            )
        # A DTensor, as fully_shard makes them, has placements.
        if id(layer) in inside or any(hasattr(parameter, "placements") for parameter in layer.parameters()):
            raise ValueError(
                f"network: the weights of {name!r} are sharded over processes, as by fully_shard, and the evidence "
                f"needs those of relaxed layers whole in each process: take DistributedDataParallel, or shard other "
                f"modules alone"
            )


def check_arguments(network: nn.Module, inputs: Any) -> None:
    """Raise a ``TypeError`` for inputs that are not all arguments of the network's forward."""
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    try:
        inspect.signature(network.forward).bind(*arguments)
    except TypeError as error:
        raise TypeError(
            f"inputs must be all arguments of the forward of {type(network).__name__}, of several a tuple: {error}"
        ) from None


def output_of(network: nn.Module, arguments: tuple[Any, ...], output: OutputSelector = None) -> Tensor:
    """Return the tensor of a network's output; a plain batch becomes the fields that a sequence or a layer takes."""
    first: Any = first_module(network)
    takes_fields = type(first).forward is SequentialModule.forward or isinstance(
        first, (RelaxedLayer, ReferenceField, ReferencedLayer)
    )
    batch, *others = arguments
    given = first.in_type(batch) if takes_fields and isinstance(batch, Tensor) else batch
    returned = network(given, *others)
    picked = returned if output is None else output(returned)
    if isinstance(picked, GeometricTensor):
        return picked.tensor
    if isinstance(picked, Tensor):
        return picked
    source = "network: its output" if output is None else "output: what it gives"
    hint = ": pick a tensor of it by output=lambda returned: …" if output is None else ""
    raise TypeError(f"{source} must be a tensor or a GeometricTensor, got {type(picked).__name__}{hint}")


def gradients(
    network: nn.Module,
    parameters: Sequence[nn.Parameter],
    arguments: tuple[Any, ...],
    direction: Callable[[Tensor], Tensor],
    pick: OutputSelector = None,
    clouds: Tensor | None = None,
) -> list[Tensor]:
    """Return the gradients of ⟨output, direction(output)⟩ of each input, (batch, …) of each parameter.

    An input is a cloud where each node has the number of one (nodes,).
    """
    # One pass through the network gives the gradients of the layers' outputs. Those of the parameters of each layer
    # then follow input by input from that layer alone.
    count = len(first_input(arguments)) if clouds is None else int(clouds.max()) + 1
    wanted = set(map(id, parameters))
    calls: list[LayerCall[AnyLayer]] = []

    def record_call(layer: AnyLayer, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> GeometricTensor:
        bound = inspect.signature(layer.forward).bind(*given, **named)
        features, *edges = bound.args
        if getattr(layer, "is_of_clouds", False):
            edges = [features.coords.detach().clone(), edges[0], edges[1] if len(edges) > 1 else None]
        # What is done in place with features later must not reach those that are recorded.
        calls.append(LayerCall(layer, features.tensor.detach().clone(), output.tensor, tuple(edges)))
        return GeometricTensor(output.tensor.clone(), output.type, output.coords)

    kinds = RelaxedLayer, ReferenceField, ReferencedLayer
    layers = [
        module
        for module in network.modules()
        if isinstance(module, kinds) and not wanted.isdisjoint(map(id, module.parameters()))
    ]
    handles = [layer.register_forward_hook(record_call, with_kwargs=True) for layer in layers]
    try:
        # A compiled network would leave the hooks out of its graph.
        with torch.compiler.set_stance("force_eager"):
            output = output_of(network, arguments, pick)
    finally:
        for handle in handles:
            handle.remove()
    differentiable = [call for call in calls if call.output.requires_grad]
    if calls and not differentiable:
        raise ValueError(
            "network: its layers are called without gradients, which an update needs: take it out of torch.no_grad() "
            "and torch.inference_mode(), and let torch.utils.checkpoint have use_reentrant=False"
        )
    if not differentiable or not output.requires_grad:
        raise ValueError("network: its output does not depend on the soft weights of its layers")
    along = direction(output.detach())
    if clouds is None and count > 1 and any(len(call.features) != count for call in differentiable):
        # Where a layer sees several images of an input, each input goes through the network alone.
        pairs = zip(input_chunks(arguments, 1), map(_always, along.split(1)), strict=True)
        alone = [gradients(network, parameters, one, of_one, pick) for one, of_one in pairs]
        return [torch.cat(of) for of in zip(*alone, strict=True)]
    sources = [*(call.output for call in differentiable), *parameters]
    slopes = torch.autograd.grad((output * along).sum(), sources, materialize_grads=True)
    slopes, wholes = slopes[: len(differentiable)], slopes[len(differentiable) :]
    summed = {id(parameter): parameter.new_zeros(count, *parameter.shape) for parameter in parameters}
    sizes = dict.fromkeys(summed, 0.0)
    for call, slope in zip(differentiable, slopes, strict=True):
        # A ReferencedLayer adds its reference, and the layer inside is called alone.
        holder = call.layer.reference if isinstance(call.layer, ReferencedLayer) else call.layer
        own = {name: parameter for name, parameter in holder.named_parameters() if id(parameter) in wanted}
        size = _norm(slope) * _norm(call.output)
        if clouds is None:
            rows_of_call = input_gradients(call, slope, own, count)
        else:
            rows_of_call = cloud_gradients(call, slope, own, clouds, count)
        for name, of_inputs in rows_of_call.items():
            summed[id(own[name])] += of_inputs
            sizes[id(own[name])] += size
    rows = [summed[id(parameter)] for parameter in parameters]
    _check_complete(wholes, rows, [sizes[id(parameter)] for parameter in parameters])
    return rows


def _always(value: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: value


def _check_complete(wholes: Sequence[Tensor], rows: Sequence[Tensor], sizes: Sequence[float]) -> None:
    """Raise a ``ValueError`` unless per-input gradients add up to the gradient of the batch.

    Sizes are those of the terms that each gradient is a sum of.
    """
    norms = [_norm(of_inputs) for of_inputs in rows]
    of_all = math.hypot(*norms)
    for whole, of_inputs, norm, size in zip(wholes, rows, norms, sizes, strict=True):
        # A gradient that is truly 0 is all rounding: that of a soft part that the mean over all pixels takes away.
        epsilon = torch.finfo(whole.dtype).eps
        rounding = max(_ROUNDING * epsilon * size, epsilon**0.5 * of_all)
        if _norm(of_inputs.sum(0) - whole) > max(_MOST_MISSED * norm, _MOST_MISSED * _norm(whole), rounding):
            raise ValueError(
                "network: its output depends on soft weights in other ways than by calls of their layers, or equal "
                "calls give other outputs: call each layer as layer(x), not by layer.forward(x) or its filters, and "
                "take sampling='random' or 'grid' for a ContinuousKernel"
            )


def _norm(tensor: Tensor) -> float:
    """Return ‖tensor‖, whose square may be beyond half precision."""
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.promote_types(tensor.dtype, torch.float32)))


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Return the mean of values and its standard error."""
    return float(values.mean()), float(values.std(correction=0)) / len(values) ** 0.5


def joined_over_processes(rows: Tensor) -> Tensor:
    """Return the concatenated rows of all processes; in main memory if there are several."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return rows
    of_all = [rows] * distributed.get_world_size()
    # Each process has a device of its own.
    distributed.all_gather_object(of_all, rows.cpu())
    return torch.cat(of_all)
