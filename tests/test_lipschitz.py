"""The equivariance error grows at most linearly in ω′: on random layers, and where it can be computed by hand."""

from __future__ import annotations

import math

import battery
import pytest
import torch
from layers import build
from transformations import on_grid_elements, transform

from escnn_relaxed import lipschitz_constants, soft_part_norm
from escnn_relaxed.relaxed_r2conv import RelaxedR2Conv

# ω′ is drawn up to 3.
pytestmark = pytest.mark.filterwarnings("ignore:set_domain_frequency.*aliases:UserWarning")

SIZE = (6, 5)
STATIONARY = [
    ("C4", "regular -> regular", {"rotation": 0.25}),
    ("C4", "trivial -> regular", {"rotation": 0.25}),
    ("D4", "irreps -> regular", {"rotation": 0.25, "reflection": 0.5}),
    ("D4", "regular -> quotient", {"reflection": 0.5}),
    ("SO(2)", "irreps -> irreps", {"rotation": 0.25}),
]
SOFT_IN_TRANSLATION = [("C4", "regular -> trivial"), ("D4", "irreps -> regular")]
OPTIONS = [
    {"kernel_net": "fourier", "strict_kernel": "continuous"},
    {"kernel_net": "fourier", "strict_kernel": "steerable"},
    {"kernel_net": "fourier", "rotation_coordinates": "log", "padding_mode": "replicate"},
    {"kernel_net": "siren", "strict_kernel": "continuous", "padding_mode": "circular", "hidden_size": 8},
]
DRAWS = 50


def layer_of(space: str, pair: str, relax: dict[str, float], **options) -> RelaxedR2Conv:
    in_type, out_type = battery.types(space, pair)
    arguments = {"filter_frequency": 0.5, "padding": 1, "initial_softness": 0.1, "hidden_size": 6} | options
    return build(in_type, out_type, relax=relax, **arguments)


def draw_again(layer: RelaxedR2Conv) -> None:
    """Other weights, each of a size of their own, and ω′ from nearly 0 to 3."""
    for name, parameter in layer.named_parameters():
        if "domain_frequency" not in name:
            parameter.normal_().mul_(3 * torch.rand(()) ** 3)
    drawn = {name: (3 * torch.rand(len(value)) ** 3).tolist() for name, value in layer.domain_frequency.items()}
    layer.set_domain_frequency(**{name: value[0] if len(value) == 1 else tuple(value) for name, value in drawn.items()})


def bound_of(layer: RelaxedR2Conv, size: tuple[int, int] = SIZE) -> float:
    constants = lipschitz_constants(layer, size)
    return sum(float((value.abs() * constants[name]).sum()) for name, value in layer.domain_frequency.items())


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:relax. the domain frequency .* aliases:UserWarning")
@pytest.mark.parametrize("options", OPTIONS, ids=["fourier", "hybrid", "log", "siren"])
@pytest.mark.parametrize(("space", "pair", "relax"), STATIONARY)
def test_bound_holds_on_a_thousand_random_layers(
    space: str, pair: str, relax: dict, options: dict, record_property: pytest.RecordProperty
) -> None:
    """20 layers, each with 50 draws of its weights and ω′."""
    layer = layer_of(space, pair, relax, **options)
    ratios = []
    for _ in range(DRAWS):
        draw_again(layer)
        found, bound = soft_part_norm(layer, SIZE), bound_of(layer)
        assert found <= bound
        ratios.append(bound / found)
    record_property("bound over norm, smallest", min(ratios))
    record_property("bound over norm, median", sorted(ratios)[DRAWS // 2])


@torch.no_grad()
@pytest.mark.parametrize("frame", ["group", "image"])
@pytest.mark.parametrize("domain", ["input", "output"])
@pytest.mark.parametrize(("space", "pair"), SOFT_IN_TRANSLATION)
def test_bound_holds_for_soft_translation(space: str, pair: str, domain: str, frame: str) -> None:
    relax = {"rotation": 0.25, "translation": (0.2, 0.4)}
    layer = layer_of(space, pair, relax, domain=domain, frame=frame, hidden_size=4, padding_mode="reflect")
    for _ in range(3):
        draw_again(layer)
        assert soft_part_norm(layer, SIZE) <= bound_of(layer)


@torch.no_grad()
@pytest.mark.parametrize("strict_kernel", ["steerable", "continuous"])
def test_bound_holds_for_the_measured_error_of_every_group_element(strict_kernel: str) -> None:
    layer = layer_of("D4", "regular -> irreps", {"rotation": 0.25}, strict_kernel=strict_kernel)
    features = torch.randn(1, layer.in_type.size, 5, 5, dtype=torch.float64)
    for element in on_grid_elements(layer.in_type.gspace):
        turned = layer(layer.in_type(transform(features, layer.in_type, element))).tensor
        expected = transform(layer(layer.in_type(features)).tensor, layer.out_type, element)
        assert float((turned - expected).norm()) <= 2 * bound_of(layer, (5, 5)) * float(features.norm())


@torch.no_grad()
def test_constant_of_a_kernel_with_one_value_is_its_slope() -> None:
    """κ(a) = w cos(A cos 2πWωa + B sin 2πWωa + b) for a ∈ {0, ½}, on one tap: |κ − κ̄| ≤ w |(A, B)| 2π |W| ω/2."""
    in_type, out_type = battery.types("D1", "trivial -> trivial")
    layer = build(
        in_type, out_type, kernel_size=1, relax={"reflection": 0.1}, hidden_size=1, strict_kernel="continuous"
    )
    kernel, (pair,) = layer.bank.kernel, layer.bank.steered_average.block_pairs
    weight = float((pair.weights @ pair.units)[0, 0, 0].abs())
    slope = float(kernel.domain_weight.norm() * kernel.domain_projection.norm()) * 2 * math.pi / math.sqrt(16)
    window = float(layer.bank.grid.window)
    expected = weight * slope * 0.5 * window
    assert lipschitz_constants(layer, (4, 4))["reflection"].item() == pytest.approx(expected, rel=1e-12)


@torch.no_grad()
def test_constants_do_not_depend_on_the_frequency_and_are_zero_for_hardened_subgroups() -> None:
    layer = layer_of("D4", "regular -> regular", {"rotation": 0.25, "reflection": 0.25})
    before = lipschitz_constants(layer, SIZE)
    layer.set_domain_frequency(rotation=0.3, reflection=0.0)
    after = lipschitz_constants(layer, SIZE)
    assert all(torch.equal(before[name], after[name]) and before[name] > 0 for name in before)
    layer.harden("reflection")
    assert lipschitz_constants(layer, SIZE)["reflection"].item() == 0
    layer.harden()
    assert bound_of(layer) == 0


def test_strict_layer_has_no_constants() -> None:
    in_type, out_type = battery.types("C4", "regular -> regular")
    assert lipschitz_constants(build(in_type, out_type, relax=None), SIZE) == {}
