"""Low precision: under autocast the convolution alone, its filter bank and gradients in full; norms of half layers."""

from __future__ import annotations

import battery
import pytest
import torch
from escnn.nn import EquivariantModule, FieldType, InnerBatchNorm, R2Conv, ReLU, SequentialModule
from forms import EVERY_FORM, SOFT_IN_TRANSLATION, answer, features_of, layer_of, loss_and_gradients
from soft_networks import soft_regular_layer
from torch import Tensor
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv, equivariance_penalty

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


def _assert_autocast_leaves_softness_alone(layer: RelaxedR2Conv) -> None:
    answer(layer)  # whatever a forward pass keeps for later
    expected = [layer.softness(), *(equivariance_penalty(layer, kind) for kind in ("softness", "frequency"))]
    with torch.autocast("cpu", torch.bfloat16):
        answer(layer)
        found = [layer.softness(), *(equivariance_penalty(layer, kind) for kind in ("softness", "frequency"))]
    assert all(value.dtype == torch.float32 for value in found)
    assert torch.equal(torch.stack(found), torch.stack(expected))


@EVERY_FORM
def test_autocast_leaves_softness_and_penalties_alone(form: str) -> None:
    """They are small differences of large numbers."""
    _assert_autocast_leaves_softness_alone(layer_of(form, torch.float32))


@pytest.mark.parametrize("space", ["C4", "D4", "C8"])
def test_autocast_leaves_the_softness_of_a_strict_layer_at_zero(space: str) -> None:
    relax = battery.subgroups(space, 0.2)
    layer = soft_regular_layer("continuous", space, relax, learn_relaxation=True, initial_softness=0.3).float()
    layer.set_domain_frequency(**dict.fromkeys(relax, 0.0))
    _assert_autocast_leaves_softness_alone(layer)
    with torch.autocast("cpu", torch.bfloat16):
        assert equivariance_penalty(layer).item() == 0


DEPTH = 10


def _deep(make: type[EquivariantModule], image: FieldType, fields: FieldType, **arguments: object) -> SequentialModule:
    """Ten layers from images to fields, the same weights for each class."""
    torch.manual_seed(2)
    layers: list[EquivariantModule] = []
    for depth in range(DEPTH):
        layer = make(fields if depth else image, fields, 3, padding=1, **arguments)
        layers += [layer, InnerBatchNorm(fields), ReLU(fields)]
    return SequentialModule(*layers)


def test_autocast_of_a_deep_network_errs_no_more_than_that_of_r2conv() -> None:
    """With equal weights: R2Conv's filter is rounded where it is computed, ours once."""
    image, fields = battery.types("D4", "trivial -> two regular")
    plain = _deep(R2Conv, image, fields)
    strict, soft = (_deep(RelaxedR2Conv, image, fields, **of) for of in ({"relax": None}, {"initial_softness": 0.1}))
    strict.load_state_dict(plain.state_dict())
    weights = {name: value for name, value in plain.named_parameters() if name.endswith("weights")}
    with torch.no_grad():
        for name, parameter in soft.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    features = features_of(plain, side=16, batch=4)
    errors = []
    for network in (plain, strict, soft):
        expected = answer(network, features)
        with torch.autocast("cpu", torch.bfloat16):
            errors.append(relative_error(answer(network, features).float(), expected))
    # Roundings of ten layers add up at random: found 0.013 to 0.017 of R2Conv, 0.010 to 0.016 of ours.
    assert max(errors[1:]) <= 1.25 * errors[0]
    assert errors[0] <= DEPTH * PRECISIONS[torch.bfloat16]
