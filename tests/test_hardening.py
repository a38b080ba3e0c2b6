"""Hardened layers are strict in what was hardened, and stay so; what they save. In training: ``test_every_form``."""

from __future__ import annotations

import copy

import pytest
import small
import torch
from errors import ROUNDING, largest_error
from small import EVERY_KERNEL, TORUS, soft_layer
from small_networks import Network, answer, features_of, left_alone

from escnn_relaxed import RelaxedR2Conv, harden_network

EVERYTHING = {"rotation": 0.2, "reflection": 0.5, "translation": 0.3}


def test_network_with_gradients_modes_and_a_hardened_layer_is_left_as_it_was() -> None:
    made = Network()
    made.plain.eval()
    made.body[3].harden("translation")
    made(made.features).square().mean().backward()
    gradients = [copy.deepcopy(parameter.grad) for parameter in made.parameters()]
    with left_alone(made):
        hardened = harden_network(made)
        for parameter in hardened.train().parameters():
            parameter.grad = torch.ones_like(parameter)
        torch.optim.SGD(hardened.parameters(), lr=1.0).step()
    assert (made.first.hardened, made.body[3].hardened) == ((), ("translation",))
    for parameter, gradient in zip(made.parameters(), gradients, strict=True):
        assert parameter.grad is gradient or torch.equal(parameter.grad, gradient)


def layer_soft_in_everything(soft_part: str, **arguments: object) -> RelaxedR2Conv:
    return soft_layer("D4", "regular -> irreps", soft_part=soft_part, padding=1, **{"relax": EVERYTHING, **arguments})


def test_hardened_layer_is_the_layer_without_relaxation() -> None:
    layer, plain = harden_network(layer_soft_in_everything("tied")), layer_soft_in_everything("tied", relax=None)
    assert type(layer) is type(plain)
    assert repr(layer) == repr(plain)
    assert list(layer.state_dict()) == list(plain.state_dict())
    assert set(layer.state_dict()) == {"weights", "bias"}
    assert (layer.domain_frequency, layer.is_stationary, layer.hardened) == ({}, True, ())
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(answer(plain), answer(layer))


@EVERY_KERNEL
def test_hardened_layer_stays_strict_whatever_its_frequency(soft_part: str) -> None:
    layer = harden_network(layer_soft_in_everything(soft_part), ("rotation", "reflection"))
    layer.set_domain_frequency(rotation=0.3, reflection=1.0, translation=0.5)
    assert layer.softness("rotation").item() <= 1e-15
    assert layer.softness("translation").item() > 1e-3
    assert largest_error(layer, small.random_input(layer.in_type, 9, 9)) <= ROUNDING


def test_module_that_appears_twice_is_hardened_once_and_unknown_subgroups_are_named() -> None:
    layer = layer_soft_in_everything("tied")
    hardened = harden_network(torch.nn.ModuleDict({"first": layer, "second": layer}))
    assert hardened["first"] is hardened["second"]
    with pytest.raises(ValueError, match=r"\['rotation', 'reflection', 'translation'\], got 'turns'"):
        harden_network(layer, ("rotation", "turns"))


@pytest.mark.parametrize("subgroup", ["rotation", "translation"])
def test_every_parameter_of_a_hardened_layer_has_a_gradient(subgroup: str) -> None:
    """Distributed training waits for the gradient of each parameter."""
    relax = {"rotation": 0.2, "translation": 0.3}
    layer = soft_layer("C4", "trivial -> regular", relax=relax, soft_part="tied", learn_relaxation=True, **TORUS)
    layer.harden(subgroup)
    layer(layer.in_type(features_of(layer))).tensor.sum().backward()
    assert [name for name, parameter in layer.named_parameters() if parameter.grad is None] == []
