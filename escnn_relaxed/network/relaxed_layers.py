"""Lists of the relaxed and the strict layers of a network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from escnn.nn import Linear, R2Conv, R2ConvTransposed, R3Conv, R3ConvTransposed
from torch import Tensor, nn

from ..checks import check_module
from ..layer.convolution import RelaxedConvolution

__all__ = ["WITH_RELAXED_FORM", "frequency_energy", "named_relaxed_layers", "relaxed_layers", "strict_layers"]

# escnn's linear maps with weights. Layers of this package take the place of the first three.
WITH_RELAXED_FORM = R2Conv, R2ConvTransposed, R3Conv
_LINEAR = *WITH_RELAXED_FORM, Linear, R3ConvTransposed


def named_relaxed_layers(network: nn.Module) -> Iterator[tuple[str, RelaxedConvolution]]:
    """Yield the name and the layer of every layer of this package in a network."""
    for name, module in network.named_modules():
        if isinstance(module, RelaxedConvolution):
            yield name, module


def relaxed_layers(network: nn.Module) -> dict[str, RelaxedConvolution]:
    """Return every layer of this package in a network by its name.

    Raises:
        TypeError: for a network that is no module.
        ValueError: for a network without one.
    """
    layers = dict(named_relaxed_layers(check_module("network", network)))
    if not layers:
        raise ValueError(
            "network has no relaxed layer: relax_network makes them of escnn.nn.R2Conv, R2ConvTransposed and R3Conv"
        )
    return layers


def strict_layers(network: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the names of escnn's linear maps, which nothing relaxes, by their class."""
    named = [(name or "network", module) for name, module in network.named_modules()]
    found = {kind.__name__: tuple(name for name, module in named if isinstance(module, kind)) for kind in _LINEAR}
    return {kind: names for kind, names in found.items() if names}


def frequency_energy(layers: Iterable[RelaxedConvolution]) -> Tensor:
    """Return Σ‖ω′‖² over layers; a layer without an ω′ counts 0."""
    terms = [value.square().sum() for layer in layers for value in layer.domain_frequency.values()]
    return torch.stack(terms).sum() if terms else torch.zeros(())
