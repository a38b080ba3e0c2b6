"""The other ways to relax as the tests want them: float64, every weight away from its start, relaxed well."""

from __future__ import annotations

import battery
import pytest
from layers import shake

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.baselines import LAYERS
from escnn_relaxed.baselines.strict_kernel import BaselineConvolution, StrictKernel

WAYS = tuple(name for name in LAYERS if name != "relaxed")
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
SOFTNESS = 0.2


def baseline(
    way: str, space: str, pair: str, kernel_size: int = 3, padding: int = 1, **arguments: object
) -> BaselineConvolution:
    """A layer on the torus."""
    arguments = {"padding_mode": "circular", "initial_softness": SOFTNESS, **arguments}
    layer = LAYERS[way](*battery.types(space, pair), kernel_size, padding, **arguments).double()
    shake(layer)
    return layer


def strict_kernels(layer: BaselineConvolution) -> list[StrictKernel]:
    """Those that the layer relaxes."""
    return [module for module in layer.modules() if isinstance(module, StrictKernel)]


def strict_layer(layer: BaselineConvolution, **arguments: object) -> RelaxedR2Conv:
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
