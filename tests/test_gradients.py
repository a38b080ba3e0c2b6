"""gradcheck of the layer with respect to the input, every weight and ω′, stationary and soft in translation."""

from __future__ import annotations

import battery
import pytest
import torch
from layers import EVERY_KIND, SIZES, SOFT_PARTS, build, relaxation

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.continuous import SirenKernel

CASES = [
    ("C4", "trivial -> regular"),
    ("C4", "regular -> quotient"),
    ("D2", "regular -> irreps"),
    ("D2", "mixed, sheared -> trivial"),
    ("flip", "regular -> regular"),
    ("SO(2)", "trivial -> irreps"),
    ("O(2)", "last irrep -> last irrep"),
]


def check(layer: RelaxedR2Conv, features: torch.Tensor, fast: bool) -> bool:
    """torch's gradcheck: numerical against analytical Jacobian in float64 (atol 1e-5, rtol 1e-3, its defaults).

    The fast mode compares random combinations of all entries of a Jacobian: it misses an error with probability 0.
    """
    names = [name for name, _ in layer.named_parameters()]

    def call(values: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        state = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, state, (layer.in_type(values),)).tensor

    parameters = [parameter.detach().clone().requires_grad_() for parameter in layer.parameters()]
    return torch.autograd.gradcheck(call, [features.requires_grad_(), *parameters], fast_mode=fast)


def learning_layer(space: str, pair: str, kind: str, **arguments: object) -> RelaxedR2Conv:
    return build(
        *battery.types(space, pair),
        **relaxation(kind, battery.subgroups(space, 0.2), (0.2, 0.4)),
        learn_relaxation=True,
        initial_softness=0.3,
        hidden_size=3,
        samples=4,
        padding=1,
        **arguments,
    )


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@EVERY_KIND
@pytest.mark.parametrize(("space", "pair"), CASES)
def test_gradients_of_a_soft_layer(space: str, pair: str, kind: str, soft_part: str) -> None:
    layer = learning_layer(space, pair, kind, soft_part=soft_part)
    names = {name for name, _ in layer.named_parameters()}
    assert any("domain_frequency" in name for name in names)
    assert check(layer, battery.random_input(layer.in_type, *SIZES[kind], batch=1), fast=True)


@pytest.mark.parametrize("kind", ["stationary", "by regions"])
def test_whole_jacobians_of_a_small_layer(kind: str) -> None:
    layer = learning_layer("flip", "trivial -> regular", kind)
    assert check(layer, battery.random_input(layer.in_type, *SIZES[kind], batch=1), fast=False)


@pytest.mark.parametrize(
    "arguments",
    [
        {"net": SirenKernel},
        {"rotation_coordinates": "log"},
        {"stride": 2},
        {"frame": "image", "padding_mode": "circular"},
    ],
    ids=["siren", "log", "stride", "image"],
)
@pytest.mark.parametrize(("kind", "side"), [("by regions", 16), ("per pixel", 3)])
def test_gradients_of_other_forms(arguments: dict[str, object], kind: str, side: int) -> None:
    layer = learning_layer("C4", "regular -> irreps", kind, **arguments)
    assert check(layer, battery.random_input(layer.in_type, side, side, batch=1), fast=True)


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@EVERY_KIND
def test_every_parameter_learns_and_a_learned_frequency_moves_from_zero(kind: str, soft_part: str) -> None:
    """Features have a slope at ω′ = 0."""
    # Fields of irreps see reflection through its products with rotation alone, which have no slope at 0.
    layer = learning_layer("D4", "irreps -> regular", kind, soft_part=soft_part)
    features = layer.in_type(battery.random_input(layer.in_type, *SIZES[kind]))
    for zero in (False, True):
        if zero:
            layer.set_domain_frequency(**{name: 0.0 for name in layer.domain_frequency})
        layer.zero_grad()
        layer(features).tensor.square().sum().backward()
        for name, parameter in layer.named_parameters():
            if not zero or "domain_frequency" in name:
                assert parameter.grad.abs().max() > 0, name
                assert torch.isfinite(parameter.grad).all(), name


def test_fixed_frequency_gets_no_gradient() -> None:
    layer = build(*battery.types("C4", "regular -> regular"), relax={"rotation": 0.2})
    assert not any(value.requires_grad for value in layer.domain_frequency.values())
