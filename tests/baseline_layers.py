"""The other ways to relax as the tests want them: float64, every weight away from its start, relaxed well."""

from __future__ import annotations

import battery
import pytest
import torch
from layers import shake
from torch import Tensor

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
from escnn_relaxed.baselines import LAYERS, WeightedR2Conv
from escnn_relaxed.layer.convolution import RelaxedConvolution

WAYS = tuple(name for name in LAYERS if name != "relaxed")
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
EVERY_STRICT_KERNEL = pytest.mark.parametrize(
    "kernel", [None, ContinuousKernel(hidden_size=2)], ids=["steerable", "continuous"]
)
SOFTNESS = 0.2


def baseline(
    way: str, space: str, pair: str, kernel_size: int = 3, padding: int = 1, **arguments: object
) -> RelaxedConvolution:
    """A layer on the torus."""
    arguments = {"padding_mode": "circular", "initial_softness": SOFTNESS, **arguments}
    layer = LAYERS[way](*battery.types(space, pair), kernel_size, padding, **arguments).double()
    shake(layer)
    return layer


def strict_weights(layer: RelaxedConvolution) -> list[Tensor]:
    """Those of the kernels that the layer relaxes."""
    return [layer.weights, *getattr(layer.kernel, "further_weights", ())]


def strict_banks(layer: RelaxedConvolution) -> list[Tensor]:
    """The kernels that the layer relaxes."""
    return [layer.kernel.strict(weights) for weights in strict_weights(layer)]


@torch.no_grad()
def set_group_weights(layer: WeightedR2Conv, weights: Tensor) -> None:
    """Set the weights of all elements, (L, M)."""
    layer.kernel.means.copy_(weights.mean(1))
    layer.kernel.deviations.copy_(weights @ layer.kernel.elements.averaged("contrasts").mT)


def strict_layer(layer: RelaxedConvolution, **arguments: object) -> RelaxedR2Conv:
    """The layer of which nothing is relaxed, with the same place and of the same dtype."""
    geometry = layer.geometry
    return RelaxedR2Conv(
        layer.in_type,
        layer.out_type,
        geometry.kernel_size,
        geometry.padding,
        geometry.stride,
        geometry.dilation,
        geometry.padding_mode,
        geometry.groups,
        relax=None,
        **arguments,
    ).double()
