"""``layer.export()``: the same numbers from plain PyTorch; of every form in test_every_form."""

from __future__ import annotations

import pytest
import small
import torch
from errors import ROUNDING, SINGLE, relative_error
from escnn.nn import R2Conv
from small import EVERY_KIND, build, shake
from small_networks import EVERY_MODE
from torch import nn

from escnn_relaxed import RelaxedR2Conv, export_network

BOTH = {"rotation": 0.2, "translation": (0.2, 0.4)}

GEOMETRIES = {
    "plain": {},
    "replicate": {"padding": (1, 3), "padding_mode": "replicate"},
    "circular": {"kernel_size": 4, "padding": (2, 1), "padding_mode": "circular"},
    "groups": {"groups": 2, "padding": (1, 2)},
    "no bias": {"bias": False, "dilation": 2, "padding": 2},
    "kernel 1": {"kernel_size": 1},
    "all at once": {"kernel_size": 2, "padding": (1, 2), "padding_mode": "reflect", "stride": 2, "groups": 2},
}


def error_of_export(layer: RelaxedR2Conv | R2Conv, exported: nn.Module, *size: int) -> float:
    """Relative, in eval mode."""
    features = small.random_input(layer.in_type, *size, dtype=next(layer.parameters()).dtype)
    with torch.no_grad():
        expected = layer.eval()(layer.in_type(features)).tensor
        found = exported(features)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    return relative_error(found, expected)


@EVERY_KIND
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_exported_layer_computes_the_same_whatever_the_convolution(geometry: str, kind: str) -> None:
    # Irreps alone are not soft in 1×1 kernels.
    in_type, out_type = small.types("C4", "regular + regular -> irreps + regular + irreps + regular")
    arguments = {"kernel_size": 3, "soft_part": "tied", "initial_softness": 0.3, **GEOMETRIES[geometry]}
    relax = BOTH if kind == "in translation" else {"rotation": 0.2}
    layer = build(in_type, out_type, relax=relax, **arguments)
    exported = layer.export()
    assert type(exported).__name__ == ("FactoredConvolution" if kind == "in translation" else "Conv2d")
    for size in ((7, 7), (8, 5), (4, 13)):
        assert error_of_export(layer, exported, *size) <= ROUNDING
    assert error_of_export(layer.float(), layer.export(), 13, 12) <= SINGLE


@pytest.mark.parametrize("geometry", [name for name in GEOMETRIES if name != "all at once"])
@EVERY_MODE
def test_r2conv_is_exported_with_its_padding_mode_and_in_memory_of_its_own(geometry: str, mode: str) -> None:
    in_type, out_type = small.types("C4", "regular + regular -> irreps + irreps")
    layer = R2Conv(in_type, out_type, **{"kernel_size": 3, **GEOMETRIES[geometry]})
    shake(layer)
    layer.train(mode == "train")
    exported = export_network(layer)
    assert layer.training == (mode == "train")
    assert error_of_export(layer, exported, 7, 8) <= SINGLE
    with torch.no_grad():
        exported.weight.zero_()
    assert error_of_export(layer, export_network(layer), 7, 8) <= SINGLE
