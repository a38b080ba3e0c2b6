"""gradcheck of the softness with respect to every weight and ω′; what its gradient is where it is 0."""

from __future__ import annotations

import math

import battery
import pytest
import torch
from layers import ROUGH, SOFT_PARTS, build
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, harden_network

EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)

ROTATION = {"rotation": 0.2}
TRANSLATION = {"translation": (0.2, 0.4)}
CASES = [
    ("C4", "regular -> trivial", ROTATION, ()),
    ("C4", "irreps -> regular", ROTATION | TRANSLATION, ()),
    ("C4", "irreps -> regular", ROTATION | TRANSLATION, ("translation",)),
    ("D2", "mixed, sheared -> regular", ROTATION | {"reflection": 0.5}, ("reflection",)),
    ("trivial", "trivial -> trivial", TRANSLATION, ("translation",)),
    ("O(2)", "last irrep -> trivial", ROTATION | {"reflection": 0.5}, ("rotation",)),
]
EVERY_CASE = pytest.mark.parametrize(("space", "pair", "relax", "subgroups"), CASES)


class Softness(nn.Module):
    """The softness of a layer as the answer of a module."""

    def __init__(self, layer: RelaxedR2Conv, *subgroups: str) -> None:
        super().__init__()
        self.layer = layer
        self.subgroups = subgroups

    def forward(self) -> Tensor:
        return self.layer.softness(*self.subgroups)


def learning_layer(space: str, pair: str, relax: dict[str, object], **arguments: object) -> RelaxedR2Conv:
    return build(
        *battery.types(space, pair),
        relax=relax,
        learn_relaxation=True,
        initial_softness=0.3,
        hidden_size=3,
        samples=4,
        filter_frequency=ROUGH,
        **arguments,
    )


def check(module: Softness, fast: bool) -> bool:
    """torch's gradcheck: numerical against analytical Jacobian in float64 (atol 1e-5, rtol 1e-3, its defaults).

    The fast mode compares random combinations of all entries of a Jacobian: it misses an error with probability 0.
    """
    names = [name for name, parameter in module.named_parameters() if name != "layer.bias"]
    parameters = [module.get_parameter(name).detach().clone().requires_grad_() for name in names]

    def call(*values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), ())

    return torch.autograd.gradcheck(call, parameters, fast_mode=fast)


@EVERY_KERNEL
@EVERY_CASE
def test_gradients(space, pair, relax, subgroups, soft_part: str) -> None:
    layer = learning_layer(space, pair, relax, soft_part=soft_part)
    assert 1e-3 < layer.softness(*subgroups).item() < 0.999
    assert check(Softness(layer, *subgroups), fast=True)


@pytest.mark.parametrize(
    ("relax", "soft_part"), [(ROTATION, "tied"), (TRANSLATION, "continuous")], ids=["rotation", "translation"]
)
def test_whole_jacobians(relax: dict[str, object], soft_part: str) -> None:
    layer = learning_layer("C2", "trivial -> regular", relax, soft_part=soft_part)
    assert check(Softness(layer), fast=False)


@EVERY_KERNEL
@pytest.mark.parametrize("first", ["rotation", "translation"])
def test_gradients_of_a_layer_that_is_partly_hardened(first: str, soft_part: str) -> None:
    layer = learning_layer("C4", "irreps -> regular", ROTATION | TRANSLATION, soft_part=soft_part)
    layer = harden_network(layer, (first,))
    assert layer.softness().item() > 1e-3
    assert check(Softness(layer), fast=True)


def gradients(layer: RelaxedR2Conv, softness: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*layer.named_parameters(), strict=True)
    found = torch.autograd.grad(softness, parameters, allow_unused=True)
    return {name: gradient for name, gradient in zip(names, found, strict=True) if gradient is not None}


@EVERY_KERNEL
@EVERY_CASE
def test_every_weight_of_the_kernel_has_a_gradient(space, pair, relax, subgroups, soft_part: str) -> None:
    layer = learning_layer(space, pair, relax, soft_part=soft_part)
    found = gradients(layer, layer.softness())
    assert found.keys() == {name for name, _ in layer.named_parameters()} - {"bias"}
    # Rotation gives all directions that a tied kernel between irreps of O(2) has.
    idle = {"kernel.frequency.reflection"} if soft_part == "tied" and space == "O(2)" else set()
    assert {name for name, gradient in found.items() if not gradient.any()} == idle


@EVERY_KERNEL
@EVERY_CASE
def test_gradient_is_zero_where_nothing_is_soft(space, pair, relax, subgroups, soft_part: str) -> None:
    """At ω′ = 0 softness has its smallest value, and is smooth there."""
    layer = learning_layer(space, pair, relax, soft_part=soft_part)
    layer.set_domain_frequency(**dict.fromkeys(relax, 0.0))
    softness = layer.softness(*subgroups)
    assert softness.item() <= 1e-15
    found = gradients(layer, softness)
    assert found
    assert all(gradient.abs().max() <= 1e-12 for gradient in found.values())  # no nan either


@EVERY_KERNEL
@pytest.mark.parametrize("zero", ["soft part", "everything"])
def test_gradient_is_finite_without_a_kernel(zero: str, soft_part: str) -> None:
    layer = learning_layer("C4", "irreps -> regular", ROTATION | TRANSLATION, soft_part=soft_part)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith(".weights") or (name == "weights" and zero == "everything"):
                parameter.zero_()
    softness = layer.softness()
    assert softness.item() == 0
    found = gradients(layer, softness)
    assert found
    assert all((gradient == 0).all() for gradient in found.values())


@EVERY_KERNEL
def test_softness_grows_with_the_square_of_the_frequency(soft_part: str) -> None:
    layer = learning_layer("C4", "irreps -> regular", ROTATION, soft_part=soft_part)

    def softness(frequency: float) -> float:
        layer.set_domain_frequency(rotation=frequency)
        return layer.softness().item()

    # The next order is ω′ itself, relative.
    for frequency in (1e-5, 1e-4):
        assert softness(2 * frequency) / softness(frequency) == pytest.approx(4, rel=100 * frequency)
        slope = gradients(layer, layer.softness())["kernel.frequency.rotation"].item()
        assert slope == pytest.approx(2 * softness(frequency) / frequency, rel=100 * frequency)


@EVERY_KERNEL
def test_descending_the_softness_makes_a_layer_strict(soft_part: str) -> None:
    layer = learning_layer("C2", "irreps -> regular", ROTATION, soft_part=soft_part)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.03)
    before = layer.softness().item()
    for _ in range(30):
        optimiser.zero_grad()
        layer.softness().backward()
        optimiser.step()
    assert math.isfinite(layer.softness().item())
    assert layer.softness().item() < 0.05 * before
