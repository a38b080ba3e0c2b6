"""Hardened layers are strict in what was hardened, and stay so; what they save. In training: ``test_every_form``."""

from __future__ import annotations

import copy

import pytest
import small
import torch
from errors import BROKEN, ROUNDING, largest_error, reflections, relative_error, rotations, shift_error
from group_average import subgroup_elements
from small import EVERY_KERNEL, TORUS, soft_layer
from small_networks import Network, answer, features_of, left_alone

from escnn_relaxed import RelaxedR2Conv, harden_network

EVERYTHING = {"rotation": 0.2, "reflection": 0.5, "translation": 0.3}


EXACT = {
    ("rotation",): {"rotations"},
    ("reflection",): {"f"},
    ("translation",): {"shifts"},
    ("rotation", "reflection"): {"rotations", "f", "reflections"},
    ("rotation", "translation"): {"rotations", "shifts"},
    (): {"rotations", "f", "reflections", "shifts"},
}


@EVERY_KERNEL
@pytest.mark.parametrize("subgroups", EXACT, ids=str)
def test_hardened_in_some_subgroups_is_equivariant_to_them_alone(subgroups: tuple[str, ...], soft_part: str) -> None:
    arguments = {"relax": EVERYTHING, "soft_part": soft_part, "filter_frequency": 0.5, **TORUS}
    soft = soft_layer("D4", "regular -> regular", **arguments).eval()
    layer, features = harden_network(soft, subgroups), features_of(soft)
    assert largest_error(soft, features) > BROKEN  # it is left as it is
    flip = subgroup_elements(soft.in_type.gspace, ["reflection"])[1:]
    errors = {
        "rotations": largest_error(layer, features, rotations),
        "f": largest_error(layer, features, lambda space: flip),
        "reflections": largest_error(layer, features, reflections),
        "shifts": shift_error(layer, features),
    }
    assert layer.softness(*subgroups).item() <= ROUNDING
    for name, error in errors.items():
        assert error <= ROUNDING if name in EXACT[subgroups] else error > BROKEN, (name, error)


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


@torch.no_grad()
def test_layer_that_is_hardened_in_turn_forgets_nothing_of_what_was_before() -> None:
    """In evaluation, where it has remembered each of its filter banks."""
    layer = soft_layer("D4", "regular -> regular", relax=EVERYTHING, **TORUS).eval()
    for subgroups in (("rotation",), ("rotation", "reflection"), ("rotation", "reflection", "translation")):
        at_once = harden_network(layer, subgroups)
        layer.harden(subgroups[-1])
        assert [layer.softness(name).item() <= ROUNDING for name in subgroups] == [True] * len(subgroups)
        assert relative_error(answer(layer), answer(at_once)) <= ROUNDING
        assert layer.hardened == subgroups


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
