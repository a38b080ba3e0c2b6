"""Softness below a bound by dual ascent: the rule by hand, and what it finds."""

from __future__ import annotations

import math
from typing import Any

import battery
import pytest
import torch
from layers import SOFT_PARTS
from soft_networks import network_of, soft_regular_layer
from tolerances import ROUNDING
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from escnn_relaxed import RelaxedR2Conv, SoftnessBound


def steps_of(bound: SoftnessBound, count: int) -> list[dict[str, float]]:
    """The multipliers after each of some steps at fixed weights."""
    found = []
    for _ in range(count):
        bound.penalty()
        bound.step()
        found.append(dict(bound.multipliers))
    return found


def test_multipliers_start_at_zero_and_grow_by_the_excess() -> None:
    network = network_of(soft_regular_layer(), soft_regular_layer())
    network[0].set_softness(0.25)
    network[2].set_softness(0.5)
    bound = SoftnessBound(network, 0.1, rate=0.4)
    assert bound.multipliers == {"0": 0.0, "2": 0.0}
    assert bound.penalty().item() == 0
    for number, multipliers in enumerate(steps_of(bound, 3), start=1):
        assert multipliers["0"] == pytest.approx(number * 0.4 * 0.15, rel=ROUNDING)
        assert multipliers["2"] == pytest.approx(number * 0.4 * 0.4, rel=ROUNDING)
    expected = 3 * 0.4 * (0.15 * 0.15 + 0.4 * 0.4)
    assert bound.penalty().item() == pytest.approx(expected, rel=ROUNDING)


def test_multipliers_shrink_below_the_bound_and_stop_at_zero() -> None:
    network = network_of(soft_regular_layer())
    network[0].set_softness(0.3)
    bound = SoftnessBound(network, 0.2, rate=1.0)
    steps_of(bound, 2)
    network[0].set_softness(0.05)
    found = [multipliers["0"] for multipliers in steps_of(bound, 3)]
    assert found == pytest.approx([0.05, 0.0, 0.0], rel=1e-10)  # 0.2 − 0.15: a digit is lost
    assert found[1:] == [0.0, 0.0]


def test_step_takes_the_softness_of_the_last_penalty() -> None:
    """Before the optimiser's step, as the Lagrangian is written; nothing happens without a penalty before."""
    network = network_of(soft_regular_layer())
    network[0].set_softness(0.3)
    bound = SoftnessBound(network, 0.1)
    bound.step()
    assert bound.multipliers == {"0": 0.0}
    bound.penalty()
    network[0].set_softness(0.9)
    bound.step()
    assert bound.multipliers["0"] == pytest.approx(0.2, rel=ROUNDING)


def test_gradient_is_that_of_softness_times_the_multiplier() -> None:
    layer = soft_regular_layer()
    bound = SoftnessBound(layer, 0.05)
    multiplier = steps_of(bound, 4)[-1][""]
    assert multiplier > 0.1
    parameters = [p for p in layer.parameters() if p is not layer.bias]
    found = torch.autograd.grad(bound.penalty(), parameters)
    expected = torch.autograd.grad(layer.softness(), parameters)
    for gradient, slope in zip(found, expected, strict=True):
        assert torch.allclose(gradient, multiplier * slope, rtol=ROUNDING, atol=ROUNDING)


def test_layers_have_bounds_of_their_own_by_name() -> None:
    network = nn.ModuleDict(
        {"early": network_of(soft_regular_layer(), soft_regular_layer()), "late": soft_regular_layer()}
    )
    for layer in (network["early"][0], network["early"][2], network["late"]):
        layer.set_softness(0.3)
    bound = SoftnessBound(network, {"late": 0.1, "early.0": 0.25})
    found = steps_of(bound, 1)[-1]
    assert found == pytest.approx({"late": 0.2, "early.0": 0.05}, rel=1e-10)  # differences lose a digit
    assert bound.penalty().item() == pytest.approx(0.2 * 0.2 + 0.05 * 0.05, rel=1e-10)


@pytest.mark.parametrize(
    ("bound", "rate", "message"),
    [
        ({"0": 0.1, "1": 0.1, "first": 0.1}, 1.0, r"\['1', 'first'\] are not relaxed layers; those are \['0', '2'\]"),
        (-0.01, 1.0, r"softness of '0' must be bounded by a number in \[0, 1\], got -0.01"),
        (1.5, 1.0, r"softness of '0' must be bounded by a number in \[0, 1\], got 1.5"),
        (math.nan, 1.0, r"softness of '0' must be bounded by a number in \[0, 1\], got nan"),
        ({"0": 0.5, "2": 2}, 1.0, r"softness of '2' must be bounded by a number in \[0, 1\], got 2"),
        (0.1, 0, "rate must be finite and > 0, got 0"),
        (0.1, -1.0, "rate must be finite and > 0, got -1.0"),
        (0.1, math.inf, "rate must be finite and > 0, got inf"),
        (0.1, math.nan, "rate must be finite and > 0, got nan"),
    ],
)
def test_argument_out_of_range_is_named(bound: float | dict[str, float], rate: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SoftnessBound(network_of(soft_regular_layer(), soft_regular_layer()), bound, rate)


@pytest.mark.parametrize("limit", [0, 0.0, 1, 1.0])
def test_bounds_at_both_ends_are_allowed(limit: float) -> None:
    layer = soft_regular_layer()
    assert (steps_of(SoftnessBound(layer, limit), 1)[-1][""] > 0) == (limit == 0)


def test_an_empty_table_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="bound"):
        SoftnessBound(soft_regular_layer(), {})


def test_state_goes_on_in_another_bound() -> None:
    network = network_of(soft_regular_layer(), soft_regular_layer())
    bound = SoftnessBound(network, 0.01)
    steps_of(bound, 3)
    state = bound.state_dict()
    before = dict(state)
    resumed = SoftnessBound(network, 0.01)
    resumed.load_state_dict(state)
    assert resumed.multipliers == before
    assert resumed.penalty().item() == bound.penalty().item() > 0
    assert steps_of(resumed, 2) == steps_of(bound, 2)
    assert state == before  # a copy, in both directions


def test_state_of_other_layers_is_refused() -> None:
    bound = SoftnessBound(network_of(soft_regular_layer(), soft_regular_layer()), 0.1)
    with pytest.raises(ValueError, match=r"multipliers are of \['0', '2'\], got \['0', '1'\]"):
        bound.load_state_dict({"0": 1.0, "1": 2.0})


# --- what it finds ----------------------------------------------------------------------------------------------------


class Regression:
    """Layers, and targets that layers of other weights gave."""

    def __init__(self, layers: dict[str, RelaxedR2Conv], targets: dict[str, RelaxedR2Conv]) -> None:
        self.layers = nn.ModuleDict(layers)
        in_type = next(iter(layers.values())).in_type
        self.features = in_type(battery.random_input(in_type, 5, 5, batch=8))
        with torch.no_grad():
            self.wanted = {name: target(self.features).tensor for name, target in targets.items()}

    def loss(self) -> Tensor:
        """The relative squared error."""
        errors = []
        for name, wanted in self.wanted.items():
            found = self.layers[name](self.features).tensor
            errors.append((found - wanted).square().mean() / wanted.square().mean())
        return torch.stack(errors).sum()

    def train(self, bound: SoftnessBound, steps: int = 150) -> float:
        """The loss at the end."""
        optimiser = torch.optim.Adam(self.layers.parameters(), lr=3e-2)
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, steps)
        for _ in range(steps):
            optimiser.zero_grad()
            (self.loss() + bound.penalty()).backward()
            optimiser.step()
            schedule.step()
            bound.step()
        return self.loss().item()


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
def test_layer_that_wants_softness_ends_at_the_bound_and_another_below(soft_part: str) -> None:
    layers = {name: soft_regular_layer(soft_part, initial_softness=0.01) for name in ("wants", "does not")}
    limit = 0.05
    # One pair of fields: the softness of one draw is far from the expected one.
    draws = (soft_regular_layer(soft_part, initial_softness=0.3) for _ in range(100))
    targets = {
        "wants": next(layer for layer in draws if layer.softness().item() > 2 * limit),
        "does not": soft_regular_layer(soft_part, relax={}),
    }
    problem = Regression(layers, targets)
    bound = SoftnessBound(problem.layers, limit)
    # A modulation learns in units of 0.2.
    problem.train(bound, 300 if soft_part == "tied" else 150)
    # Primal and dual steps circle the optimum and come closer to it; found: within 0.7 % of the bound.
    assert layers["wants"].softness().item() == pytest.approx(limit, rel=0.05)
    assert bound.multipliers["wants"] > 0.3
    assert layers["does not"].softness().item() < limit / 5
    assert bound.multipliers["does not"] == 0


@pytest.mark.slow
def test_multiplier_is_the_rate_at_which_the_loss_falls_with_the_bound() -> None:
    losses, multipliers = [], []
    for limit in (0.04, 0.06):
        torch.manual_seed(0)
        layer, target = soft_regular_layer(initial_softness=0.03), soft_regular_layer(initial_softness=0.3)
        problem = Regression({"layer": layer}, {"layer": target})
        bound = SoftnessBound(problem.layers, limit)
        losses.append(problem.train(bound, 400))
        multipliers.append(bound.multipliers["layer"])
    assert multipliers[0] > multipliers[1] > 1
    # The loss is nearly a parabola between the two. A modulation learns in units of 0.2, so it takes so many steps.
    assert (losses[0] - losses[1]) / 0.02 == pytest.approx(sum(multipliers) / 2, rel=0.15)


class CountReads(TorchDispatchMode):
    """A count of the numbers that are read from tensors, each of which waits for the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
def test_nothing_is_read_in_a_training_step(soft_part: str) -> None:
    bound = SoftnessBound(network_of(soft_regular_layer(soft_part, learn_relaxation=True)), 0.01)
    with CountReads() as reads:
        bound.penalty().backward()
        bound.step()
    assert reads.count == 0
    with reads:
        bound.penalty().item()
    assert reads.count == 1


def test_penalty_compiles_to_one_graph() -> None:
    bound = SoftnessBound(network_of(soft_regular_layer(learn_relaxation=True)), 0.01)
    steps_of(bound, 2)
    assert bound.multipliers["0"] > 0
    compiled = torch.compile(lambda: bound.penalty(), backend="eager", fullgraph=True)
    assert compiled().item() == pytest.approx(bound.penalty().item(), rel=ROUNDING)
