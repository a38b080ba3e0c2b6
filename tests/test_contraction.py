"""Both orders of contraction against the plain sum over taps: outputs and every gradient, second ones too."""

from __future__ import annotations

import math

import battery
import pytest
import torch
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv, contraction_cost, tiled_integral
from escnn_relaxed.bank_first import BankFirst
from escnn_relaxed.basis_first import BasisFirst
from escnn_relaxed.contraction import KernelContraction
from escnn_relaxed.integral_operator import integrate_non_stationary

ROUNDING = 1e-12  # relative, float64: sums of some hundred terms in another order; found: 2e-15
ORDERS = [BasisFirst, BankFirst]
BOTH = {"translation": (0.3, 0.5), "rotation": 0.2}

MIXTURE = "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed"

CASES = {
    "one channel": ("trivial", "trivial -> trivial", {"relax": {"translation": 0.4}}),
    "regular": ("C4", "two regular -> regular", {"relax": BOTH}),
    "rotation strict": ("C8", "two regular -> regular", {"relax": {"translation": 0.4}}),
    "continuous": ("C4", "two regular -> regular", {"relax": BOTH, "strict_kernel": "continuous"}),
    "siren": ("C4", "two regular -> regular", {"relax": BOTH, "kernel_net": "siren"}),
    "log": ("C4", "two regular -> regular", {"relax": BOTH, "rotation_coordinates": "log"}),
    "image axes": ("D4", "two regular -> regular", {"relax": {"translation": 0.4}, "frame": "image"}),
    "reflection": ("D4", "two regular -> regular", {"relax": {"translation": 0.4, "reflection": 0.3}}),
    "mixture": (
        "D4",
        "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed",
        {"relax": BOTH},
    ),
    "change of basis": ("C2", "mixed, sheared -> regular", {"relax": BOTH}),
    "into a basis": ("D4", "induced + quotient + trivial -> regular + induced", {"relax": BOTH}),
    "quotient": ("C8", "quotient -> irreps", {"relax": BOTH}),
    "reordered": ("C3", "reordered regular -> regular", {"relax": BOTH}),
    "irreps": ("SO(2)", "band-limited + trivial -> irreps + mixed", {"relax": BOTH}),
    "all": ("O(2)", "irreps -> irreps", {"relax": BOTH | {"reflection": 0.3}}),
    "stride": ("C4", "two regular -> regular", {"relax": BOTH, "stride": 2, "padding": 1}),
    "dilation": ("C4", "two regular -> regular", {"relax": BOTH, "dilation": 2, "padding": 2}),
    "circular": ("C4", "two regular -> regular", {"relax": BOTH, "padding": 1, "padding_mode": "circular"}),
    "reflect": ("C4", "two regular -> regular", {"relax": BOTH, "padding": (2, 1), "padding_mode": "reflect"}),
    "kernel 1": ("C4", "two regular -> regular", {"relax": BOTH, "kernel_size": 1}),
    "kernel 2": ("C4", "two regular -> regular", {"relax": BOTH, "kernel_size": 2}),
    "kernel 4": ("C4", "two regular -> regular", {"relax": BOTH, "kernel_size": 4}),
    "kernel 5": ("C4", "two regular -> regular", {"relax": {"translation": 0.4}, "kernel_size": 5}),
}


def layer_of(case: str, domain: str = "input") -> RelaxedR2Conv:
    space, pair, options = CASES[case]
    arguments = {"kernel_size": 3, "initial_softness": 0.3, "learn_relaxation": True, "domain": domain} | options
    in_type, out_type = battery.types(space, pair)
    return RelaxedR2Conv(in_type, out_type, **arguments).double()


def features_of(layer: RelaxedR2Conv, batch: int = 3) -> Tensor:
    return torch.randn(batch, layer.in_type.size, 7, 6, dtype=torch.float64, requires_grad=True)


def plain(layer: RelaxedR2Conv, features: Tensor, bias: Tensor | None) -> Tensor:
    taps, bank_at = layer.positional_bank(*features.shape[2:])
    return integrate_non_stationary(features, bank_at, taps, bias, layer.geometry)


def contracted(order: type[KernelContraction], layer: RelaxedR2Conv, features: Tensor, bias: Tensor | None) -> Tensor:
    batch, _, height, width = features.shape
    return order(layer._positional_kernel(), (height, width), batch).integrate(features, bias)


def gradients_of(answer: Tensor, layer: RelaxedR2Conv, features: Tensor, **options: bool) -> dict[str, Tensor]:
    inputs = {"features": features} | dict(layer.named_parameters())
    weights = torch.linspace(-1, 2, answer.numel(), dtype=answer.dtype).view_as(answer)
    found = torch.autograd.grad((answer * weights).sum(), list(inputs.values()), allow_unused=True, **options)
    return {name: torch.zeros(()) if value is None else value for name, value in zip(inputs, found, strict=True)}


def assert_close(found: Tensor, expected: Tensor, name: str, scale: float = 0.0) -> None:
    difference, size = float((found - expected).detach().abs().max()), float(expected.detach().abs().max())
    assert difference <= ROUNDING * max(size, scale), f"{name}: {difference} of {size}"


@pytest.fixture(autouse=True, params=[4_000, 60_000], ids=["parts of rows", "rows"])
def tile_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that a 7 × 6 image has several."""
    monkeypatch.setitem(tiled_integral.TILE_BYTES, "cpu", request.param)


@pytest.fixture(autouse=True, params=[0, math.inf], ids=["windows", "patches"])
def moved_factors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlapping windows wherever they are possible, and nowhere."""
    monkeypatch.setattr(contraction_cost, "MOVED_FACTORS", request.param)
    monkeypatch.setattr(contraction_cost, "COPIED_PIXEL", math.inf)


@pytest.mark.parametrize("domain", ["input", "output"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", CASES)
def test_order_gives_the_plain_sum_and_its_gradients(case: str, order: type[KernelContraction], domain: str) -> None:
    layer = layer_of(case, domain)
    features = features_of(layer)
    expected = plain(layer, features, layer.expanded_bias())
    found = contracted(order, layer, features, layer.expanded_bias())
    assert_close(found, expected, "output")
    expected_gradients, gradients = gradients_of(expected, layer, features), gradients_of(found, layer, features)
    largest = max(float(value.abs().max()) for value in expected_gradients.values())
    for name, value in expected_gradients.items():
        assert_close(gradients[name], value, name, scale=largest)
    assert float(expected_gradients["_domain_frequency.translation"].abs().max()) > 1e-6 * largest


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", ["two regular -> regular", MIXTURE])
def test_groups_give_the_plain_sum_and_its_gradients(pair: str, order: type[KernelContraction]) -> None:
    in_type, out_type = battery.types("C4", pair)
    relaxed = {"relax": BOTH, "initial_softness": 0.3}
    layer = RelaxedR2Conv(in_type + in_type, out_type + out_type, 3, groups=2, bias=False, **relaxed).double()
    features = features_of(layer)
    expected, found = plain(layer, features, None), contracted(order, layer, features, None)
    assert_close(found, expected, "output")
    expected_gradients, gradients = gradients_of(expected, layer, features), gradients_of(found, layer, features)
    for name, value in expected_gradients.items():
        assert_close(gradients[name], value, name, scale=1.0)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", ["regular", "siren", "mixture"])
def test_second_derivatives_are_those_of_the_plain_sum(case: str, order: type[KernelContraction]) -> None:
    layer = layer_of(case)
    features = features_of(layer, batch=2)

    def second(answer: Tensor) -> dict[str, Tensor]:
        first = gradients_of(answer, layer, features, create_graph=True)
        return gradients_of(torch.cat([value.flatten() for value in first.values()]), layer, features)

    expected = second(plain(layer, features, None))
    found = second(contracted(order, layer, features, None))
    largest = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        assert_close(found[name], value, name, scale=largest)


@pytest.mark.parametrize("order", ORDERS)
def test_frozen_parts_cost_no_gradient(order: type[KernelContraction]) -> None:
    layer = layer_of("regular")
    features = features_of(layer).detach()
    layer.requires_grad_(False)
    layer.bank.kernel.domain_weight.requires_grad_(True)
    expected = torch.autograd.grad(plain(layer, features, None).sum(), layer.bank.kernel.domain_weight)[0]
    found = torch.autograd.grad(contracted(order, layer, features, None).sum(), layer.bank.kernel.domain_weight)[0]
    assert_close(found, expected, "domain_weight")
