"""Low precision: under autocast the convolution alone, its filter bank and gradients in full; norms of half layers."""

from __future__ import annotations

import copy

import battery
import pytest
import torch
from escnn.nn import R2Conv
from forms import EVERY_FORM, SOFT_IN_TRANSLATION, answer, features_of, layer_of, loss_and_gradients
from soft_networks import soft_regular_layer
from torch import Tensor
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.measure import equivariance_error_bound, soft_part_norm

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
    # Of a square: the error of the answer, and as much of the gradient itself. All parameters in one vector, since
    # what is small beside the others is a difference of what is not.
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

    monkeypatch.setattr(layer, "_one_bank", recorded(layer._one_bank))
    if layer.bank is not None:
        monkeypatch.setattr(layer.bank, "at_regions", recorded(layer.bank.at_regions))
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("relax", [{"rotation": 0.3}, {"rotation": 0.3, "translation": 0.4}])
def test_bounds_in_half_precision_are_those_of_single(relax: dict[str, float], dtype: torch.dtype) -> None:
    layer = soft_regular_layer(relax=relax).float().eval()
    features = 60 * torch.ones(2, 4, 64, 64)  # of norm 7,680, and of sums of squares beyond float16
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(parameter.to(dtype))
    expected = soft_part_norm(layer, (9, 9)), equivariance_error_bound(layer, layer.in_type(features))[-1].error
    half = copy.deepcopy(layer).to(dtype)
    assert soft_part_norm(half, (9, 9)) == pytest.approx(expected[0], rel=2e-2)  # bases are rounded, too
    found = equivariance_error_bound(half, half.in_type(features.to(dtype)))[-1].error
    assert found == pytest.approx(expected[1], rel=2e-2)
