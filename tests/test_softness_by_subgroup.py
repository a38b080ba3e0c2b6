"""ω′ loosens the subgroup that it names: continuously from 0, and no other subgroup than it must."""

from __future__ import annotations

import battery
import pytest
from layers import SOFT_PARTS, TORUS, soft_layer
from tolerances import BROKEN, ROUNDING
from transformations import (
    equivariance_error,
    largest_error,
    on_grid_elements,
    reflections,
    rotations,
    shift_error,
)

from escnn_relaxed.kernel import SirenKernel

PAIRS = (
    "trivial -> regular",
    "two regular -> regular",
    "regular -> trivial",
    "irreps -> irreps",
    "mixed, sheared -> regular",
    "quotient -> induced",
)
CONTINUOUS_PAIRS = ("trivial -> irreps", "band-limited -> irreps", "mixed -> trivial")


def cases(*spaces: str) -> list[tuple[str, str, str]]:
    """Every pair of each symmetry in one form of the kernel; forms in turn, the other one in the next symmetry."""
    return [
        (space, pair, SOFT_PARTS[(row + number) % 2])
        for row, space in enumerate(spaces)
        for number, pair in enumerate(CONTINUOUS_PAIRS if space in battery.CONTINUOUS else PAIRS)
    ]


def layer_on_torus(space: str, pair: str, relax: dict[str, float], soft_part: str = "continuous", **arguments):
    return soft_layer(space, pair, relax=relax, soft_part=soft_part, **TORUS, **arguments)


@pytest.mark.parametrize(("space", "pair", "soft_part"), cases("C2", "C4", "C8", "D4", "SO(2)", "O(2)"))
def test_soft_rotation_breaks_rotation_and_not_translation(space: str, pair: str, soft_part: str) -> None:
    layer = layer_on_torus(space, pair, {"rotation": 0.2}, soft_part)
    features = battery.random_input(layer.in_type, 5, 5)
    assert min(equivariance_error(layer, features, g) for g in rotations(layer.in_type.gspace)) > BROKEN
    assert shift_error(layer, features) <= ROUNDING


@pytest.mark.parametrize(("space", "pair", "soft_part"), cases("flip", "flip axis 0", "D1", "D4", "D6", "O(2)"))
def test_soft_reflection_breaks_reflection_alone(space: str, pair: str, soft_part: str) -> None:
    layer = layer_on_torus(space, pair, {"reflection": 0.5}, soft_part)
    features = battery.random_input(layer.in_type, 5, 5)
    if soft_part == "tied" and space in battery.WITH_ROTATION and "regular" not in pair.rpartition("-> ")[2]:
        # Rotations take the directions of taps away, and these fields have no element.
        assert layer.cannot_be_soft == ("reflection",)
        assert largest_error(layer, features) <= ROUNDING
        return
    assert min(equivariance_error(layer, features, g) for g in reflections(layer.in_type.gspace)) > BROKEN
    if rotations(layer.in_type.gspace):
        assert largest_error(layer, features, rotations) <= ROUNDING
    assert shift_error(layer, features) <= ROUNDING


@pytest.mark.parametrize("pair", ["two regular -> regular", "irreps -> irreps"])
def test_soft_rotation_softens_reflections_too(pair: str) -> None:
    """Reflections are no normal subgroup of D_N: all but one of them hold a rotation."""
    layer = layer_on_torus("D4", pair, {"rotation": 0.2})
    features = battery.random_input(layer.in_type, 5, 5)
    assert largest_error(layer, features, reflections) > BROKEN


@pytest.mark.parametrize(
    ("space", "pair", "subgroup", "soft_part"),
    [
        ("C4", "two regular -> regular", "rotation", "tied"),
        ("C8", "irreps -> irreps", "rotation", "continuous"),
        ("SO(2)", "band-limited -> irreps", "rotation", "tied"),
        ("flip", "two regular -> regular", "reflection", "continuous"),
        ("D4", "irreps -> regular", "reflection", "tied"),
        ("O(2)", "irreps -> band-limited", "reflection", "continuous"),
        ("D4", "two regular -> regular", "translation", "tied"),
        ("C4", "regular -> irreps", "translation", "continuous"),
    ],
)
def test_error_grows_from_zero_with_the_frequency(space: str, pair: str, subgroup: str, soft_part: str) -> None:
    layer = layer_on_torus(space, pair, {subgroup: 0.2}, soft_part)
    features = battery.random_input(layer.in_type, 8, 8)

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


@pytest.mark.filterwarnings("ignore:set_domain_frequency.*aliases:UserWarning")
@pytest.mark.parametrize("pair", ["regular -> regular", "regular -> irreps"])
@pytest.mark.parametrize("form", ["log", "circle"])
def test_integer_frequency_leaves_turns_exact_in_log_coordinates_alone(pair: str, form: str) -> None:
    """The trap of the angle with the Fourier net: at ω′ = m turns by 360°/m see the same kernel."""
    layer = layer_on_torus("C8", pair, {"rotation": 0.5}, rotation_coordinates=form)
    features = battery.random_input(layer.in_type, 5, 5)
    quarter, half, _ = on_grid_elements(layer.in_type.gspace)
    layer.set_domain_frequency(rotation=2.0)
    assert equivariance_error(layer, features, quarter) > BROKEN
    if form == "log":
        assert equivariance_error(layer, features, half) <= ROUNDING
    else:
        assert equivariance_error(layer, features, half) > BROKEN
    layer.set_domain_frequency(rotation=4.0)
    if form == "log":
        assert equivariance_error(layer, features, quarter) <= ROUNDING
    else:
        assert equivariance_error(layer, features, quarter) > BROKEN


@pytest.mark.filterwarnings("ignore:set_domain_frequency.*aliases:UserWarning")
def test_no_frequency_of_the_angle_leaves_a_turn_exact_with_the_net_of_the_paper() -> None:
    """docs/how-to/reproduce.md: the weights of a SIREN are no integers, so no ω′ makes it periodic."""
    layer = layer_on_torus(
        "C8", "two regular -> regular", {"rotation": 0.5}, rotation_coordinates="log", net=SirenKernel
    )
    features = battery.random_input(layer.in_type, 5, 5)
    for frequency in (1.0, 2.0, 4.0):
        layer.set_domain_frequency(rotation=frequency)
        assert min(equivariance_error(layer, features, g) for g in on_grid_elements(layer.in_type.gspace)) > BROKEN


@pytest.mark.parametrize("pair", ["two regular -> regular", "irreps -> irreps"])
def test_every_subgroup_can_be_soft_at_once(pair: str) -> None:
    layer = layer_on_torus("D4", pair, {"rotation": 0.2, "reflection": 0.5, "translation": 0.3})
    features = battery.random_input(layer.in_type, 8, 8)
    assert min(equivariance_error(layer, features, g) for g in on_grid_elements(layer.in_type.gspace)) > BROKEN
    assert shift_error(layer, features) > BROKEN


def test_starting_softness_orders_the_error() -> None:
    errors = []
    for softness in (0.001, 0.01, 0.1, 0.5):
        layer = layer_on_torus("C4", "two regular -> regular", {"rotation": 0.2}, initial_softness=softness)
        errors.append(largest_error(layer, battery.random_input(layer.in_type, 9, 9, batch=8)))
    # On white noise the error is √(2s) (equation (7)); the drawn weights scatter s by about a factor of 2.
    for softness, error in zip((0.001, 0.01, 0.1, 0.5), errors, strict=True):
        assert (2 * softness) ** 0.5 / 3 < error < (2 * softness) ** 0.5 * 3
