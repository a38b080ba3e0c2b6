"""Strict layers are equivariant to rounding, soft translation about the centre of an image, and ω′ does the rest."""

from __future__ import annotations

import pytest
import small
from errors import (
    BROKEN,
    ROUNDING,
    equivariance_error,
    largest_error,
    on_grid_elements,
    reflections,
    relative_error,
    rotations,
    shift_error,
)
from small import TORUS, build, soft_layer

from escnn_relaxed import harden_network


@pytest.mark.parametrize(
    ("space", "pair", "soft_part"),
    [
        *((*case, "tied") for case in small.covering("D4", step=5)),
        *((*case, "continuous") for case in small.covering(step=7)),
    ],
)
def test_strict_layer_is_equivariant(space: str, pair: str, soft_part: str) -> None:
    layer = build(*small.types(space, pair), **TORUS, relax=None, soft_part=soft_part)
    features = small.random_input(layer.in_type, 5, 5)
    if on_grid_elements(layer.in_type.gspace):
        assert largest_error(layer, features) <= ROUNDING
    assert shift_error(layer, features) <= ROUNDING


@pytest.mark.parametrize(
    ("space", "pair", "learn", "soft_part"),
    [
        ("flip axis 0", "irreps -> two regular", False, "tied"),
        ("C4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed", True, "tied"),
        ("C8", "induced + quotient + trivial -> regular + induced", False, "tied"),
        ("D4", "two regular -> regular", True, "continuous"),
        ("D6", "quotient -> irreps", False, "continuous"),
        ("SO(2)", "band-limited + trivial -> irreps + mixed", True, "tied"),
        ("O(2)", "induced -> induced", False, "tied"),
    ],
)
def test_layer_with_every_frequency_at_zero_is_strict(space: str, pair: str, learn: bool, soft_part: str) -> None:
    """From the start, and where it was soft before."""
    names = {"translation": 0.0, **small.subgroups(space, 0.0)}
    layer = soft_layer(space, pair, relax=names, learn_relaxation=learn, soft_part=soft_part, **TORUS)
    features = small.random_input(layer.in_type, 8, 8)
    assert largest_error(layer, features) <= ROUNDING
    layer.set_domain_frequency(**dict.fromkeys(names, 0.2))
    assert largest_error(layer, features) > BROKEN
    assert layer.softness().item() > 1e-3
    layer.set_domain_frequency(**names)
    assert layer.is_stationary != learn
    assert layer.softness().item() <= 1e-15
    assert largest_error(layer, features) <= ROUNDING
    assert shift_error(layer, features) <= ROUNDING
    layer.harden("translation")  # a learned ω′ might be soft in it
    assert relative_error(harden_network(layer).filter_bank().detach(), layer.filter_bank().detach()) <= ROUNDING


# A pair of each kind for a symmetry of each kind.
CASES = [
    ("flip", "trivial -> regular", "tied"),
    ("C2", "mixed, sheared -> regular", "continuous"),
    ("C4", "two regular -> regular", "tied"),
    ("C4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed", "tied"),
    ("C8", "quotient -> irreps", "tied"),
    ("D4", "two regular -> regular", "continuous"),
    ("D4", "induced + quotient + trivial -> regular + induced", "tied"),
    ("D4 axis 45°", "regular -> irreps", "tied"),
    ("D6", "regular -> quotient", "tied"),
    ("SO(2)", "band-limited + trivial -> irreps + mixed", "continuous"),
    ("O(2)", "irreps -> irreps", "tied"),
]


@pytest.mark.parametrize(("space", "pair", "soft_part"), CASES)
def test_soft_translation_keeps_the_group_about_the_image_centre_alone(space: str, pair: str, soft_part: str) -> None:
    layer = soft_layer(space, pair, relax={"translation": (0.1, 0.6)}, soft_part=soft_part, **TORUS)
    for size in ((2, 2), (3, 4), (5, 5), (6, 6)):
        features = small.random_input(layer.in_type, *size, batch=1)
        assert largest_error(layer, features) <= ROUNDING
    assert shift_error(layer, features) > BROKEN


@pytest.mark.parametrize("axis", [0, 1], ids=["x", "y"])
def test_one_frequency_at_zero_keeps_translation_along_that_axis(axis: int) -> None:
    relax = {"translation": [(0.0, 0.4), (0.4, 0.0)][axis]}
    layer = soft_layer("trivial", "trivial -> regular", relax=relax, **TORUS)
    features = small.random_input(layer.in_type, 12, 12)
    along, across = ((0, 1), (1, 0)) if axis == 0 else ((1, 0), (0, 1))
    assert shift_error(layer, features, *along) <= ROUNDING
    assert shift_error(layer, features, *across) > BROKEN


@pytest.mark.parametrize(
    ("space", "pair", "soft_part"),
    [
        ("C2", "irreps -> irreps", "tied"),
        ("C8", "quotient -> induced", "continuous"),
        ("D4", "mixed, sheared -> regular", "tied"),
        ("D4", "regular -> trivial", "continuous"),
        ("D4", "regular -> regular", "tied"),
        ("flip", "regular -> irreps", "continuous"),
        ("O(2)", "band-limited -> irreps", "continuous"),
    ],
)
def test_soft_subgroup_is_broken_and_no_other_than_must_be(space: str, pair: str, soft_part: str) -> None:
    for name, elements, others in (("rotation", rotations, "reflection"), ("reflection", reflections, "rotation")):
        if name in small.subgroups(space, 0.3):
            layer = soft_layer(space, pair, relax={name: 0.2}, soft_part=soft_part, **TORUS)
            features = small.random_input(layer.in_type, 5, 5)
            assert min(equivariance_error(layer, features, g) for g in elements(layer.in_type.gspace)) > BROKEN
            assert shift_error(layer, features) <= ROUNDING
            # Reflections are no normal subgroup: all but one of them hold a rotation.
            is_exact = name == "reflection" or space not in small.WITH_REFLECTION
            if name == "reflection" and rotations(layer.in_type.gspace):
                assert largest_error(layer, features, rotations) <= ROUNDING
            assert name == "reflection" or largest_error(layer, features) > BROKEN
            assert layer.softness(name).item() == pytest.approx(layer.softness().item(), rel=ROUNDING)
            assert layer.softness() > 1e-3
            for exact in (others, "translation") if is_exact else ("translation",):
                assert layer.softness(exact).item() <= 1e-15
                bank = harden_network(layer, (exact,)).filter_bank().detach()
                assert relative_error(bank, layer.filter_bank().detach()) <= ROUNDING


@pytest.mark.filterwarnings("ignore:rotation_coordinates='log'")
@pytest.mark.filterwarnings("ignore:set_domain_frequency.*aliases:UserWarning")
@pytest.mark.parametrize("pair", ["regular -> regular", "regular -> irreps"])
@pytest.mark.parametrize("form", ["log", "circle"])
def test_integer_frequency_leaves_turns_exact_in_log_coordinates_alone(pair: str, form: str) -> None:
    """The trap of the angle with the Fourier net: at ω′ = m turns by 360°/m see the same kernel."""
    layer = soft_layer("C8", pair, relax={"rotation": 0.5}, rotation_coordinates=form, **TORUS)
    features = small.random_input(layer.in_type, 5, 5)
    quarter, half, _ = on_grid_elements(layer.in_type.gspace)
    layer.set_domain_frequency(rotation=2.0)
    assert equivariance_error(layer, features, quarter) > BROKEN
    assert (equivariance_error(layer, features, half) <= ROUNDING) == (form == "log")
    layer.set_domain_frequency(rotation=4.0)
    assert (equivariance_error(layer, features, quarter) <= ROUNDING) == (form == "log")
