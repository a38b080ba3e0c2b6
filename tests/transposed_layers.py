"""Transposed layers as their tests want them: small, soft, and with each argument of a transposed convolution."""

from __future__ import annotations

import battery
import pytest
from layers import ROUGH, build

from escnn_relaxed import RelaxedR2ConvTransposed

GEOMETRIES = {
    "plain": {},
    "padding pair": {"padding": (1, 0)},
    "stride": {"padding": 1, "stride": 2},
    "output padding": {"padding": 1, "stride": 2, "output_padding": 1},
    "output padding pair": {"padding": (0, 1), "stride": 3, "output_padding": (2, 0), "kernel_size": 2},
    "dilation": {"padding": 2, "dilation": 2},
    "stride beyond the kernel": {"stride": 3, "kernel_size": 2},
    "groups": {"groups": 2},
    "no bias": {"bias": False},
    "everything": {"padding": (1, 2), "stride": 2, "output_padding": (1, 0), "dilation": 2, "groups": 2},
}
EACH_GEOMETRY = pytest.mark.parametrize("geometry", GEOMETRIES)


def soft_transposed_layer(space: str, pair: str, **arguments: object) -> RelaxedR2ConvTransposed:
    arguments = {"initial_softness": 0.3, "hidden_size": 4, "samples": 4, "filter_frequency": ROUGH, **arguments}
    return build(*battery.types(space, pair), make=RelaxedR2ConvTransposed, **arguments)
