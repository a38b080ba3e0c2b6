"""Softness below a bound by dual ascent: the rule by hand, and what it finds."""

from __future__ import annotations

import math

import battery
import pytest
import torch
from layers import SOFT_PARTS
from operations import CountOperations
from soft_networks import network_of, soft_regular_layer
from tolerances import ROUNDING
from torch import nn

from escnn_relaxed import RelaxedR2Conv, SoftnessBound


def layers_of(*softnesses: float) -> nn.Module:
    """Layers of exactly these softnesses, by their numbers."""
    layers = [soft_regular_layer() for _ in softnesses]
    for layer, softness in zip(layers, softnesses, strict=True):
        layer.set_softness(softness)
    return nn.ModuleList(layers)


def steps_of(bound: SoftnessBound, count: int) -> list[dict[str, float]]:
    """The multipliers after each of some steps at fixed weights."""
    found = []
    for _ in range(count):
        bound.penalty()
        bound.step()
        found.append(dict(bound.multipliers))
    return found


def test_multipliers_grow_by_the_excess_shrink_below_the_bound_and_stop_at_zero() -> None:
    network = layers_of(0.25, 0.5)
    bound = SoftnessBound(network, 0.1, rate=0.4)
    assert bound.multipliers == {"0": 0.0, "1": 0.0}
    assert bound.penalty().item() == 0
    for number, multipliers in enumerate(steps_of(bound, 3), start=1):
        assert multipliers["0"] == pytest.approx(number * 0.4 * 0.15, rel=ROUNDING)
        assert multipliers["1"] == pytest.approx(number * 0.4 * 0.4, rel=ROUNDING)
    expected = 3 * 0.4 * (0.15 * 0.15 + 0.4 * 0.4)
    assert bound.penalty().item() == pytest.approx(expected, rel=ROUNDING)
    network[0].set_softness(0.01)
    found = [multipliers["0"] for multipliers in steps_of(bound, 6)]
    # A digit is lost in differences.
    assert found == pytest.approx([0.144, 0.108, 0.072, 0.036, 0, 0], rel=1e-10, abs=1e-15)
    assert found[-1] == 0


def test_layers_have_bounds_of_their_own_by_name() -> None:
    bound = SoftnessBound(
        nn.ModuleDict({"late": layers_of(0.3)[0], "early": layers_of(0.3, 0.3)}), {"late": 0.1, "early.0": 0.25}
    )
    found = steps_of(bound, 1)[-1]
    assert found == pytest.approx({"late": 0.2, "early.0": 0.05}, rel=1e-10)  # differences lose a digit
    assert bound.penalty().item() == pytest.approx(0.2 * 0.2 + 0.05 * 0.05, rel=1e-10)


def test_step_takes_the_softness_of_the_last_penalty() -> None:
    """Before the optimiser's step, as the Lagrangian is written; nothing happens without a penalty before."""
    network = layers_of(0.3)
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


@pytest.mark.parametrize(
    ("bound", "rate", "message"),
    [
        ({"0": 0.1, "2": 0.1, "first": 0.1}, 1.0, r"\['2', 'first'\] are not relaxed layers; those are \['0', '1'\]"),
        (-0.01, 1.0, r"softness of '0' must be bounded by a number in \[0, 1\], got -0.01"),
        (math.nan, 1.0, r"softness of '0' must be bounded by a number in \[0, 1\], got nan"),
        ({"0": 0.5, "1": 2}, 1.0, r"softness of '1' must be bounded by a number in \[0, 1\], got 2"),
        ({}, 1.0, "are not relaxed layers"),
        (0.1, 0, "rate must be finite and > 0, got 0"),
    ],
)
def test_argument_out_of_range_is_named(bound: float | dict[str, float], rate: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SoftnessBound(layers_of(0.1, 0.1), bound, rate)


@pytest.mark.parametrize("limit", [0, 1])
def test_bounds_at_both_ends_are_allowed(limit: float) -> None:
    assert (steps_of(SoftnessBound(layers_of(0.3), limit), 1)[-1]["0"] > 0) == (limit == 0)


def test_state_goes_on_in_another_bound() -> None:
    network = layers_of(0.1, 0.2)
    bound, resumed = SoftnessBound(network, 0.01), SoftnessBound(network, 0.01)
    steps_of(bound, 3)
    state = bound.state_dict()
    before = dict(state)
    resumed.load_state_dict(state)
    assert resumed.multipliers == before
    assert resumed.penalty().item() == bound.penalty().item() > 0
    assert steps_of(resumed, 2) == steps_of(bound, 2)
    assert state == before  # a copy, in both directions
    with pytest.raises(ValueError, match=r"multipliers are of \['0', '1'\], got \['0', '2'\]"):
        bound.load_state_dict({"0": 1.0, "2": 2.0})


def trained(
    layers: dict[str, RelaxedR2Conv], targets: dict[str, RelaxedR2Conv], limit: float, steps: int
) -> tuple[float, SoftnessBound]:
    """The relative squared error at the end of training towards layers of other weights, and the bound."""
    network = nn.ModuleDict(layers)
    in_type = next(iter(layers.values())).in_type
    features = in_type(battery.random_input(in_type, 5, 5, batch=8))
    wanted = {name: target(features).tensor.detach() for name, target in targets.items()}
    bound = SoftnessBound(network, limit)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, steps)

    def loss() -> torch.Tensor:
        errors = [
            (network[name](features).tensor - of).square().mean() / of.square().mean() for name, of in wanted.items()
        ]
        return torch.stack(errors).sum()

    for _ in range(steps):
        optimiser.zero_grad()
        (loss() + bound.penalty()).backward()
        optimiser.step()
        schedule.step()
        bound.step()
    return loss().item(), bound


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
def test_layer_that_wants_softness_ends_at_the_bound_and_another_below(soft_part: str) -> None:
    layers = {name: soft_regular_layer(soft_part, initial_softness=0.01) for name in ("wants", "does not")}
    limit = 0.05
    # One pair of fields: the softness of one draw is far from the expected one.
    draws = (soft_regular_layer(soft_part, initial_softness=0.3) for _ in range(100))
    wants = next(layer for layer in draws if layer.softness().item() > 2 * limit)
    targets = {"wants": wants, "does not": soft_regular_layer(soft_part, relax={})}
    # A modulation learns in units of 0.2.
    _, bound = trained(layers, targets, limit, 300 if soft_part == "tied" else 150)
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
        loss, bound = trained({"layer": layer}, {"layer": target}, limit, 400)
        losses.append(loss)
        multipliers.append(bound.multipliers["layer"])
    assert multipliers[0] > multipliers[1] > 1
    # The loss is nearly a parabola between the two. A modulation learns in units of 0.2, so it takes so many steps.
    assert (losses[0] - losses[1]) / 0.02 == pytest.approx(sum(multipliers) / 2, rel=0.15)


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
def test_nothing_is_read_in_a_training_step(soft_part: str) -> None:
    bound = SoftnessBound(network_of(soft_regular_layer(soft_part, learn_relaxation=True)), 0.01)
    with CountOperations() as count:
        bound.penalty().backward()
        bound.step()
    assert "_local_scalar_dense" not in count.waits


def test_penalty_compiles_to_one_graph() -> None:
    bound = SoftnessBound(network_of(soft_regular_layer(learn_relaxation=True)), 0.01)
    steps_of(bound, 2)
    assert bound.multipliers["0"] > 0
    compiled = torch.compile(lambda: bound.penalty(), backend="eager", fullgraph=True)
    assert compiled().item() == pytest.approx(bound.penalty().item(), rel=ROUNDING)
