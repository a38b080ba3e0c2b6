"""Hardened networks are strict in what was hardened, and stay so; what they save."""

from __future__ import annotations

import copy

import pytest
import small
import torch
from errors import BROKEN, ROUNDING, answer_to, largest_error, reflections, relative_error, rotations, shift
from escnn import nn
from escnn.nn import EquivariantModule
from group_average import subgroup_elements
from small import EVERY_KERNEL, TORUS, soft_layer
from small_networks import Network, answer, features_of

from escnn_relaxed import RelaxedR2Conv, harden_network
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

EVERYTHING = {"rotation": 0.2, "reflection": 0.5, "translation": 0.3}


def network(
    space: str, relax: dict[str, float], fields: str = "regular", soft_part: str = "tied", **arguments: object
) -> nn.SequentialModule:
    """Two soft layers on the torus with escnn's batch norm, ReLU and pooling; running statistics of its input."""
    # Continuous kernels that vary between taps, so that no ReLU has one sign alone.
    rough = {"filter_frequency": 0.5} if soft_part == "continuous" else {}
    arguments = {"relax": relax, "soft_part": soft_part, **TORUS, **rough, **arguments}
    layers = [soft_layer(space, f"{of} -> {fields}", **arguments) for of in ("trivial", fields)]
    modules: list[EquivariantModule] = []
    for layer in layers:
        modules += [layer, nn.InnerBatchNorm(layer.out_type), nn.ReLU(layer.out_type)]
    modules.insert(3, nn.PointwiseMaxPool2D(layers[0].out_type, kernel_size=2))
    module = nn.SequentialModule(*modules, nn.GroupPooling(layers[1].out_type)).double()
    for _ in range(2):
        answer(module)
    return module


def pooled_shift_error(module: EquivariantModule) -> float:
    """Error under a shift by whole cells of the pooling."""
    features = features_of(module)
    return relative_error(answer_to(module, shift(features, 2, 4)), shift(answer_to(module, features), 1, 2))


def softnesses(module: torch.nn.Module, *subgroups: str) -> list[float]:
    return [layer.softness(*subgroups).item() for _, layer in named_relaxed_layers(module)]


EXACT = {
    ("rotation",): {"rotations"},
    ("reflection",): {"f"},
    ("translation",): {"shifts"},
    ("rotation", "reflection"): {"rotations", "f", "reflections"},
    ("rotation", "translation"): {"rotations", "shifts"},
    (): {"rotations", "f", "reflections", "shifts"},
}


@pytest.mark.parametrize("arguments", [{}, {"soft_part": "continuous"}], ids=["tied", "continuous"])
@pytest.mark.parametrize("subgroups", EXACT, ids=str)
def test_hardened_in_some_subgroups_is_equivariant_to_them_alone(subgroups: tuple[str, ...], arguments: dict) -> None:
    soft = network("D4", EVERYTHING, **arguments).eval()
    module, features = harden_network(soft, subgroups), features_of(soft)
    assert largest_error(soft, features) > BROKEN  # the network is left as it is
    flip = subgroup_elements(soft.in_type.gspace, ["reflection"])[1:]
    errors = {
        "rotations": largest_error(module, features, rotations),
        "f": largest_error(module, features, lambda space: flip),
        "reflections": largest_error(module, features, reflections),
        "shifts": pooled_shift_error(module),
    }
    assert all(found <= ROUNDING for found in softnesses(module, *subgroups))
    for name, error in errors.items():
        assert error <= ROUNDING if name in EXACT[subgroups] else error > BROKEN, (name, error)


@EVERY_KERNEL
@pytest.mark.parametrize("subgroups", [(), ("rotation",), ("translation",)], ids=str)
def test_hardened_network_stays_strict_in_training(subgroups: tuple[str, ...], soft_part: str) -> None:
    relax = {"rotation": 0.2, "translation": 0.3}
    module = harden_network(network("C4", relax, learn_relaxation=True, soft_part=soft_part), subgroups)
    before = softnesses(module)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(2):
        found = module.train()(module.in_type(features_of(module))).tensor
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(found, torch.randn_like(found)).backward()
        optimiser.step()
    for mode in (True, False):
        module.train(mode)
        assert all(found <= 1e-15 for found in softnesses(module, *subgroups))
        if "translation" not in subgroups:
            assert largest_error(module, features_of(module)) <= ROUNDING
        if "rotation" not in subgroups:
            assert pooled_shift_error(module) <= ROUNDING
    if subgroups:
        # Layers that are still soft have gone on learning.
        assert softnesses(module) != before
        assert min(softnesses(module)) > 1e-3


def test_network_with_gradients_modes_and_a_hardened_layer_is_left_as_it_was() -> None:
    made = Network()
    made.plain.eval()
    made.body[3].harden("translation")
    made(made.features).square().mean().backward()
    state, modes = copy.deepcopy(made.state_dict()), [module.training for module in made.modules()]
    gradients = [copy.deepcopy(parameter.grad) for parameter in made.parameters()]
    hardened = harden_network(made)
    for parameter in hardened.train().parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(hardened.parameters(), lr=1.0).step()
    assert made.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in made.state_dict().items())
    assert [module.training for module in made.modules()] == modes
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


def test_hardened_layer_between_sheared_fields_says_that_it_is_strict() -> None:
    """In the precision of the soft one, whose norm knows the basis of the fields."""
    layer = soft_layer("C4", "mixed, sheared -> mixed, sheared")
    hardened = harden_network(layer)
    assert layer.softness().item() > BROKEN
    assert hardened.softness().item() == 0


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
