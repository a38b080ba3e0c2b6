"""Hands a strict network back to escnn."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from escnn.nn import Linear
from torch import Tensor, nn

from ..checks import check_no_hooks
from ..layer.arguments import check_keywords
from ..layer.reference_field import ReferenceField
from ..layer.relaxed_point_conv import PointConvolution
from ..layer.state_dict import change_of_basis
from ..on_escnn.sampled_basis import as_escnn_builds
from .conversion import own_attributes
from .point_convolutions import as_escnn_points
from .relaxed_layers import RELAXED_FORMS, copied_parameters, copy_network, relaxed_layers

# escnn's layer with the weights of each layer of this package.
_ESCNN_FORMS: dict[type[nn.Module], Any] = {relaxed: strict for strict, relaxed in RELAXED_FORMS.items()}
_GEOMETRY = ("kernel_size", "padding", "output_padding", "stride", "dilation", "padding_mode", "groups")
# Arguments of ``R2Conv`` that shape its basis.
_BASIS = ("sigma", "frequencies_cutoff", "rings", "maximum_offset", "basis_filter")
# In float32 two samples of the same basis differ by less than this, samples of two bases by more.
_SAME_BASIS = 1e-4


@torch.no_grad()
def to_escnn(network: nn.Module, **basis: Any) -> nn.Module:
    """Return a copy of a hardened network in which escnn's own layers hold the weights and biases.

    It computes what the network computed, in training and in eval mode, and needs nothing of this package. Its state
    dict loads into the network that escnn's code builds with ``R2Conv`` in the same places, as built or in eval mode.

    Args:
        network: any module, a single layer too, of :func:`~escnn_relaxed.harden_network` or of layers with
            ``relax=None``. Weights that layers share stay shared.
        **basis: ``sigma``, ``frequencies_cutoff``, ``rings``, ``maximum_offset`` and ``basis_filter`` of layers that
            were not built with ``R2Conv``'s defaults, since escnn keeps them in no layer.

    Raises:
        TypeError: for a network that is no module, or another keyword.
        ValueError: for a network without a layer of this package, or with one that ``R2Conv`` cannot be: it is not
            hardened, its strict part is no ``R2Conv``, or its basis has other arguments.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv, harden_network
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> soft = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3), nn.ReLU(fields))
        >>> strict = to_escnn(harden_network(soft))
        >>> fresh = nn.SequentialModule(nn.R2Conv(fields, fields, 3), nn.ReLU(fields))
        >>> fresh.load_state_dict(strict.state_dict())
        <All keys matched successfully>
    """
    check_keywords("to_escnn", basis, _BASIS, "beside network")
    layers = {name or "network": layer for name, layer in relaxed_layers(network).items()}
    for name, layer in layers.items():
        _check_is_hardened(name, layer)
    parameters = copied_parameters(layers.values())
    strict = {id(layer): _as_escnn(name, layer, parameters, basis) for name, layer in layers.items()}
    attributes = [(strict[id(layer)], own_attributes(layer)) for layer in layers.values()]
    return copy_network(network, {**strict, **parameters}, attributes)


def _check_is_hardened(name: str, layer: Any) -> None:
    """Raise a ``ValueError`` for a layer that escnn's layers cannot represent."""
    if isinstance(layer, ReferenceField):
        raise ValueError(
            f"{name} is a reference field, for which escnn has no layer: harden_network takes out one that is 0"
        )
    if type(layer) not in _ESCNN_FORMS:
        forms = ", ".join(kind.__name__ for kind in _ESCNN_FORMS)
        raise ValueError(f"{name} is a {type(layer).__name__}, which has no form in escnn: make it one of {forms}")
    if layer.expands_itself:
        raise ValueError(f"{name} has an expand_parameters of its own, which escnn's layer does not have")
    if layer.basisexpansion is None:
        raise ValueError(f"{name} has a continuous kernel, which has no weights in escnn's basis")
    if layer.relaxed_subgroups and not layer.is_hardened:
        raise ValueError(f"{name} is not hardened, and escnn has no soft layer: harden_network makes it strict")
    check_no_hooks(name, layer, "remove them, and register them on the result")


def _as_escnn(name: str, layer: Any, parameters: dict[int, nn.Parameter], basis: Mapping[str, Any]) -> nn.Module:
    """Return escnn's layer with the parameters, basis and precision of a layer."""
    if isinstance(layer, PointConvolution):
        return as_escnn_points(layer, parameters)
    built = _with_the_same_basis(name, layer, basis)
    strict = built.to(layer.weights)
    for block, values in _bases(strict, layer):
        block.sampled_basis.copy_(values)
    strict.weights = parameters[id(layer.weights)]
    if layer.bias is not None:
        strict.bias = parameters[id(layer.bias)]
        strict.bias_expansion.copy_(layer.bias_expansion.expansion)
    # escnn builds these buffers when the mode changes; its state dict holds them in either mode.
    filter_bank, bias = strict.expand_parameters()
    (strict.matrix if isinstance(strict, Linear) else strict.filter).copy_(filter_bank)
    if bias is not None and (not layer.training or bias.shape == strict.expanded_bias.shape):
        # Of a transposed layer with groups escnn's buffer has a group's size as built, and its right size in eval mode.
        strict.expanded_bias = bias
    nn.Module.train(strict, layer.training)
    return strict


def _with_the_same_basis(name: str, layer: Any, basis: Mapping[str, Any]) -> Any:
    """Return escnn's layer with the basis of a layer, built with default arguments or else with those given."""
    build = _ESCNN_FORMS[type(layer)]
    known = inspect.signature(build).parameters
    arguments = {name: getattr(layer, name) for name in _GEOMETRY if name in known}
    # Of a basis of its own, since a network may have loaded another one into that which layers share.
    arguments |= {"bias": layer.bias is not None, "initialize": False, "recompute": True}
    mismatch = "an empty basis"
    for given in ({}, {key: value for key, value in basis.items() if key in known}):
        try:
            with as_escnn_builds():
                built = build(layer.in_type, layer.out_type, **arguments, **given)
        except ValueError as error:
            if "basis for the steerable filter is empty" not in str(error):
                raise
            continue
        if built.basisexpansion._weights_ranges == layer.basisexpansion._weights_ranges and all(
            _holds_the_same_kernels(block.sampled_basis.to(values).flatten(1), values.flatten(1))
            for block, values in _bases(built, layer)
        ):
            return built
        mismatch = "another basis"
    words = ", ".join(f"{key}={value!r}" for key, value in basis.items()) or "its default arguments"
    ring = "" if layer.kernel_size != 2 else f" (rings=[{0.707 * layer.dilation:g}] and a cutoff of 1.0 in the plane)"
    raise ValueError(
        f"{name}: escnn's {build.__name__} has {mismatch} with {words}: give what {name} was built with, of "
        f"{', '.join(_BASIS)}{ring}"
    )


def _holds_the_same_kernels(built: Tensor, own: Tensor) -> bool:
    """Return whether two bases are equal or span the same kernels."""
    if built.shape != own.shape:
        return False
    return bool((built - own).abs().max() < _SAME_BASIS) or change_of_basis(own, built) is not None


def _bases(strict: Any, layer: Any) -> Iterator[tuple[Any, Tensor]]:
    """Yield escnn's block for each pair of representations, with the layer's own basis of that pair."""
    expansion = strict.basisexpansion
    for pair, _, basis in layer.basisexpansion.by_pair():
        yield getattr(expansion, f"block_expansion_{expansion._escape_pair(pair)}"), basis
