"""The penalty that is added to the loss so that layers are only as soft as the task needs."""

from __future__ import annotations

import math

import battery
import pytest
import torch
from escnn import nn as enn
from layers import SOFT_PARTS
from soft_networks import network_of, soft_regular_layer, without_soft_part
from tolerances import ROUNDING
from torch import Tensor, nn

from escnn_relaxed import SoftnessBound, equivariance_penalty
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


def test_what_cannot_be_penalised_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kind.*'frequency'.*'softness'.*'l2'"):
        equivariance_penalty(soft_regular_layer(), "l2")
    fields = battery.field_type("C4", "regular")
    with pytest.raises(ValueError, match="kind='frequency' weighs ω′, which '0', a PartialR2Conv, does not have"):
        equivariance_penalty(nn.Sequential(PartialR2Conv(fields, fields, 3)), "frequency")
    plain = enn.SequentialModule(enn.R2Conv(fields, fields, 3), enn.ReLU(fields))
    for call in equivariance_penalty, lambda net: SoftnessBound(net, 0.1):
        with pytest.raises(ValueError, match="network has no relaxed layer"):
            call(plain)


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
