"""Ways to be only as soft as the task needs: Σ√s and Σ‖ω′‖² in the loss, and a bound of s by dual ascent."""

from __future__ import annotations

import math
from collections.abc import Callable

import battery
import pytest
import torch
from escnn import nn as enn
from layers import SOFT_PARTS
from soft_networks import network_of, soft_regular_layer, without_soft_part
from tolerances import ROUNDING
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, SoftnessBound, equivariance_penalty
from escnn_relaxed.baselines import PartialR2Conv

EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)


def gradients(loss: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """The gradient of every parameter that the loss depends on."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: gradient for name, gradient in zip(names, found, strict=True) if gradient is not None}


def test_frequency_penalty_is_the_sum_of_squares_over_layers_and_subgroups() -> None:
    first, last = (
        soft_regular_layer(space="D4", relax=relax, learn_relaxation=True)
        for relax in ({"rotation": 0.25, "reflection": 0.5}, {"rotation": 0.125, "translation": (0.5, 0.75)})
    )
    network = nn.ModuleDict({"block": nn.Sequential(first), "strict": soft_regular_layer(relax={}), "last": last})
    penalty = equivariance_penalty(network, kind="frequency")
    expected = 0.25**2 + 0.5**2 + 0.125**2 + 0.5**2 + 0.75**2
    assert penalty.item() == pytest.approx(expected, rel=ROUNDING)
    found = gradients(penalty, network)
    assert found.keys() == {name for name, _ in network.named_parameters() if "frequency" in name}
    for name, gradient in found.items():
        assert gradient.tolist() == pytest.approx((2 * network.get_parameter(name)).tolist(), rel=ROUNDING)


@EVERY_KERNEL
def test_softness_penalty_is_the_sum_of_the_roots(soft_part: str) -> None:
    """Strict layers and hardened ones count 0, and one that is there twice counts once."""
    layers = [soft_regular_layer(soft_part, initial_softness=softness) for softness in (0.01, 0.1, 0.3)]
    strict, hardened = soft_regular_layer(soft_part, relax={}), soft_regular_layer(soft_part)
    hardened.harden()
    network = network_of(*layers, strict, hardened, layers[0])
    expected = sum(math.sqrt(layer.softness().item()) for layer in layers)
    assert expected > 0.5
    assert equivariance_penalty(network).item() == pytest.approx(expected, rel=ROUNDING)
    assert equivariance_penalty(network, kind="softness").item() == equivariance_penalty(network).item()
    for kind in ("frequency", "softness"):
        assert equivariance_penalty(strict, kind).item() == 0


@EVERY_KERNEL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "learn"), [("frequency", True), ("softness", True), ("softness", False)])
def test_gradients_are_finite_where_frequencies_are_zero(
    kind: str, learn: bool, dtype: torch.dtype, soft_part: str
) -> None:
    relax = {"rotation": 0.0, "reflection": 0.0, "translation": 0.0}
    strict = soft_regular_layer(soft_part, "D4", relax, learn_relaxation=learn)
    network = nn.ModuleList([strict, soft_regular_layer(soft_part, learn_relaxation=learn)]).to(dtype)
    found = gradients(equivariance_penalty(network, kind), network)
    assert any(gradient.abs().max() > 0 for gradient in found.values())
    assert all(gradient.isfinite().all() for gradient in found.values())
    if kind == "softness" and learn:
        # There s is only rounding, and the slope of its root is large, in a random direction.
        slopes = {name[0]: slope.item() for name, slope in found.items() if name.endswith("frequency.rotation")}
        assert slopes["0"] == 0
        assert abs(slopes["1"]) > 1e-3


@EVERY_KERNEL
def test_layer_without_a_soft_part_has_no_slope(soft_part: str) -> None:
    """At s = 0 exactly the root has none; 0 is what keeps other gradients as they are."""
    layer = without_soft_part(soft_regular_layer(soft_part))
    assert layer.softness().item() == 0
    penalty = equivariance_penalty(layer, "softness")
    assert penalty.item() == 0
    found = gradients(penalty, layer)
    assert found
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in found.values())


@EVERY_KERNEL
@pytest.mark.parametrize("zero", ["output weights", "frequency"])
def test_layer_that_reached_zero_can_become_soft_again(zero: str, soft_part: str) -> None:
    layer, target = (soft_regular_layer(soft_part, learn_relaxation=zero == "frequency") for _ in range(2))
    if zero == "frequency":
        layer.set_domain_frequency(rotation=0.0)
    else:
        without_soft_part(layer)
    assert layer.softness().item() <= 1e-30  # rounding squared
    features = layer.in_type(battery.random_input(layer.in_type, 5, 5, batch=4))
    wanted = target(features).tensor.detach()
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for _ in range(100):
        optimiser.zero_grad()
        task = (layer(features).tensor - wanted).square().mean()
        (task + 1e-3 * equivariance_penalty(layer, "softness")).backward()
        optimiser.step()
    assert layer.softness().item() > 1e-3


@EVERY_KERNEL
def test_penalty_alone_takes_softness_to_zero(soft_part: str) -> None:
    layer = soft_regular_layer(soft_part)
    assert layer.softness().item() > 0.02
    steps = 150
    optimiser = torch.optim.Adam(layer.parameters(), lr=3e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        equivariance_penalty(layer, "softness").backward()
        optimiser.step()
        schedule.step()
    # √s is as steep near 0 as far from it: steps overshoot by their own size, which falls; found: below 2e-6.
    assert layer.softness().item() < 1e-5


def test_the_root_of_a_softness_far_below_one_is_its_root() -> None:
    """Smaller than the rounding of 1, and no rounding itself: it has a slope."""
    layer = soft_regular_layer()
    with torch.no_grad():
        for parameter in layer.soft_parameters():
            parameter.mul_(1e-9)
    softness = layer.softness()
    assert 0 < softness < torch.finfo(softness.dtype).eps
    assert equivariance_penalty(layer).item() == pytest.approx(softness.item() ** 0.5)


# The bound.


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


def test_penalty_compiles_to_one_graph() -> None:
    bound = SoftnessBound(network_of(soft_regular_layer(learn_relaxation=True)), 0.01)
    steps_of(bound, 2)
    assert bound.multipliers["0"] > 0
    compiled = torch.compile(lambda: bound.penalty(), backend="eager", fullgraph=True)
    assert compiled().item() == pytest.approx(bound.penalty().item(), rel=ROUNDING)


# What is refused.


def fields() -> enn.FieldType:
    return battery.field_type("C4", "regular")


def bound_of(*arguments: object) -> SoftnessBound:
    return SoftnessBound(layers_of(0.1, 0.1), *arguments)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: equivariance_penalty(soft_regular_layer(), "l2"), r"kind.*'frequency'.*'softness'.*'l2'"),
    (
        lambda: equivariance_penalty(nn.Sequential(PartialR2Conv(fields(), fields(), 3)), "frequency"),
        "kind='frequency' weighs ω′, which '0', a PartialR2Conv, does not have",
    ),
    (lambda: equivariance_penalty(enn.R2Conv(fields(), fields(), 3)), "network has no relaxed layer"),
    (lambda: SoftnessBound(enn.R2Conv(fields(), fields(), 3), 0.1), "network has no relaxed layer"),
    (lambda: bound_of({"0": 0.1, "2": 0.1, "a": 0.1}), r"\['2', 'a'\] are not relaxed layers; those are \['0', '1'\]"),
    (lambda: bound_of(-0.01), r"softness of '0' must be bounded by a number in \[0, 1\], got -0.01"),
    (lambda: bound_of(math.nan), r"softness of '0' must be bounded by a number in \[0, 1\], got nan"),
    (lambda: bound_of({"0": 0.5, "1": 2}), r"softness of '1' must be bounded by a number in \[0, 1\], got 2"),
    (lambda: bound_of({}), "are not relaxed layers"),
    (lambda: bound_of(0.1, 0), "rate must be finite and > 0, got 0"),
    (lambda: bound_of(0.1).load_state_dict({"0": 1.0, "2": 2.0}), r"are of \['0', '1'\], got \['0', '2'\]"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
