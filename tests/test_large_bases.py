"""Layers whose steerable basis is large, and is kept by orbits of its entries, are as others."""

from __future__ import annotations

import copy
import pickle

import battery
import pytest
import torch
from escnn import nn as enn
from escnn.nn import R2Conv
from tolerances import ROUNDING, SINGLE
from torch.nn.functional import conv2d
from transformations import answer_to, equivariance_error, relative_error, transform

from escnn_relaxed import RelaxedR2Conv, export_network, relax_network
from escnn_relaxed.baselines import ResidualR2Conv
from escnn_relaxed.on_escnn import grid_exact_basis
from escnn_relaxed.network import to_escnn

TYPES = battery.types("D4", "regular -> quotient")


@pytest.fixture(autouse=True)
def all_bases_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_exact_basis, "_LARGE", 0)
    monkeypatch.setattr(grid_exact_basis, "_PREPARED", {})


def layer_and_plain() -> tuple[RelaxedR2Conv, R2Conv]:
    """A strict layer with the weights of an ``R2Conv``."""
    torch.manual_seed(0)
    plain, layer = R2Conv(*TYPES, 3), RelaxedR2Conv(*TYPES, 3, relax=None)
    layer.load_state_dict(plain.state_dict())
    assert "orbits_0" in dict(layer.steerable_basis.named_buffers())
    return layer, plain


def test_values_and_gradients_are_those_of_r2conv() -> None:
    layer, plain = layer_and_plain()
    features = torch.randn(2, TYPES[0].size, 6, 6)
    found, expected = (module(TYPES[0](features)).tensor for module in (layer, plain))
    assert relative_error(found.detach(), expected.detach()) <= SINGLE
    direction = torch.randn_like(found)
    answers = [(found, layer), (expected, plain)]
    gradients = [torch.autograd.grad(of, module.weights, direction)[0] for of, module in answers]
    # Sums over images and pixels.
    assert relative_error(*gradients) <= 10 * SINGLE


def test_it_is_exact_in_float64_and_after_other_dtypes() -> None:
    layer = layer_and_plain()[0].double()
    features = torch.randn(1, TYPES[0].size, 5, 5, dtype=torch.float64)
    assert equivariance_error(layer, features, TYPES[0].fibergroup.element((1, 1))) <= ROUNDING
    weights = layer.weights.detach().clone()
    exact = layer.steerable_basis(weights)
    assert torch.equal(layer.half().double().steerable_basis(weights), exact)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_are_equal(copied) -> None:
    layer, _ = layer_and_plain()
    features = torch.randn(1, TYPES[0].size, 5, 5)
    assert torch.equal(answer_to(copied(layer), features), answer_to(layer, features))


def test_networks_go_to_escnn_and_to_plain_pytorch() -> None:
    layer, plain = layer_and_plain()
    features = torch.randn(1, TYPES[0].size, 5, 5)
    expected = answer_to(plain.eval(), features)
    assert relative_error(answer_to(to_escnn(layer).eval(), features), expected) <= SINGLE
    soft = relax_network(enn.SequentialModule(plain), relax={"rotation": 0.25}).eval()
    with torch.no_grad():
        assert relative_error(export_network(soft)(features), expected) <= SINGLE


def test_nearest_strict_kernel_of_a_residual_layer_is_found() -> None:
    torch.manual_seed(0)
    layer = ResidualR2Conv(*TYPES, 3, initial_softness=0.1).double()
    assert layer.softness() > 0.01
    strict = layer.kernel(layer.weights, None, ("rotation", "reflection")).detach()
    features = torch.randn(1, TYPES[0].size, 5, 5, dtype=torch.float64)
    element = TYPES[0].fibergroup.element((1, 1))
    expected = transform(conv2d(features, strict), TYPES[1], element)
    assert relative_error(conv2d(transform(features, TYPES[0], element), strict), expected) <= ROUNDING
