"""The relaxed layers of a network, the size of their ω′, and the layers that are strict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from escnn.nn import Linear, R2Conv, R2ConvTransposed, R3Conv, R3ConvTransposed
from torch import Tensor, nn

from ..checks import check_module
from ..layer.convolution import Convolution

__all__ = ["WITH_RELAXED_FORM", "frequency_energy", "named_relaxed_layers", "relaxed_layers", "strict_layers"]

# escnn's linear maps with weights, those first that a layer of this package takes the place of.
WITH_RELAXED_FORM = R2Conv, R2ConvTransposed
_LINEAR = *WITH_RELAXED_FORM, Linear, R3Conv, R3ConvTransposed


def named_relaxed_layers(network: nn.Module) -> Iterator[tuple[str, Convolution]]:
    """Name and layer of every relaxed layer of a network, in its order; whatever relaxes it."""
    for name, module in network.named_modules():
        if isinstance(module, Convolution):
            yield name, module


def relaxed_layers(network: nn.Module) -> dict[str, Convolution]:
    """Every relaxed layer of a network by its name.

    Raises:
        TypeError: for what is no module.
        ValueError: for a network without one.
    """
    layers = dict(named_relaxed_layers(check_module("network", network)))
    if not layers:
        raise ValueError(
            "network has no relaxed layer: relax_network makes them of escnn.nn.R2Conv and R2ConvTransposed"
        )
    return layers


def strict_layers(network: nn.Module) -> dict[str, tuple[str, ...]]:
    """Names of escnn's linear maps by their kind: what nothing relaxes."""
    named = [(name or "network", module) for name, module in network.named_modules()]
    found = {kind.__name__: tuple(name for name, module in named if isinstance(module, kind)) for kind in _LINEAR}
    return {kind: names for kind, names in found.items() if names}


def frequency_energy(layers: Iterable[Convolution]) -> Tensor:
    """Σ‖ω′‖² over layers; those without an ω′ count 0."""
    terms = [value.square().sum() for layer in layers for value in layer.domain_frequency.values()]
    return torch.stack(terms).sum() if terms else torch.zeros(())
