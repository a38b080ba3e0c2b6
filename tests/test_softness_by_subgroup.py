"""ω′ loosens the subgroup that it names: continuously from 0, and no other subgroup than it must."""

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
    rotations,
    shift_error,
)
from small import TORUS, soft_layer

from escnn_relaxed import RelaxedR2Conv

PAIRS = (
    "trivial -> regular",
    "regular -> trivial",
    "irreps -> irreps",
    "mixed, sheared -> regular",
    "quotient -> induced",
)
CONTINUOUS_PAIRS = ("trivial -> irreps", "band-limited -> irreps", "mixed -> trivial")


def cases(*spaces: str) -> list[tuple[str, str, str]]:
    """Every pair of each symmetry, and of one in three a layer of the paper's form."""
    table = [(space, pair) for space in spaces for pair in (CONTINUOUS_PAIRS if space in small.CONTINUOUS else PAIRS)]
    return [(*case, "tied") for case in table] + [(*case, "continuous") for case in table[::3]]


def layer_on_torus(space: str, pair: str, relax: dict[str, float], **arguments: object) -> RelaxedR2Conv:
    return soft_layer(space, pair, relax=relax, **TORUS, **arguments)


@pytest.mark.parametrize(("space", "pair", "soft_part"), cases("C2", "C4", "C8", "D4", "SO(2)", "O(2)"))
def test_soft_rotation_breaks_rotation_and_not_translation(space: str, pair: str, soft_part: str) -> None:
    layer = layer_on_torus(space, pair, {"rotation": 0.2}, soft_part=soft_part)
    features = small.random_input(layer.in_type, 5, 5)
    assert min(equivariance_error(layer, features, g) for g in rotations(layer.in_type.gspace)) > BROKEN
    assert shift_error(layer, features) <= ROUNDING
    if layer.in_type.gspace.flips_order:
        # Reflections are no normal subgroup: all but one of them hold a rotation.
        assert largest_error(layer, features, reflections) > BROKEN


@pytest.mark.filterwarnings("ignore:relax. the layer from .* cannot be soft")
@pytest.mark.parametrize(("space", "pair", "soft_part"), cases("flip", "flip axis 0", "D1", "D4", "D6", "O(2)"))
def test_soft_reflection_breaks_reflection_alone(space: str, pair: str, soft_part: str) -> None:
    layer = layer_on_torus(space, pair, {"reflection": 0.5}, soft_part=soft_part)
    features = small.random_input(layer.in_type, 5, 5)
    if layer.cannot_be_soft:
        # Rotations take the directions of taps away, and no field on either side has elements.
        assert soft_part == "tied"
        assert space in small.WITH_ROTATION
        assert space == "O(2)" or "regular" not in pair
        assert largest_error(layer, features) <= ROUNDING
        return
    assert min(equivariance_error(layer, features, g) for g in reflections(layer.in_type.gspace)) > BROKEN
    if rotations(layer.in_type.gspace):
        assert largest_error(layer, features, rotations) <= ROUNDING
    assert shift_error(layer, features) <= ROUNDING


@pytest.mark.parametrize(
    ("space", "pair", "subgroup", "soft_part"),
    [
        ("C4", "two regular -> regular", "rotation", "tied"),
        ("C8", "irreps -> irreps", "rotation", "continuous"),
        ("SO(2)", "band-limited -> irreps", "rotation", "tied"),
        ("D4", "irreps -> regular", "reflection", "tied"),
        ("O(2)", "irreps -> band-limited", "reflection", "continuous"),
        ("D4", "two regular -> regular", "translation", "tied"),
        ("C4", "regular -> irreps", "translation", "continuous"),
    ],
)
def test_error_grows_from_zero_with_the_frequency(space: str, pair: str, subgroup: str, soft_part: str) -> None:
    layer = layer_on_torus(space, pair, {subgroup: 0.2}, soft_part=soft_part)
    features = small.random_input(layer.in_type, 8, 8)

    def error(frequency: float) -> float:
        layer.set_domain_frequency(**{subgroup: frequency})
        if subgroup == "translation":
            return shift_error(layer, features)
        return largest_error(layer, features, rotations if subgroup == "rotation" else reflections)

    frequencies = [0.0, 1e-6, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1]
    errors = [error(frequency) for frequency in frequencies]
    assert errors[0] <= ROUNDING
    assert errors == sorted(errors)
    # Features have a slope at 0, so the error is proportional to a small ω′; the next order is about ω′ itself.
    for frequency, found in zip(frequencies[1:4], errors[1:4], strict=True):
        assert found / frequency == pytest.approx(errors[2] / 1e-4, rel=0.05)


@pytest.mark.filterwarnings("ignore:rotation_coordinates='log'")
@pytest.mark.filterwarnings("ignore:set_domain_frequency.*aliases:UserWarning")
@pytest.mark.parametrize("pair", ["regular -> regular", "regular -> irreps"])
@pytest.mark.parametrize("form", ["log", "circle"])
def test_integer_frequency_leaves_turns_exact_in_log_coordinates_alone(pair: str, form: str) -> None:
    """The trap of the angle with the Fourier net: at ω′ = m turns by 360°/m see the same kernel."""
    layer = layer_on_torus("C8", pair, {"rotation": 0.5}, rotation_coordinates=form)
    features = small.random_input(layer.in_type, 5, 5)
    quarter, half, _ = on_grid_elements(layer.in_type.gspace)
    layer.set_domain_frequency(rotation=2.0)
    assert equivariance_error(layer, features, quarter) > BROKEN
    assert (equivariance_error(layer, features, half) <= ROUNDING) == (form == "log")
    layer.set_domain_frequency(rotation=4.0)
    assert (equivariance_error(layer, features, quarter) <= ROUNDING) == (form == "log")
