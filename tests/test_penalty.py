"""The penalty that is added to the loss so that layers are only as soft as the task needs."""

from __future__ import annotations

import math
import re

import battery
import pytest
import torch
from escnn import nn as enn
from layers import SOFT_PARTS
from soft_networks import network_of, soft_regular_layer, without_soft_part
from tolerances import ROUNDING
from torch import Tensor, nn

from escnn_relaxed import HardeningSchedule, SoftnessBound, equivariance_penalty, harden_network

EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)


def gradients(loss: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """The gradient of every parameter that the loss depends on."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: gradient for name, gradient in zip(names, found, strict=True) if gradient is not None}


def test_frequency_penalty_is_the_sum_of_squares_over_layers_and_subgroups() -> None:
    first = soft_regular_layer(space="D4", relax={"rotation": 0.25, "reflection": 0.5}, learn_relaxation=True)
    second = soft_regular_layer(
        space="D4", relax={"rotation": 0.125, "translation": (0.5, 0.75)}, learn_relaxation=True
    )
    network = nn.ModuleDict({"block": nn.Sequential(first), "strict": soft_regular_layer(relax={}), "last": second})
    penalty = equivariance_penalty(network, kind="frequency")
    expected = 0.25**2 + 0.5**2 + 0.125**2 + 0.5**2 + 0.75**2
    assert penalty.item() == pytest.approx(expected, rel=ROUNDING)
    found = gradients(penalty, network)
    assert found.keys() == {name for name, _ in network.named_parameters() if "domain_frequency" in name}
    for name, gradient in found.items():
        assert gradient.tolist() == pytest.approx((2 * network.get_parameter(name)).tolist(), rel=ROUNDING)


def test_softness_penalty_is_the_sum_of_the_roots() -> None:
    layers = [soft_regular_layer(initial_softness=softness) for softness in (0.01, 0.1, 0.3)]
    network = network_of(*layers, soft_regular_layer(relax={}))
    expected = sum(math.sqrt(layer.softness().item()) for layer in layers)
    assert expected > 0.5
    assert equivariance_penalty(network).item() == pytest.approx(expected, rel=ROUNDING)
    assert equivariance_penalty(network, kind="softness").item() == equivariance_penalty(network).item()


def test_a_layer_that_is_there_twice_counts_once() -> None:
    layer = soft_regular_layer()
    for kind in ("frequency", "softness"):
        twice = equivariance_penalty(enn.SequentialModule(layer, layer), kind)
        assert twice.item() == equivariance_penalty(layer, kind).item() > 0


@EVERY_KERNEL
@pytest.mark.parametrize("kind", ["frequency", "softness"])
def test_strict_layers_count_zero(kind: str, soft_part: str) -> None:
    strict = soft_regular_layer(soft_part, relax={})
    assert equivariance_penalty(strict, kind).item() == 0
    soft = soft_regular_layer(soft_part)
    alone = equivariance_penalty(soft, kind).item()
    assert alone > 0.01
    assert equivariance_penalty(network_of(soft, strict), kind).item() == alone


@EVERY_KERNEL
def test_hardened_layers_count_zero(soft_part: str) -> None:
    network = network_of(soft_regular_layer(soft_part))
    assert equivariance_penalty(harden_network(network), "softness").item() == 0
    network[0].harden()
    assert equivariance_penalty(network, "softness").item() == 0


@pytest.mark.parametrize("kind", ["Softness", "l2", ""])
def test_unknown_kind_is_named(kind: str) -> None:
    with pytest.raises(ValueError, match=rf"kind.*'frequency'.*'softness'.*{re.escape(repr(kind))}"):
        equivariance_penalty(soft_regular_layer(), kind)


def build_nothing_relaxed() -> nn.Module:
    in_type, out_type = battery.types("C4", "regular -> regular")
    return enn.SequentialModule(enn.R2Conv(in_type, out_type, 3), enn.ReLU(out_type))


@pytest.mark.parametrize(
    "call",
    [
        lambda network: equivariance_penalty(network, "frequency"),
        equivariance_penalty,
        lambda network: HardeningSchedule(network, 10),
        lambda network: SoftnessBound(network, 0.1),
    ],
    ids=["frequency", "softness", "schedule", "bound"],
)
def test_network_without_relaxed_layers_is_refused(call) -> None:
    with pytest.raises(ValueError, match="network has no relaxed layer"):
        call(build_nothing_relaxed())


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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layer_with_learned_frequencies_at_zero_has_no_slope(dtype: torch.dtype, soft_part: str) -> None:
    """There s is only rounding, and the slope of its root is large, in a random direction."""
    strict = soft_regular_layer(soft_part, learn_relaxation=True)
    strict.set_domain_frequency(rotation=0.0)
    network = nn.ModuleList([strict, soft_regular_layer(soft_part, learn_relaxation=True)]).to(dtype)
    found = gradients(equivariance_penalty(network, "softness"), network)
    assert found["1._domain_frequency.rotation"].abs().item() > 1e-3
    assert found["0._domain_frequency.rotation"].item() == 0


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
    layer = soft_regular_layer(initial_softness=0.1)
    layer.bank.scale(1e-9)
    softness = layer.softness()
    assert 0 < softness < torch.finfo(softness.dtype).eps
    assert equivariance_penalty(layer).item() == pytest.approx(softness.item() ** 0.5)
