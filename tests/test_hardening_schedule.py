"""Relaxed in training, strict at the end: a penalty that rises, and hardening at its step."""

from __future__ import annotations

import math

import battery
import pytest
import torch
from layers import SOFT_PARTS
from soft_networks import network_of, soft_regular_layer
from tolerances import ROUNDING
from torch import nn
from transformations import largest_error

from escnn_relaxed import HardeningSchedule, RelaxedR2Conv, equivariance_penalty, harden_network

EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)


def train(network: nn.Module, optimiser: torch.optim.Optimizer, schedule: HardeningSchedule, steps: int) -> None:
    in_type = network[0].in_type
    for _ in range(steps):
        features = in_type(battery.random_input(in_type, 8, 8))
        optimiser.zero_grad()
        (network(features).tensor.square().mean() + schedule.penalty()).backward()
        optimiser.step()
        schedule.step()


def hardened(network: nn.Module) -> list[tuple[str, ...]]:
    return [module.hardened for module in network.modules() if isinstance(module, RelaxedR2Conv)]


ALL = ("rotation", "reflection", "translation")


def test_penalty_rises_linearly_up_to_hardening() -> None:
    network = network_of(soft_regular_layer(), soft_regular_layer())
    schedule = HardeningSchedule(network, steps=12, harden_at=0.75, largest_penalty=0.3)
    roots = equivariance_penalty(network, "softness").item()
    for step in range(9):
        assert not schedule.is_hardened
        assert schedule.penalty().item() == pytest.approx(0.3 * step / 9 * roots, rel=ROUNDING, abs=0)
        schedule.step()
    assert schedule.is_hardened
    assert schedule.penalty().item() == 0


@pytest.mark.parametrize(
    ("steps", "harden_at", "expected"), [(30, 2 / 3, 20), (10, 0.25, 2), (10, 1, 10), (10, 1e-6, 1), (1, 0.5, 1)]
)
def test_layers_are_hardened_after_their_part_of_the_steps(steps: int, harden_at: float, expected: int) -> None:
    network = network_of(soft_regular_layer(), soft_regular_layer())
    schedule = HardeningSchedule(network, steps, harden_at)
    for _ in range(expected - 1):
        schedule.step()
    assert not schedule.is_hardened
    assert hardened(network) == [(), ()]
    schedule.step()
    assert schedule.is_hardened
    assert hardened(network) == [ALL, ALL]


@EVERY_KERNEL
def test_hardening_takes_the_nearest_strict_network(soft_part: str) -> None:
    network = network_of(soft_regular_layer(soft_part), soft_regular_layer(soft_part))
    features = network.in_type(battery.random_input(network.in_type, 5, 5))
    expected = harden_network(network)(features).tensor
    HardeningSchedule(network, 1).step()
    assert torch.allclose(network(features).tensor, expected, rtol=ROUNDING, atol=ROUNDING)


OPTIMISERS = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, weight_decay=0.01),
}


@pytest.mark.parametrize(("soft_part", "name"), [("tied", "Adam"), ("tied", "SGD"), ("continuous", "AdamW")])
def test_network_is_exactly_equivariant_once_hardened_and_stays_so(soft_part: str, name: str) -> None:
    relax = {"rotation": 0.2, "reflection": 0.4, "translation": 0.2}
    network = network_of(*(soft_regular_layer(soft_part, "D4", relax, learn_relaxation=True) for _ in range(2)))
    features = battery.random_input(network.in_type, 8, 8)
    schedule = HardeningSchedule(network, steps=6, harden_at=0.5, largest_penalty=0.1)
    optimiser = OPTIMISERS[name](network.parameters())
    train(network, optimiser, schedule, 2)
    assert largest_error(network, features) > 0.05
    train(network, optimiser, schedule, 1)
    assert largest_error(network, features) <= ROUNDING
    before = network(network.in_type(features)).tensor
    train(network, optimiser, schedule, 3)
    assert largest_error(network, features) <= ROUNDING
    assert not torch.allclose(network(network.in_type(features)).tensor, before)  # it has learned on


def test_state_before_hardening_resumes() -> None:
    network = network_of(soft_regular_layer())
    schedule = HardeningSchedule(network, steps=10, harden_at=0.5, largest_penalty=0.2)
    for _ in range(3):
        schedule.step()
    state = schedule.state_dict()
    schedule.step()
    resumed = HardeningSchedule(network, steps=10, harden_at=0.5, largest_penalty=0.2)
    resumed.load_state_dict(state)
    assert not resumed.is_hardened
    expected = 0.2 * 3 / 5 * equivariance_penalty(network, "softness").item()
    assert resumed.penalty().item() == pytest.approx(expected, rel=ROUNDING)
    resumed.step()
    assert not resumed.is_hardened
    resumed.step()
    assert resumed.is_hardened


def test_state_after_hardening_hardens_a_network_built_anew() -> None:
    schedule = HardeningSchedule(network_of(soft_regular_layer()), steps=10, harden_at=0.5)
    for _ in range(7):
        schedule.step()
    network = network_of(soft_regular_layer(), soft_regular_layer())
    resumed = HardeningSchedule(network, steps=10, harden_at=0.5, largest_penalty=1.0)
    resumed.load_state_dict(schedule.state_dict())
    assert resumed.is_hardened
    assert hardened(network) == [ALL, ALL]
    assert resumed.penalty().item() == 0
    assert resumed.state_dict() == schedule.state_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"steps": 10, "harden_at": 0}, r"harden_at must be in \(0, 1\], got 0"),
        ({"steps": 10, "harden_at": 1.5}, r"harden_at must be in \(0, 1\], got 1.5"),
        ({"steps": 10, "harden_at": math.nan}, r"harden_at must be in \(0, 1\], got nan"),
        ({"steps": 10, "largest_penalty": -0.1}, "largest_penalty must be finite and >= 0, got -0.1"),
        ({"steps": 10, "largest_penalty": math.inf}, "largest_penalty must be finite and >= 0, got inf"),
        ({"steps": 10, "largest_penalty": math.nan}, "largest_penalty must be finite and >= 0, got nan"),
    ],
)
def test_argument_out_of_range_is_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HardeningSchedule(soft_regular_layer(), **arguments)
