"""Networks with transposed convolutions: relaxed, hardened, measured, regularised and exported as others are."""

from __future__ import annotations

import pytest
import small
import torch
from errors import SINGLE
from escnn import nn as enn
from small import shake
from torch import nn

from escnn_relaxed import (
    RelaxedR2Conv,
    RelaxedR2ConvTransposed,
    equivariance_error,
    export_network,
    relax_network,
    relaxation_summary,
)

SOFT = {"rotation": 0.2}


def up(space: str = "C4", pair: str = "regular -> regular", **arguments: object) -> enn.R2ConvTransposed:
    """A trained layer: weights and bias away from their start."""
    arguments = {"padding": 1, "stride": 2, "output_padding": 1, **arguments}
    layer = enn.R2ConvTransposed(*small.types(space, pair), 3, **arguments)
    shake(layer)
    return layer


def network() -> enn.SequentialModule:
    """Down by a stride and up again."""
    in_type, fields = small.types("C4", "trivial -> regular")
    down = enn.R2Conv(in_type, fields, 3, padding=1, stride=2)
    shake(down)
    ups = up(), up(pair="regular -> trivial")
    return enn.SequentialModule(down, enn.ReLU(fields), ups[0], enn.InnerBatchNorm(fields), ups[1])


def test_every_layer_is_relaxed_and_what_stays_strict_is_said() -> None:
    trained = network()
    relaxed = relax_network(trained, relax=SOFT)
    kinds = [type(relaxed[index]) for index in (0, 2, 4)]
    assert kinds == [RelaxedR2Conv, RelaxedR2ConvTransposed, RelaxedR2ConvTransposed]
    assert relaxation_summary(relaxed).strict == {}
    relaxed = relax_network(trained, lambda name, layer: isinstance(layer, enn.R2ConvTransposed), relax=SOFT)
    assert relaxation_summary(relaxed).strict == {"R2Conv": ("0",)}
    relaxed = relax_network(trained, lambda name, layer: name != "4", relax=SOFT)
    assert relaxation_summary(relaxed).strict == {"R2ConvTransposed": ("4",)}


@pytest.mark.parametrize("arguments", [{"padding": (1, 0), "output_padding": (0, 1)}, {"bias": False}])
def test_exported_layer_of_escnn_keeps_the_output_padding(arguments: dict[str, object]) -> None:
    """escnn's own export() drops it."""
    trained = up(**arguments).eval()
    plain = export_network(trained)
    assert type(plain) is nn.ConvTranspose2d
    features = small.random_input(trained.in_type, 5, 6, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(plain(features), trained(trained.in_type(features)).tensor)


@pytest.mark.parametrize("relaxed", [True, False], ids=["relaxed", "escnn's"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"padding": 0, "output_padding": 0},
        {"padding": 1, "output_padding": 0},
        {"padding": 2, "output_padding": 0, "stride": 1},
        {"padding": 1, "output_padding": 1, "dilation": 2},
    ],
)
def test_strict_layer_is_measured_as_strict(arguments: dict[str, object], relaxed: bool) -> None:
    """Under turns and shifts: none of what shifts push beyond the edge is compared with what comes in there."""
    layer = up(**arguments)
    layer = relax_network(layer, relax=None).eval() if relaxed else layer.eval()
    features = small.random_input(layer.in_type, 9, 9, dtype=torch.float32)
    report = equivariance_error(layer, data=features, shifts=[(1, 2)])
    errors = [row.error for row in report.exact]
    assert len(errors) == 4
    assert max(errors) <= SINGLE
