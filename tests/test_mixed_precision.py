"""Low precision: under autocast the convolution alone, its filter bank and gradients in full; norms of half layers."""

from __future__ import annotations

import battery
import pytest
import torch
from escnn.nn import R2Conv
from forms import EVERY_FORM, SOFT_IN_TRANSLATION, answer, features_of, layer_of, loss_and_gradients
from torch import Tensor
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv

# Input, filter bank and output are rounded once each, with a kernel for every pixel sums once a tap: some units of the
# last place, 2^-9 and 2^-12.
PRECISIONS = {torch.bfloat16: 2**-7, torch.float16: 2**-10}
EVERY_PRECISION = pytest.mark.parametrize("dtype", PRECISIONS)


@EVERY_PRECISION
@EVERY_FORM
def test_autocast_rounds_the_convolution_alone(form: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of(form, torch.float32)
    if layer.random_offset:
        layer.eval()
    features = features_of(layer)
    expected, gradients = answer(layer, features), loss_and_gradients(layer, features)
    banks = banks_of(layer, monkeypatch)
    with torch.autocast("cpu", dtype):
        found = layer(layer.in_type(features)).tensor
        found_gradients = loss_and_gradients(layer, features)
    assert banks
    assert all(bank.dtype == torch.float32 for bank in banks)
    assert found.dtype == dtype
    assert relative_error(found.detach().float(), expected) <= PRECISIONS[dtype]
    assert all(gradient.dtype == torch.float32 for gradient in found_gradients)
    # The gradient of a square has the error of the output, and as much of its own. All parameters are in one vector,
    # since the gradients that are small beside the others are differences of larger ones.
    for part in (slice(0, 1), slice(1, 2), slice(2, None)):
        a, b = (torch.cat([value.flatten() for value in values[part]]) for values in (found_gradients, gradients))
        assert relative_error(a, b) <= 4 * PRECISIONS[dtype]


def banks_of(layer: RelaxedR2Conv, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every filter bank that the layer builds from now on: one, those of regions, or of pixels tap by tap."""
    banks: list[Tensor] = []

    def recorded(build):
        def record(*arguments: object) -> Tensor:
            banks.append(build(*arguments))
            return banks[-1]

        return record

    monkeypatch.setattr(layer, "_kernel", recorded(layer._kernel))
    if layer.bank is not None:
        monkeypatch.setattr(layer.bank, "forward", recorded(layer.bank.forward))
        monkeypatch.setattr(layer.bank, "at_pixels", recorded(layer.bank.at_pixels))
    return banks


@EVERY_PRECISION
@pytest.mark.parametrize("form", SOFT_IN_TRANSLATION)
def test_autocast_rounds_the_convolution_alone_in_exported_layers(form: str, dtype: torch.dtype) -> None:
    layer = layer_of(form, torch.float32)
    exported, features = layer.export(), features_of(layer)
    expected = answer(layer.eval(), features)
    with torch.autocast("cpu", dtype):
        found = exported(features)
    assert found.dtype == dtype
    assert relative_error(found.detach().float(), expected) <= PRECISIONS[dtype]


def test_r2conv_rounds_its_filter_too() -> None:
    in_type, out_type = battery.types("C4", "regular -> regular")
    with torch.autocast("cpu", torch.bfloat16):
        assert R2Conv(in_type, out_type, 3).expand_parameters()[0].dtype == torch.bfloat16
