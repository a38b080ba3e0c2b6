"""The residual pathway: any kernel beside a strict one, and the prior on it."""

from __future__ import annotations

import battery
import pytest
import torch
from baseline_layers import baseline
from escnn import nn as enn
from forms import features_of
from tolerances import ROUNDING
from torch import nn
from transformations import largest_error, relative_error, shift_error

from escnn_relaxed.baselines import ResidualR2Conv, free_weight_penalty


@pytest.mark.parametrize("name", battery.GSPACES)
def test_layer_is_defined_for_every_symmetry_and_field(name: str) -> None:
    layer = baseline("residual", name, "mixed, sheared -> irreps", samples=8)
    features = features_of(layer, side=5)
    assert shift_error(layer, features) <= ROUNDING
    if name not in ("trivial", "C3"):
        assert largest_error(layer, features) > 0.01
        layer.make_strict()
        assert largest_error(layer, features) <= ROUNDING


def test_layer_can_be_any_convolution() -> None:
    layer = baseline("residual", "D4", "regular -> irreps", groups=1)
    convolution = nn.Conv2d(layer.in_type.size, layer.out_type.size, 3, padding=1, padding_mode="circular").double()
    with torch.no_grad():
        layer.free_weight.copy_(convolution.weight - layer.kernel.strict(layer.weights))
        layer.bias.zero_()
        convolution.bias.zero_()
    features = features_of(layer)
    found = layer(layer.in_type(features)).tensor.detach()
    assert relative_error(found, convolution(features).detach()) <= ROUNDING


def test_penalty_is_the_negative_logarithm_of_the_prior() -> None:
    first, second = baseline("residual", "C4", "trivial -> regular"), baseline("residual", "C4", "regular -> regular")
    network = nn.ModuleDict({"a": first, "b": nn.Sequential(second), "c": nn.Linear(2, 2)})
    prior = torch.distributions.Normal(0.0, 0.3)
    weights = torch.cat([layer.free_weight.flatten() for layer in (first, second)])
    constant = prior.log_prob(torch.zeros_like(weights)).sum()
    expected = constant - prior.log_prob(weights).sum()
    assert free_weight_penalty(network, deviation=0.3).item() == pytest.approx(expected.item(), rel=1e-6)
    free_weight_penalty(network).backward()
    assert torch.equal(first.free_weight.grad, first.free_weight)
    assert all(p.grad is None for name, p in network.named_parameters() if "free_weight" not in name)


def test_bad_arguments_of_the_penalty_are_named() -> None:
    layer = baseline("residual", "C4", "trivial -> regular")
    for deviation in (0, -1.0):
        with pytest.raises(ValueError, match=f"deviation must be finite and > 0, got {deviation}"):
            free_weight_penalty(layer, deviation)
    with pytest.raises(ValueError, match="network has no ResidualR2Conv"):
        free_weight_penalty(enn.ReLU(layer.out_type))


def test_strict_from_the_start() -> None:
    layer = baseline("residual", "D4", "regular -> regular")
    layer = ResidualR2Conv(layer.in_type, layer.out_type, 3, initial_softness=0.0)
    assert not layer.free_weight.any()
    with pytest.raises(TypeError, match=r"ResidualR2Conv has no argument 'relax' .='default'"):
        ResidualR2Conv(layer.in_type, layer.out_type, 3, relax="default")
