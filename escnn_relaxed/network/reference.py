"""A reference field before a layer of a trained network, and the network without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

import numpy as np
import torch
from escnn.group import Representation
from escnn.nn import (
    EquivariantModule,
    FieldType,
    R2ConvTransposed,
    R3ConvTransposed,
    SequentialModule,
)
from torch import nn

from ..group.pointing import Pointing
from ..layer.reference_field import ReferenceField
from ..layer.referenced_layer import ReferencedLayer
from ..layer.relaxed_layer import RelaxedLayer
from ..on_escnn.point_sampler import POINT_CONVOLUTIONS
from .relaxed_layers import NO_SOFT_FORM, RELAXABLE, RELAXED_FORMS, geometry_of, relaxed_form

# Before the first layer.
INPUT = "input"
# In float32 two samples of the same basis differ by less than this part of a bank.
_SAME_BANK = 1e-4


class ReferenceOptions(TypedDict, total=False):
    """The arguments of a reference field that may be given."""

    representation: Representation | Sequence[Representation] | None
    relax: str | Sequence[str]
    keep: Any


# "input" or the name of a layer, or a dict from these to arguments of ReferenceField.
References: TypeAlias = str | Mapping[str, ReferenceOptions]


def references_by_layer(network: nn.Module, reference: References) -> dict[str, ReferenceOptions]:
    """Return the arguments of reference fields by the names of the layers that get them."""
    given = {reference: ReferenceOptions()} if isinstance(reference, str) else reference
    if not isinstance(given, Mapping):
        raise TypeError(
            f"reference must be {INPUT!r} or the name of a layer, or a dict from these to arguments of "
            f"ReferenceField, got {reference!r}"
        )
    if not given:
        raise ValueError(f"reference must have {INPUT!r} or the name of a layer, got {reference!r}")
    found: dict[str, ReferenceOptions] = {}
    for place, options in given.items():
        name = _layer_for_reference(network, place)
        if name in found:
            raise ValueError(f"reference: {place!r} is the layer {name!r}, which has a reference field already")
        found[name] = _checked_options(place, options)
    return found


def _checked_options(place: str, options: ReferenceOptions) -> ReferenceOptions:
    """Return the arguments of a reference field, of which the names are checked."""
    known = list(ReferenceOptions.__annotations__)
    if not isinstance(options, Mapping):
        raise TypeError(f"reference[{place!r}] must be a dict of arguments of ReferenceField, got {options!r}")
    for name in options:
        if name not in known:
            raise TypeError(f"reference[{place!r}] must have names among {known}, got {name!r}")
    return options


def _layer_for_reference(network: nn.Module, place: Any) -> str:
    """Return the name of the layer that gets a reference field: of the first one, or the one that is named."""
    inside = reference_layers(network)
    named: Iterable[tuple[str, nn.Module]] = network.named_modules()
    kinds: tuple[type[nn.Module], ...] = tuple(RELAXED_FORMS)
    layers: dict[str, nn.Module] = {
        name: module
        for name, module in named
        if isinstance(module, kinds) and not isinstance(module, NO_SOFT_FORM) and id(module) not in inside
    }
    if not isinstance(place, str):
        raise TypeError(f"reference must be {INPUT!r} or the name of a layer, got {place!r}")
    of_clouds = [name for name, layer in layers.items() if isinstance(layer, tuple(POINT_CONVOLUTIONS.values()))]
    layers = {name: layer for name, layer in layers.items() if name not in of_clouds}
    if not layers and of_clouds:
        raise ValueError(
            f"network has convolutions of clouds alone, {of_clouds}, which take more than their features: call a "
            "ReferenceField before one of them, which then is of its out_type"
        )
    if not layers:
        raise ValueError(f"network has none of {RELAXABLE}, whose input could have a reference beside it")
    name = place
    if place == INPUT and INPUT not in layers:
        name = _first(network, layers)
    if name not in layers:
        raise ValueError(f"reference must be {INPUT!r} or the name of one of {list(layers)}, got {place!r}")
    parents = [module.layer for module in network.modules() if isinstance(module, ReferencedLayer)]
    if any(layers[name] is layer for layer in parents):
        raise ValueError(f"reference: {name!r} has a reference field already")
    return name


def _first(network: nn.Module, layers: Mapping[str, nn.Module], prefix: str = "") -> str:
    """Return the name of the layer that takes the network's input: the first of a sequence, elsewhere the only one.

    A network that is no sequence runs its modules in an order that only its ``forward`` knows.
    """
    inside = {name: layer for name, layer in layers.items() if name.startswith(prefix)}
    if isinstance(network, nn.Sequential | SequentialModule):
        for name, module in network.named_children():
            path = f"{prefix}{name}"
            if path in layers:
                return path
            if any(each.startswith(f"{path}.") for each in inside):
                return _first(module, layers, f"{path}.")
    in_type = getattr(network, "in_type", None)
    if isinstance(network, EquivariantModule) and isinstance(in_type, FieldType):
        found = [name for name, layer in inside.items() if layer.in_type == in_type]
    else:
        # The input is of fields that no other module makes of others.
        made = [
            module.out_type
            for module in network.modules()
            if isinstance(module, EquivariantModule) and module is not network and module.in_type != module.out_type
        ]
        found = [name for name, layer in inside.items() if layer.in_type not in made]
    if len(found) != 1:
        raise ValueError(
            f"reference={INPUT!r}: the layer that takes the network's input may be any of {found or list(inside)}, so "
            "name it: reference='…'"
        )
    return found[0]


def check_alone(where: object, freeze: bool, radius: object, softening: Mapping[str, object]) -> None:
    """Refuse arguments about soft layers beside a reference, where no layer becomes soft."""
    named = {"where": where is not None, "freeze": freeze, "domain_radius": radius is not None}
    given = [*(name for name, is_given in named.items() if is_given), *softening]
    if given:
        raise ValueError(
            f"{given[0]} must be left out where reference= is given without relax=, since all layers stay strict then"
        )


def with_references(network: nn.Module, references: Mapping[str, ReferenceOptions]) -> nn.Module:
    """Put reference fields before layers of a network, in place; return the network, or what replaces it."""
    replacements: dict[int, nn.Module] = {}
    for name, options in references.items():
        layer: Any = network.get_submodule(name)
        try:
            reference = ReferenceField(layer.in_type, **options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"reference before {name or 'network'!r}: {error}") from error
        reference = reference.to(layer.weights if layer.weights is not None else layer.like)
        replacements[id(layer)] = _referenced(name, layer, reference).train(layer.training)
    return _replaced(network, replacements)


def _referenced(name: str, layer: Any, reference: ReferenceField) -> ReferencedLayer:
    """Return a layer with a reference field and a strict layer of it, whose weights are drawn."""
    geometry = geometry_of(layer)
    if geometry:
        geometry["groups"] = 1
    # Equivariant maps of a constant field are those between irreps, whatever the kernel, and so are maps of one tap.
    sees_positions = reference.position_weights is not None and np.max(geometry.get("kernel_size", 1)) > 1
    if not sees_positions and not {*reference.reference_type.irreps} & {*layer.out_type.irreps}:
        constant = "" if reference.position_weights is not None else "constant "
        raise ValueError(
            f"reference: {name or 'network'} gives {layer.out_type}, to which no {constant}field of "
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


def kept_by_references(network: nn.Module) -> str:
    """Return the subgroup that all reference fields of a network keep together, in words; ``""`` for fewer than two.

    It fixes the vectors of all, so it is the symmetry of their direct sum. Fields of another group, as behind a
    restriction, have words of their own.
    """
    fields = [module for module in network.modules() if isinstance(module, ReferenceField)]
    if len(fields) < 2:
        return ""
    by_group: list[list[ReferenceField]] = []
    for field in fields:
        known = next((some for some in by_group if some[0].space.fibergroup == field.space.fibergroup), None)
        known.append(field) if known else by_group.append([field])
    words = [_kept_together(some) for some in by_group]
    if len(words) == 1:
        return words[0]
    return "; ".join(f"{kept} of {some[0].space.fibergroup}" for kept, some in zip(words, by_group, strict=True))


def _kept_together(fields: Sequence[ReferenceField]) -> str:
    """Return the subgroup that fixes the vectors of all fields, which are of one group, in words."""
    # A mirror is named by its axis, which a group without a base space has by convention alone.
    space = next((field for field in fields if field.space.dimensionality), fields[0]).parts.pointing.space
    values = [field.value.detach().double().cpu().numpy() for field in fields]
    # A small vector beside a large one is no rounding.
    directions = [value / (np.linalg.norm(value) or 1) for value in values]
    pointing = Pointing(space, [part for field in fields for part in field.parts.fields])
    words = pointing.kept_in_words(np.concatenate(directions))
    is_centred = words != "nothing" and any(field.differs_by_position for field in fields)
    return f"{words} about the centre" if is_centred else words


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
