"""The way back to escnn: a hardened network whose layers are escnn's own."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import SUBGROUPS, check_no_hooks
from ..layer.arguments import check_keywords
from ..layer.convolution import RelaxedConvolution
from ..on_escnn.sampled_basis import as_escnn_builds
from .relaxed_layers import RELAXED_FORMS, copied_parameters, copy_network, relaxed_layers

__all__ = ["to_escnn"]

# escnn's layer with the weights of each layer of this package.
_ESCNN_FORMS: dict[type[nn.Module], Any] = {relaxed: strict for strict, relaxed in RELAXED_FORMS.items()}
_PLACE = ("kernel_size", "padding", "output_padding", "stride", "dilation", "padding_mode", "groups")
# Arguments of ``R2Conv`` that shape its basis.
_BASIS = ("sigma", "frequencies_cutoff", "rings", "maximum_offset", "basis_filter")
# In float32 two samples of the same basis differ by less than this, samples of two bases by more.
_SAME_BASIS = 1e-4


@torch.no_grad()
def to_escnn(network: nn.Module, **basis: Any) -> nn.Module:
    """Return a copy of a hardened network in which escnn's own layers hold the weights and biases.

    It computes what the network computed, in training and in eval mode. Its state dict loads into the network that
    escnn's code builds with ``R2Conv`` in the same places, as built or in eval mode, and needs nothing of this package.

    Args:
        network: any module, a single layer too, of :func:`~escnn_relaxed.harden_network` or of layers with
            ``relax=None``. Weights that layers share stay shared.
        **basis: ``sigma``, ``frequencies_cutoff``, ``rings``, ``maximum_offset`` and ``basis_filter`` of layers that
            were not built with ``R2Conv``'s default; escnn keeps them in no layer. Those of the default need none.

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
    return copy_network(network, {**strict, **parameters})


def _check_is_hardened(name: str, layer: RelaxedConvolution) -> None:
    """Refuse a layer that escnn's layers cannot represent."""
    if type(layer) not in _ESCNN_FORMS:
        forms = ", ".join(kind.__name__ for kind in _ESCNN_FORMS)
        raise ValueError(f"{name} is a {type(layer).__name__}, which has no form in escnn: make it one of {forms}")
    if layer.kernel.basis is None:
        raise ValueError(f"{name} has a continuous kernel, which has no weights in escnn's basis")
    if layer.relaxed_subgroups and layer.hardened != SUBGROUPS:
        raise ValueError(f"{name} is not hardened, and escnn has no soft layer: harden_network makes it strict")
    check_no_hooks(name, layer, "remove them, and register them on the result")


def _as_escnn(name: str, layer: Any, parameters: dict[int, nn.Parameter], basis: Mapping[str, Any]) -> nn.Module:
    """Return escnn's layer with the parameters of a layer, and with its basis in its precision."""
    built = _with_the_same_basis(layer, basis)
    if built is None:
        given = ", ".join(f"{key}={value!r}" for key, value in basis.items()) or "its default arguments"
        raise ValueError(
            f"{name} has another basis than escnn's with {given}: give what it was built with, of {', '.join(_BASIS)}"
        )
    # escnn shares bases between layers: a cast of this one must not change the others.
    strict = copy.deepcopy(built).to(layer.weights)
    for block, values in _bases(strict, layer):
        block.sampled_basis.copy_(values)
    strict.weights = parameters[id(layer.weights)]
    if layer.bias is not None:
        strict.bias = parameters[id(layer.bias)]
        strict.bias_expansion.copy_(layer.bias_expansion.expansion)
    # escnn builds these buffers when the mode changes; its state dict holds them in either mode.
    filter_bank, bias = strict.expand_parameters()
    strict.filter.copy_(filter_bank)
    if bias is not None:
        strict.expanded_bias.copy_(bias)
    nn.Module.train(strict, layer.training)
    return strict


def _with_the_same_basis(layer: Any, basis: Mapping[str, Any]) -> Any:
    """Return escnn's layer with the basis of a layer: by default arguments, else by those given, else None."""
    form = _ESCNN_FORMS[type(layer)]
    taken = inspect.signature(form).parameters
    place = {name: getattr(layer, name) for name in _PLACE if name in taken}
    place |= {"padding": layer.padding, "bias": layer.bias is not None, "initialize": False}
    for arguments in ({}, {name: value for name, value in basis.items() if name in taken}):
        try:
            with as_escnn_builds():
                built = form(layer.in_type, layer.out_type, **place, **arguments)
        except ValueError as error:
            if "basis for the steerable filter is empty" not in str(error):
                raise
            continue
        if built.basisexpansion._weights_ranges == layer.basisexpansion._weights_ranges and all(
            torch.allclose(block.sampled_basis.to(values), values, rtol=0, atol=_SAME_BASIS)
            for block, values in _bases(built, layer)
        ):
            return built
    return None


def _bases(strict: Any, layer: Any) -> Iterator[tuple[Any, Tensor]]:
    """Yield escnn's block for each pair of representations, with the layer's own basis of that pair."""
    expansion = strict.basisexpansion
    for pair, _, basis in layer.kernel.basis.by_pair():
        yield getattr(expansion, f"block_expansion_{expansion._escape_pair(pair)}"), basis
