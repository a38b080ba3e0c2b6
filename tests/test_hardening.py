"""Hardened networks are strict in what was hardened, and stay so; what they save and share."""

from __future__ import annotations

import copy
import itertools
import pickle

import battery
import pytest
import torch
from escnn import nn
from group_average import subgroup_elements
from layers import SOFT_PARTS, build
from tolerances import BROKEN, ROUNDING
from torch import Tensor
from transformations import largest_error, reflections, relative_error, rotations, shift

from escnn_relaxed import RelaxedR2Conv, harden_network
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

TURNS = {"rotation": 0.2}
EVERYTHING = {"rotation": 0.2, "reflection": 0.5, "translation": 0.3}

EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)


def network(
    space: str,
    relax: dict[str, float],
    soft_part: str,
    layers: int = 3,
    fields: str = "regular",
    **arguments: object,
) -> nn.SequentialModule:
    """Soft layers on the torus with escnn's batch norm, ReLU and pooling; running statistics of its input."""
    types = [battery.field_type(space, name) for name in ("trivial", *[fields] * layers)]
    modules: list[nn.EquivariantModule] = []
    for in_type, out_type in itertools.pairwise(types):
        modules += [
            build(
                in_type,
                out_type,
                padding=1,
                padding_mode="circular",
                relax=relax,
                initial_softness=0.3,
                hidden_size=6,
                soft_part=soft_part,
                # Kernels that vary between taps, so that no ReLU has one sign alone.
                filter_frequency=0.5,
                **arguments,
            ),
            nn.InnerBatchNorm(out_type),
            nn.ReLU(out_type),
        ]
    modules.insert(3, nn.PointwiseMaxPool2D(types[1], kernel_size=2))
    module = nn.SequentialModule(*modules, nn.GroupPooling(types[-1])).double()
    with torch.no_grad():
        for _ in range(2):
            module(inputs(module))
    return module


def inputs(module: nn.EquivariantModule) -> nn.GeometricTensor:
    return module.in_type(battery.random_input(module.in_type, 8, 8))


def pooled_shift_error(module: nn.EquivariantModule) -> float:
    """Error under a shift by whole cells of the pooling."""
    features = inputs(module).tensor
    with torch.no_grad():
        answer = module(module.in_type(features)).tensor
        found = module(module.in_type(shift(features, 2, 4))).tensor
    return relative_error(found, shift(answer, 1, 2))


def softnesses(module: torch.nn.Module, *subgroups: str) -> list[float]:
    return [layer.softness(*subgroups).item() for _, layer in named_relaxed_layers(module)]


def train_a_step(module: nn.EquivariantModule) -> None:
    """One step of Adam on a target that is not equivariant."""
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=0.1)
    answer = module.train()(inputs(module)).tensor
    torch.nn.functional.mse_loss(answer, torch.randn_like(answer)).backward()
    optimiser.step()


@EVERY_KERNEL
@pytest.mark.parametrize(
    ("space", "fields", "mode"),
    [
        ("C4", "two regular", "train"),
        ("C4", "two regular", "eval"),
        ("C8", "two regular", "eval"),
        ("D4", "two regular", "eval"),
    ],
)
def test_hardened_network_is_equivariant(space: str, fields: str, mode: str, soft_part: str) -> None:
    relax = battery.subgroups(space, 0.2)
    soft = network(space, relax, soft_part, fields=fields).train(mode == "train")
    features = inputs(soft).tensor
    assert largest_error(soft, features) > BROKEN
    hardened = harden_network(soft)
    assert softnesses(hardened) == [0, 0, 0]
    assert largest_error(hardened, features) <= ROUNDING
    assert largest_error(soft, features) > BROKEN  # the network is left as it is


@pytest.mark.parametrize(("frame", "soft_part"), [("group", "tied"), ("image", "continuous")])
def test_hardened_in_one_subgroup_is_equivariant_to_it_alone(frame: str, soft_part: str) -> None:
    soft = network("D4", EVERYTHING, soft_part, layers=1, frame=frame).eval()
    features = inputs(soft).tensor
    space = soft.in_type.gspace

    def errors(*subgroups: str) -> dict[str, float]:
        module = harden_network(soft, subgroups)
        flip = subgroup_elements(space, ["reflection"])[1:]
        assert all(found <= ROUNDING for found in softnesses(module, *subgroups))
        return {
            "rotations": largest_error(module, features, rotations),
            "f": largest_error(module, features, lambda space: flip),
            "reflections": largest_error(module, features, reflections),
            "shifts": pooled_shift_error(module),
        }

    exact = {
        ("rotation",): {"rotations"},
        ("reflection",): {"f"},
        ("translation",): {"shifts"},
        ("rotation", "reflection"): {"rotations", "f", "reflections"},
        ("rotation", "translation"): {"rotations", "shifts"},
        (): {"rotations", "f", "reflections", "shifts"},
    }
    for subgroups, expected in exact.items():
        for name, error in errors(*subgroups).items():
            assert error <= ROUNDING if name in expected else error > BROKEN, (subgroups, name, error)


@EVERY_KERNEL
@pytest.mark.parametrize(
    "subgroups", [(), ("rotation",), ("translation",)], ids=lambda names: names[0] if names else "all"
)
def test_hardened_network_stays_strict_in_training(subgroups: tuple[str, ...], soft_part: str) -> None:
    relax = {"rotation": 0.2, "translation": 0.3}
    soft = network("C4", relax, soft_part, layers=2, learn_relaxation=True)
    module = harden_network(soft, subgroups)
    before = [layer.softness().item() for _, layer in named_relaxed_layers(module)]
    for _ in range(2):
        train_a_step(module)
    for mode in (True, False):
        module.train(mode)
        assert all(found <= 1e-15 for found in softnesses(module, *subgroups))
        if "translation" not in subgroups:
            assert largest_error(module, inputs(module).tensor) <= ROUNDING
        if "rotation" not in subgroups:
            assert pooled_shift_error(module) <= ROUNDING
    if subgroups:
        # Layers that are still soft have gone on learning.
        assert softnesses(module) != before
        assert min(softnesses(module)) > 1e-3


@EVERY_KERNEL
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_hardened_network_is_in_the_mode_of_the_soft_one(mode: str, soft_part: str) -> None:
    hardened = harden_network(network("C4", TURNS, soft_part).train(mode == "train"))
    assert [module for module in hardened.modules() if module.training != (mode == "train")] == []


def layer_soft_in_everything(
    soft_part: str, relax: dict[str, float] = EVERYTHING, **arguments: object
) -> RelaxedR2Conv:
    in_type, out_type = battery.types("D4", "regular -> irreps")
    arguments = {"initial_softness": 0.3, "hidden_size": 6, "padding": 1} | arguments
    return build(in_type, out_type, relax=relax, soft_part=soft_part, **arguments)


def answer(layer: RelaxedR2Conv) -> Tensor:
    features = torch.arange(layer.in_type.size * 25, dtype=torch.float64).sin().view(1, -1, 5, 5)
    with torch.no_grad():
        return layer(layer.in_type(features)).tensor


@EVERY_KERNEL
@pytest.mark.parametrize("subgroups", [("rotation",), ("reflection", "translation")], ids=" + ".join)
def test_partly_hardened_layer_has_the_state_of_the_soft_one(subgroups: tuple[str, ...], soft_part: str) -> None:
    layer = layer_soft_in_everything(soft_part)
    hardened = harden_network(layer, subgroups)
    state = hardened.state_dict()
    assert list(state) == list(layer.state_dict())
    assert all(torch.equal(state[name], value) for name, value in layer.state_dict().items())
    # It goes into another draw that was hardened alike.
    torch.manual_seed(1)
    other = harden_network(layer_soft_in_everything(soft_part), subgroups)
    assert not torch.allclose(answer(other), answer(hardened))
    other.load_state_dict(state)
    assert torch.equal(answer(other), answer(hardened))


def test_hardened_steerable_layer_is_the_layer_without_relaxation() -> None:
    layer = harden_network(layer_soft_in_everything("tied"))
    plain = layer_soft_in_everything("tied", relax=None)
    assert type(layer) is type(plain)
    assert repr(layer) == repr(plain)
    assert list(layer.state_dict()) == list(plain.state_dict())
    assert set(layer.state_dict()) == {"weights", "bias"}
    assert layer.bank is None
    assert layer.domain_frequency == {}
    assert layer.is_stationary
    assert layer.hardened == ()
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(answer(plain), answer(layer))


def test_hardened_continuous_layer_keeps_its_state() -> None:
    layer = layer_soft_in_everything("continuous")
    hardened = harden_network(layer)
    assert list(hardened.state_dict()) == list(layer.state_dict())
    assert hardened.is_stationary
    assert hardened.softness().item() == 0
    assert "hardened" in repr(hardened)


@EVERY_KERNEL
def test_hardening_in_place_keeps_parameters_and_state(soft_part: str) -> None:
    """An optimiser that holds them goes on."""
    layer = layer_soft_in_everything(soft_part, learn_relaxation=True)
    parameters, keys = dict(layer.named_parameters()), list(layer.state_dict())
    expected = answer(harden_network(layer))
    layer.harden()
    assert relative_error(answer(layer), expected) <= ROUNDING
    assert list(layer.state_dict()) == keys
    assert all(parameters[name] is parameter for name, parameter in layer.named_parameters())
    layer(layer.in_type(battery.random_input(layer.in_type, 5, 5))).tensor.square().sum().backward()
    assert layer.softness().item() == 0


@EVERY_KERNEL
@pytest.mark.parametrize(
    "subgroups", [(), ("rotation",), ("translation",)], ids=lambda names: names[0] if names else "all"
)
def test_copies_of_a_hardened_layer_are_hardened(subgroups: tuple[str, ...], soft_part: str) -> None:
    layer = harden_network(layer_soft_in_everything(soft_part), subgroups)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.hardened == layer.hardened
        assert torch.equal(answer(other), answer(layer))
        assert other.softness().item() == layer.softness().item()


@EVERY_KERNEL
def test_hardened_copy_shares_nothing_with_the_layer(soft_part: str) -> None:
    layer = layer_soft_in_everything(soft_part)
    before, softness = answer(layer), layer.softness().item()
    hardened = harden_network(layer)
    shared = {tensor.data_ptr() for tensor in [*layer.parameters(), *layer.buffers()]}
    assert not shared & {tensor.data_ptr() for tensor in [*hardened.parameters(), *hardened.buffers()]}
    train_a_step(hardened)
    assert torch.equal(answer(layer), before)
    assert layer.softness().item() == softness > 1e-3


@EVERY_KERNEL
def test_hardened_layer_stays_strict_whatever_its_frequency(soft_part: str) -> None:
    layer = harden_network(layer_soft_in_everything(soft_part), ("rotation", "reflection"))
    layer.set_domain_frequency(rotation=0.3, reflection=1.0, translation=0.5)
    assert layer.softness("rotation").item() <= 1e-15
    assert layer.softness("translation").item() > 1e-3
    features = battery.random_input(layer.in_type, 9, 9)
    assert largest_error(layer, features) <= ROUNDING


@EVERY_KERNEL
def test_filter_bank_kept_in_evaluation_is_not_that_of_before(soft_part: str) -> None:
    layer = layer_soft_in_everything(soft_part, TURNS).eval()
    soft = answer(layer)
    expected = answer(harden_network(layer))
    layer.harden("rotation")
    assert relative_error(answer(layer), expected) <= ROUNDING
    assert relative_error(soft, expected) > BROKEN


def test_module_that_appears_twice_is_hardened_once() -> None:
    layer = layer_soft_in_everything("continuous", TURNS)
    hardened = harden_network(torch.nn.ModuleDict({"first": layer, "second": layer}))
    assert hardened["first"] is hardened["second"]
    assert len(list(named_relaxed_layers(hardened))) == 1


def test_unknown_subgroup_is_named() -> None:
    layer = layer_soft_in_everything("tied", TURNS)
    with pytest.raises(ValueError, match=r"\['rotation', 'reflection', 'translation'\], got 'turns'"):
        harden_network(layer, ("rotation", "turns"))
