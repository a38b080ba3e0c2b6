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
from transformations import answer_to, largest_error

from escnn_relaxed import HardeningSchedule, equivariance_penalty, harden_network

ALL = ("rotation", "reflection", "translation")


def steps(schedule: HardeningSchedule, count: int) -> None:
    for _ in range(count):
        schedule.step()


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


@pytest.mark.parametrize(("of", "harden_at", "expected"), [(30, 2 / 3, 20), (10, 0.25, 2), (10, 1, 10), (10, 1e-6, 1)])
def test_layers_are_hardened_to_the_nearest_strict_ones_after_their_part_of_the_steps(
    of: int, harden_at: float, expected: int
) -> None:
    network = network_of(soft_regular_layer(), soft_regular_layer("continuous"))
    features = battery.random_input(network.in_type, 5, 5)
    nearest = answer_to(harden_network(network), features)
    schedule = HardeningSchedule(network, of, harden_at)
    steps(schedule, expected - 1)
    assert not schedule.is_hardened
    assert (network[0].hardened, network[2].hardened) == ((), ())
    steps(schedule, 1)
    assert schedule.is_hardened
    assert (network[0].hardened, network[2].hardened) == (ALL, ALL)
    assert torch.allclose(answer_to(network, features), nearest, rtol=ROUNDING, atol=ROUNDING)


def train(network: nn.Module, optimiser: torch.optim.Optimizer, schedule: HardeningSchedule, count: int) -> None:
    for _ in range(count):
        features = network.in_type(battery.random_input(network.in_type, 8, 8))
        optimiser.zero_grad()
        (network(features).tensor.square().mean() + schedule.penalty()).backward()
        optimiser.step()
        schedule.step()


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_network_is_exactly_equivariant_once_hardened_and_stays_so(
    soft_part: str, kind: type[torch.optim.Optimizer]
) -> None:
    relax = {"rotation": 0.2, "reflection": 0.4, "translation": 0.2}
    network = network_of(*(soft_regular_layer(soft_part, "D4", relax, learn_relaxation=True) for _ in range(2)))
    features = battery.random_input(network.in_type, 8, 8)
    schedule = HardeningSchedule(network, steps=6, harden_at=0.5, largest_penalty=0.1)
    optimiser = kind(network.parameters(), lr=1e-2, weight_decay=0.1)
    train(network, optimiser, schedule, 2)
    assert largest_error(network, features) > 0.05
    train(network, optimiser, schedule, 1)
    assert largest_error(network, features) <= ROUNDING
    before = answer_to(network, features)
    train(network, optimiser, schedule, 3)
    assert largest_error(network, features) <= ROUNDING
    assert not torch.allclose(answer_to(network, features), before)  # it has learned on


def test_state_resumes_before_and_after_hardening() -> None:
    network = network_of(soft_regular_layer(), soft_regular_layer())
    schedule, resumed = (HardeningSchedule(network, steps=10, harden_at=0.5, largest_penalty=0.2) for _ in range(2))
    steps(schedule, 3)
    resumed.load_state_dict(schedule.state_dict())
    assert not resumed.is_hardened
    expected = 0.2 * 3 / 5 * equivariance_penalty(network, "softness").item()
    assert resumed.penalty().item() == pytest.approx(expected, rel=ROUNDING)
    steps(resumed, 1)
    assert not resumed.is_hardened
    steps(resumed, 3)
    assert resumed.is_hardened
    anew = network_of(soft_regular_layer(), soft_regular_layer())
    schedule = HardeningSchedule(anew, steps=10, harden_at=0.5, largest_penalty=1.0)
    schedule.load_state_dict(resumed.state_dict())
    assert schedule.is_hardened
    assert (anew[0].hardened, anew[2].hardened) == (ALL, ALL)
    assert schedule.penalty().item() == 0
    assert schedule.state_dict() == resumed.state_dict()
    with pytest.raises(ValueError, match=r"state must have \['step', 'is_hardened'\], got \['steps'\]"):
        schedule.load_state_dict({"steps": 3})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"steps": 10, "harden_at": 0}, r"harden_at must be in \(0, 1\], got 0"),
        ({"steps": 10, "harden_at": 1.5}, r"harden_at must be in \(0, 1\], got 1.5"),
        ({"steps": 10, "largest_penalty": -0.1}, "largest_penalty must be finite and >= 0, got -0.1"),
        ({"steps": 10, "largest_penalty": math.nan}, "largest_penalty must be finite and >= 0, got nan"),
    ],
)
def test_argument_out_of_range_is_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HardeningSchedule(soft_regular_layer(), **arguments)
