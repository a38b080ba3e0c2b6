"""The relaxed layers of a network, and the size of their ω′."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ..checks import check_module
from ..layer.planar_convolution import PlanarConvolution

__all__ = ["frequency_energy", "named_relaxed_layers", "relaxed_layers"]


def named_relaxed_layers(network: nn.Module) -> Iterator[tuple[str, PlanarConvolution]]:
    """Name and layer of every relaxed layer of a network, in its order; whatever relaxes it."""
    for name, module in network.named_modules():
        if isinstance(module, PlanarConvolution):
            yield name, module


def relaxed_layers(network: nn.Module) -> dict[str, PlanarConvolution]:
    """Every relaxed layer of a network by its name.

    Raises:
        TypeError: for what is no module.
        ValueError: for a network without one.
    """
    layers = dict(named_relaxed_layers(check_module("network", network)))
    if not layers:
        raise ValueError("network has no relaxed layer: relax_network makes them of escnn.nn.R2Conv")
    return layers


def frequency_energy(layers: Iterable[PlanarConvolution]) -> Tensor:
    """Σ‖ω′‖² over layers; those without an ω′ count 0."""
    terms = [value.square().sum() for layer in layers for value in layer.domain_frequency.values()]
    return torch.stack(terms).sum() if terms else torch.zeros(())
