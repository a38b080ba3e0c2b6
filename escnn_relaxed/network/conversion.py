"""Functions that relax an existing network, or make a relaxed one strict."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from escnn.nn import Linear, R2Conv, R2ConvTransposed, R3Conv, R3ConvTransposed
from torch import nn
from torch.nn.utils import parametrize
from typing_extensions import Unpack

from ..checks import check_bool, check_callable, check_module, check_no_hooks, check_subgroups, warn_once
from ..layer.arguments import check_keywords, check_softness
from ..layer.relaxed_layer import RelaxedLayer
from ..layer.softness_options import DEFAULTS, SoftnessOptions
from ..on_escnn.point_sampler import POINT_CONVOLUTIONS, attributes_of_message_passing
from .point_convolutions import basis_arguments
from .reference import (
    References,
    check_alone,
    reference_layers,
    references_by_layer,
    with_references,
    without_references,
)
from .relaxed_layers import (
    NO_SOFT_FORM,
    RELAXABLE,
    RELAXED_FORMS,
    Relaxed,
    copied_parameters,
    copy_network,
    geometry_of,
    relaxed_form,
    relaxed_layers,
)

# A layer that can be relaxed: escnn's, or a strict one of this package.
StrictLayer: TypeAlias = Relaxed | R2Conv | R2ConvTransposed | R3Conv | R3ConvTransposed | Linear


def relax_network(
    network: nn.Module,
    where: Callable[[str, StrictLayer], bool] | None = None,
    freeze: bool = False,
    reference: References | None = None,
    domain_radius: float | None = None,
    **softening: Unpack[SoftnessOptions],
) -> nn.Module:
    """Return a copy of a network in which every ``R2Conv`` is a :class:`~escnn_relaxed.RelaxedR2Conv` that may be soft.

    ``R2ConvTransposed``, ``R3Conv``, ``R3ConvTransposed``, ``R2PointConv``, ``R3PointConv`` and ``Linear`` become the
    layers of this package with their names; translation does not concern ``Linear``. Layers of this package that are
    strict in escnn's basis (``relax=None``, or of :func:`harden_network`) get a soft part, too. The copy computes what
    the network computed: the trained kernel stays the layer's strict part, the soft weights are 0 at the start, and
    :func:`harden_network` returns the kernel to the last bit (in double precision to 1e-7, because escnn samples its
    basis in single precision). A layer with hooks, parametrizations, or methods, parameters or buffers of a subclass is
    refused, since these would be lost; so is an attribute with the name of one of the relaxed layer's. A layer without
    a soft form, as ``R3IcoConv``, stays as it is, with a warning.

    Args:
        network: any module. Names of modules stay, and so do layers that are soft already. Weights and biases that
            layers share stay shared, and frozen ones stay frozen.
        where: from the name of such a layer in the network and the layer to whether it is relaxed; all by default.
        freeze: keep the trained kernels fixed; biases and the rest of the network go on learning.
        reference: ``"input"`` puts a :class:`~escnn_relaxed.ReferenceField` before the layer that takes the network's
            input, where its modules say which it is, and the name of a layer before that one. This layer becomes a
            module with the parts ``layer``, ``reference`` and ``reference_layer``. The vector is 0 at the start, and
            its weights are drawn, so that the copy computes what the network computed, and learns. Layers stay strict
            unless ``relax`` is given, too.
            ``{"input": {"relax": "translation"}}`` gives arguments of the field: ``representation``, ``relax`` or
            ``keep``. Several places get a field each.
        domain_radius: of convolutions of clouds that are soft in translation, as in
            :class:`~escnn_relaxed.RelaxedR2PointConv`.
        **softening: arguments of ``RelaxedR2Conv`` that say how it is soft: ``relax``, ``learn_relaxation``, ``keep``,
            ``initial_softness`` (here 0 by default), ``samples``, ``kernel``. The others have the defaults of the
            layer's class, whatever a strict layer was built with.

    Raises:
        TypeError: for a network that is no module, or another keyword: the trained layers decide the rest.
        ValueError: if the network has no such layer that ``where`` picks, or one that does more than escnn's own.

    Example:
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(nn.R2Conv(fields, fields, 3), nn.ReLU(fields))
        >>> [type(module).__name__ for module in relax_network(network, relax={"rotation": 0.25})]
        ['RelaxedR2Conv', 'ReLU']
    """
    check_module("network", network)
    check_bool("freeze", freeze)
    check_keywords(
        "relax_network", softening, tuple(DEFAULTS), "beside network, where, freeze, reference, domain_radius"
    )
    if where is not None:
        check_callable("where", where)
    if reference is None:
        return _with_soft_layers(network, where, freeze, domain_radius, softening)
    references = references_by_layer(network, reference)
    if "relax" not in softening:
        check_alone(where, freeze, domain_radius, softening)
        layers = [network.get_submodule(name) for name in references]
        of_escnn = [layer for layer in layers if not isinstance(layer, RelaxedLayer)]
        if not of_escnn:
            return with_references(copy_network(network), references)
        # They become strict layers of this package.
        where, softening = (lambda _, layer: any(layer is one for one in of_escnn)), {"relax": None}
    return with_references(_with_soft_layers(network, where, freeze, domain_radius, softening), references)


def _with_soft_layers(
    network: nn.Module,
    where: Callable[[str, StrictLayer], bool] | None,
    freeze: bool,
    domain_radius: float | None,
    softening: SoftnessOptions,
) -> nn.Module:
    """Return a copy of a network in which the layers that are picked may be soft."""
    inside = reference_layers(network)
    concerned = [
        (name, layer)
        for name, layer in network.named_modules()
        if _can_be_relaxed(layer, softening) and id(layer) not in inside
    ]
    picked = {name: layer for name, layer in concerned if where is None or where(name, layer)}
    if not picked:
        if concerned:
            raise ValueError(f"where must pick a layer of the network, which has {[name for name, _ in concerned]}")
        raise ValueError(f"network has none of {RELAXABLE} to relax, nor a layer of this package with relax=None")
    picked = _with_a_soft_form(network, picked, warns=where is None)
    for name, layer in picked.items():
        _check_plain(name or "network", layer)
    parameters = copied_parameters(picked.values(), freeze)
    relaxed = {
        id(layer): _relaxed(name or "network", layer, parameters, domain_radius, softening)
        for name, layer in picked.items()
    }
    attributes = []
    for name, layer in picked.items():
        own = own_attributes(layer)
        _check_names(name or "network", own, type(relaxed[id(layer)]))
        attributes.append((relaxed[id(layer)], own))
    return copy_network(network, {**relaxed, **parameters}, attributes)


def _with_a_soft_form(network: nn.Module, picked: dict[str, StrictLayer], warns: bool) -> dict[str, StrictLayer]:
    """Return the layers that have a soft form, at least one; warn of escnn's other modules with weights."""
    unequal = {name for name, layer in picked.items() if len(set(np.ravel(getattr(layer, "stride", 1)))) > 1}
    unequal = set() if len(unequal) == len(picked) else unequal  # the layer's own error says what is wrong
    left = {name: "its strides differ" for name in unequal}
    if warns:
        left |= {name: "" for name, module in network.named_modules() if isinstance(module, NO_SOFT_FORM)}
    modules = dict(network.named_modules())
    words = [f"{name}, {type(modules[name]).__name__}{why and f' ({why})'}" for name, why in left.items()]
    if words:
        warn_once(f"relax_network leaves layers that have no soft form as they are: {'; '.join(words)}")
    return {name: layer for name, layer in picked.items() if name not in unequal}


def harden_network(network: nn.Module, subgroups: str | Collection[str] = ()) -> nn.Module:
    """Return a copy of a network in which every relaxed layer is its strict part PK, the nearest strict layer.

    Where its strict part is in the steerable basis, a layer is then that of ``relax=None``. A continuous one keeps its
    parameters and is ``hardened``, and so does one of ``escnn_relaxed.baselines``. The network is exactly equivariant
    (as far as its other modules are) and stays so in further training. With the default kernel it is the network at
    ω′ = 0, with a ``ContinuousKernel`` it is not. Batch norm keeps the statistics of the soft network: estimate them
    again (``torch.optim.swa_utils.update_bn``), or train further. A reference field becomes 0. That of
    :func:`relax_network` is taken out, and so is one in a sequence before a layer that is strict now.

    Args:
        network: any module, a single layer too.
        subgroups: only this or these of ``"rotation"``, ``"reflection"``, ``"translation"``, ``"group"``; all by
            default. Layers then keep their soft parts in the others.

    Raises:
        TypeError: for a network that is no module, or subgroups that are no names.
        ValueError: for a name that is not of a subgroup, or a network without a relaxed layer.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25}, initial_softness=0.1)
        >>> layer.softness().item() > 0.05, harden_network(layer).softness().item()
        (True, 0.0)
    """
    relaxed_layers(network)
    names = check_subgroups(subgroups)
    hardened = copy_network(network)
    for layer in relaxed_layers(hardened).values():
        layer.harden(*names)
        layer.drop_soft_part()
    return without_references(hardened)


def _can_be_relaxed(module: nn.Module, softening: SoftnessOptions) -> TypeGuard[StrictLayer]:
    """Return whether a module is an escnn layer, or a strict one with its weights, that can be relaxed."""
    if isinstance(module, NO_SOFT_FORM):
        return False
    if isinstance(module, Linear) and softening.get("relax") and not _without_translation(softening["relax"]):
        return False
    if isinstance(module, RelaxedLayer):
        is_strict = not module.relaxable_subgroups and module.basisexpansion is not None
        # Layers of `baselines` stay as they are, strict ones too.
        return isinstance(module, Relaxed) and is_strict and not module.relaxed_by
    return isinstance(module, tuple(RELAXED_FORMS))


def _without_translation(relax: Any) -> Any:
    """Return the argument ``relax`` for features without positions."""
    relax = (relax,) if relax == "translation" else relax
    if isinstance(relax, Mapping):
        return {name: value for name, value in relax.items() if name != "translation"}
    is_of_names = isinstance(relax, Collection) and not isinstance(relax, str)
    return tuple(name for name in relax if name != "translation") if is_of_names else relax


# The parameters, buffers and modules of a layer of escnn's or of this package.
_OF_ESCNN = {"weights", "bias", "filter", "matrix", "expanded_bias", "bias_expansion", "_basisexpansion", "kernel"}
_OF_ESCNN |= {"_basissampler", "aggr_module"}


# The other attributes that these layers are built with.
_OF_BUILT = {"in_type", "out_type", "space", "d", "kernel_size", "stride", "padding", "output_padding", "padding_mode"}
_OF_BUILT |= {"dilation", "groups", "geometry", "hardened", "_hardened", "gates", "_memo", "_sigma", "_rings"}
_OF_BUILT |= {"_maximum_frequency", "_reversed_padding_repeated_twice", *vars(nn.Module())}


def own_attributes(layer: nn.Module) -> dict[str, Any]:
    """Return the attributes that a user has set on a layer, except tensors, modules and methods."""
    known = _OF_BUILT | _OF_ESCNN | attributes_of_message_passing()
    return {name: value for name, value in vars(layer).items() if name not in known}


def _check_names(name: str, attributes: Mapping[str, Any], kind: type[nn.Module]) -> None:
    """Raise a ``ValueError`` for user attributes whose names clash with those of a relaxed layer."""
    if taken := sorted(attribute for attribute in attributes if hasattr(kind, attribute)):
        raise ValueError(
            f"{name} has attributes that were set on it, {', '.join(taken)}, and a {kind.__name__} has others with "
            f"these names: rename them, or leave the layer out by `where`"
        )


def _check_plain(name: str, module: StrictLayer) -> None:
    """Raise a ``ValueError`` for a layer with behaviour beyond its kernel and bias."""
    if parametrize.is_parametrized(module):
        parametrized: Any = module.parametrizations
        raise ValueError(
            f"{name} has parametrized {list(parametrized)}, which would be lost: make them plain with "
            f"torch.nn.utils.parametrize.remove_parametrizations, or leave the layer out by `where`"
        )
    kind = next(kind for kind in (*RELAXED_FORMS.values(), *RELAXED_FORMS) if isinstance(module, kind))
    # Methods and properties that a subclass adds or overrides.
    own = [item for each in type(module).__mro__ if each not in kind.__mro__ for item in vars(each).items()]
    names = {name for name, value in own if callable(value) or hasattr(value, "__get__")}
    tensors = {**module._parameters, **module._buffers, **module._modules}.keys() - _OF_ESCNN
    replaced = {name for name in vars(module) if inspect.isroutine(getattr(type(module), name, None))}
    if own_names := sorted((names | tensors | replaced) - {"__init__"}):
        raise ValueError(
            f"{name}, a {type(module).__name__}, has more than its class, {', '.join(own_names)}, which would be lost: "
            f"put a {kind.__name__} with its state in its place, or leave it out with "
            f"where=lambda name, layer: type(layer) is {kind.__name__}"
        )
    remedy = "remove them and register them on the relaxed layer, or leave the layer out by `where`"
    check_no_hooks(name, module, remedy)


def _relaxed(
    name: str, strict: Any, parameters: dict[int, nn.Parameter], radius: float | None, softening: SoftnessOptions
) -> Relaxed:
    """Return a relaxed layer with the weights of a trained strict one; its soft part is 0 unless given."""
    arguments: dict[str, Any] = {"bias": strict.bias is not None, **softening}
    # The strict layers of this package are instances of escnn's classes, too.
    if isinstance(strict, tuple(POINT_CONVOLUTIONS.values())):
        arguments |= {**basis_arguments(strict), "domain_radius": radius}
    else:
        arguments |= geometry_of(strict)
    if isinstance(strict, Linear) and "relax" in arguments:
        arguments["relax"] = _without_translation(arguments["relax"])
    softness = check_softness(arguments.pop("initial_softness", None) or 0.0)
    build: Any = relaxed_form(strict)
    try:
        layer = build(strict.in_type, strict.out_type, **arguments).to(strict.weights)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; `where` can leave the layer out") from error
    layer.take_strict_part(strict, parameters, softness)
    return layer.train(strict.training)
