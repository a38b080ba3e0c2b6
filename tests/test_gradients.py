"""Gradients where a layer is not soft, and of ω′; those of every form are in the small."""

import pytest
import small
import torch
from small import EVERY_KERNEL, EVERY_KIND, ROUGH, SIZES, relaxation, soft_layer
from small_networks import gradients, soft_weights

from escnn_relaxed import RelaxedR2Conv

ROTATION = {"rotation": 0.2}
CASES = [
    ("C4", "irreps -> regular", ROTATION | {"translation": (0.2, 0.4)}),
    ("D2", "mixed, sheared -> regular", ROTATION | {"reflection": 0.5}),
    ("O(2)", "last irrep -> trivial", ROTATION | {"reflection": 0.5}),
]


def learning_layer(space: str, pair: str, relax: dict, soft_part: str = "tied", **arguments: object) -> RelaxedR2Conv:
    arguments |= {"filter_frequency": ROUGH, "hidden_size": 3} if soft_part == "continuous" else {}
    options = {"learn_relaxation": True, "samples": 4, "padding": 1}
    return soft_layer(space, pair, relax=relax, soft_part=soft_part, **options, **arguments)


@EVERY_KERNEL
@EVERY_KIND
def test_learned_frequency_moves_from_zero(kind: str, soft_part: str) -> None:
    """Features have a slope at ω′ = 0."""
    # Fields of irreps see reflection through its products with rotation alone, which have no slope at 0.
    given = relaxation(kind, {"rotation": 0.2, "reflection": 0.2})
    layer = learning_layer("D4", "irreps -> regular", soft_part=soft_part, **given)
    layer.set_domain_frequency(**dict.fromkeys(layer.domain_frequency, 0.0))
    layer(layer.in_type(small.random_input(layer.in_type, *SIZES[kind]))).tensor.square().sum().backward()
    assert layer.is_stationary == (kind == "stationary")
    for name, parameter in layer.named_parameters():
        if "kernel.frequency" in name:
            assert (parameter.grad.abs() > 1e-6).all(), name  # rounding would be 1e-15


@EVERY_KERNEL
@pytest.mark.parametrize(("space", "pair", "relax"), CASES)
def test_gradient_of_softness_is_zero_where_nothing_is_soft(space, pair, relax, soft_part: str) -> None:
    """At ω′ = 0 softness has its smallest value, and is smooth there; without a soft part it has finite slopes."""
    layer = learning_layer(space, pair, relax, soft_part)
    # Rotation gives all directions that a tied kernel between irreps of O(2) has.
    idle = {"reflection"} if soft_part == "tied" and space == "O(2)" else set()
    found = gradients(layer.softness(), layer)
    assert {name.rpartition(".")[2] for name, gradient in found.items() if not gradient.any()} <= idle
    without = learning_layer(space, pair, relax, soft_part)
    with torch.no_grad():
        for weights in soft_weights(without):
            weights.zero_()
    layer.set_domain_frequency(**dict.fromkeys(relax, 0.0))
    for each in (layer, without):
        softness = each.softness()
        assert softness.item() <= 1e-15
        found = gradients(softness, each)
        assert found
        assert all(gradient.isfinite().all() for gradient in found.values())
        assert each is without or all(gradient.abs().max() <= 1e-12 for gradient in found.values())
