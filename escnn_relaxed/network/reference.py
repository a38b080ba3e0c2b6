"""A reference field before a layer of a trained network, and the network without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from escnn.nn import (
    EquivariantModule,
    FieldType,
    R2ConvTransposed,
    R3ConvTransposed,
    SequentialModule,
)
from torch import nn

from ..layer.reference_field import ReferenceField
from ..layer.referenced_layer import ReferencedLayer
from ..layer.relaxed_layer import RelaxedLayer
from .relaxed_layers import NO_SOFT_FORM, RELAXABLE, RELAXED_FORMS, geometry_of, relaxed_form

# Before the first layer.
INPUT = "input"
# In float32 two samples of the same basis differ by less than this part of a bank.
_SAME_BANK = 1e-4


def layer_for_reference(network: nn.Module, reference: Any) -> str:
    """Return the name of the layer that gets a reference field: of the first one, or the one that is named."""
    inside = reference_layers(network)
    named: Iterable[tuple[str, nn.Module]] = network.named_modules()
    kinds: tuple[type[nn.Module], ...] = tuple(RELAXED_FORMS)
    layers: dict[str, nn.Module] = {
        name: module
        for name, module in named
        if isinstance(module, kinds) and not isinstance(module, NO_SOFT_FORM) and id(module) not in inside
    }
    if not isinstance(reference, str):
        raise TypeError(f"reference must be {INPUT!r} or the name of a layer, got {reference!r}")
    if not layers:
        raise ValueError(f"network has none of {RELAXABLE}, whose input could have a reference beside it")
    name = reference
    if reference == INPUT and INPUT not in layers:
        name = _first(network, layers)
    if name not in layers:
        raise ValueError(f"reference must be {INPUT!r} or the name of one of {list(layers)}, got {reference!r}")
    parents = [module.layer for module in network.modules() if isinstance(module, ReferencedLayer)]
    if any(layers[name] is layer for layer in parents):
        raise ValueError(f"reference: {name!r} has a reference field already")
    return name


def _first(network: nn.Module, layers: Mapping[str, nn.Module]) -> str:
    """Return the name of the first layer that takes the fields of the network's input, as far as it says which."""
    in_type = getattr(network, "in_type", None)
    if isinstance(network, EquivariantModule) and isinstance(in_type, FieldType):
        return next((name for name, layer in layers.items() if layer.in_type == in_type), next(iter(layers)))
    return next(iter(layers))


def check_alone(where: object, freeze: bool, softening: Mapping[str, object]) -> None:
    """Refuse arguments about soft layers beside a reference, where no layer becomes soft."""
    given = [*(["where"] if where is not None else []), *(["freeze"] if freeze else []), *softening]
    if given:
        raise ValueError(
            f"{given[0]} must be left out where reference= is given without relax=, since all layers stay strict then"
        )


def with_reference(network: nn.Module, name: str) -> nn.Module:
    """Put a reference field before a layer of a network, in place; return the network, or what replaces it."""
    layer: Any = network.get_submodule(name)
    reference = ReferenceField(layer.in_type).to(layer.weights if layer.weights is not None else layer.like)
    return _replaced(network, {id(layer): _referenced(name, layer, reference).train(layer.training)})


def _referenced(name: str, layer: Any, reference: ReferenceField) -> ReferencedLayer:
    """Return a layer with a reference field and a strict layer of it, whose weights are drawn."""
    geometry = geometry_of(layer)
    if geometry:
        geometry["groups"] = 1
    if not {*reference.reference_type.irreps} & {*layer.out_type.irreps}:
        # Equivariant maps of a constant field are those between irreps, whatever the kernel.
        raise ValueError(
            f"reference: {name or 'network'} gives {layer.out_type}, to which no constant field of "
            f"{reference.reference_type} can be mapped, so that one before it would do nothing: name another layer"
        )
    build: Any = relaxed_form(layer)
    of_reference: Any = build(reference.reference_type, layer.out_type, bias=False, relax=None, **geometry)
    return ReferencedLayer(layer, reference, of_reference.to(reference.vector))


def without_references(network: nn.Module) -> nn.Module:
    """Take reference fields that are 0 from a network, in place; return the network, or what replaces it.

    One that stands beside the features stays, unless a strict layer follows it in a sequence, which can do without.
    """
    for sequence in list(network.modules()):
        if isinstance(sequence, nn.Sequential | SequentialModule):
            _fold(sequence)
    gone: dict[int, nn.Module] = {}
    for module in network.modules():
        if isinstance(module, ReferencedLayer) and module.reference.is_nothing:
            gone[id(module)] = module.layer
    return _replaced(network, gone)


def _fold(sequence: nn.Module) -> None:
    """Take each reference field that is 0 from a sequence, where the next layer can be one of the features alone."""
    names = list(sequence._modules)
    behind = ""
    for name in reversed(names):
        field: Any = sequence._modules[name]
        is_nothing = isinstance(field, ReferenceField) and field.is_nothing
        layer = _of_features(field, sequence._modules[behind]) if is_nothing and behind else None
        if layer is None:
            behind = name
        else:
            sequence._modules[behind] = layer
            del sequence._modules[name]
    if len(names) > len(sequence._modules) and all(map(str.isdecimal, names)):
        # As a sequence that was built without the fields names its modules.
        modules = list(sequence._modules.values())
        sequence._modules.clear()
        sequence._modules.update((str(number), module) for number, module in enumerate(modules))


@torch.no_grad()
def _of_features(field: ReferenceField, layer: Any) -> nn.Module | None:
    """Return a strict layer of a field and features as one of the features alone; None where this cannot be."""
    build: Any = relaxed_form(layer)
    is_soft = isinstance(layer, RelaxedLayer) and (layer.relaxed_subgroups or layer.hardened or layer.relaxed_by)
    if build is None or is_soft or layer.in_type != field.out_type or layer.basisexpansion is None:
        return None
    geometry = geometry_of(layer)
    if geometry.get("groups", 1) > 1:
        return None
    built: Any = build(
        field.in_type, layer.out_type, bias=layer.bias is not None, relax=None, initialize=False, **geometry
    )
    built = built.to(layer.weights).train(layer.training)
    places = {_place(element): element["id"] for element in layer.basisexpansion.get_basis_info()}
    numbers = [places[_place(element)] for element in built.basisexpansion.get_basis_info()]
    built.weights.copy_(layer.weights[numbers])
    built.weights.requires_grad_(layer.weights.requires_grad)
    if layer.bias is not None:
        built.bias.copy_(layer.bias)
    # A layer that has loaded another basis stays.
    bank, own = layer.expand_parameters()[0], built.filter_bank()
    inputs = 0 if isinstance(layer, R2ConvTransposed | R3ConvTransposed) else 1
    error = (own - bank.narrow(inputs, 0, field.in_type.size)).abs().max()
    return built if bool(error <= _SAME_BANK * bank.abs().max()) else None


def _place(element: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the fields between which an element of a basis is, and its number among those between them."""
    return element["out_field_position"], element["in_field_position"], element["block_id"]


def reference_layers(network: nn.Module) -> set[int]:
    """Return the ids of the layers from reference fields to outputs, which stay strict."""
    return {id(module.reference_layer) for module in network.modules() if isinstance(module, ReferencedLayer)}


def _replaced(network: nn.Module, replacements: Mapping[int, nn.Module]) -> nn.Module:
    """Exchange modules of a network in place, wherever one is a child; return what the network is then."""
    for module in list(network.modules()):
        for key, child in list(module._modules.items()):
            if child is not None and id(child) in replacements and replacements[id(child)] is not module:
                module._modules[key] = replacements[id(child)]
    return replacements.get(id(network), network)
