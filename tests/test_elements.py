"""Coordinates of group elements, against matrices written out and escnn's own."""

from __future__ import annotations

import math

import battery
import numpy as np
import pytest
from reference_coordinates import angle_and_flip
from tolerances import FEW_TERMS

from escnn_relaxed.group.elements import (
    circle_harmonic_limit,
    group_coordinates,
    has_subgroup,
    relative_elements,
    sample_group,
    steer,
    translates,
)
from escnn_relaxed.group.points import pixel_positions


def rotation_matrix(angle: float) -> np.ndarray:
    """Written out: the package takes it from lie_learn."""
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


@pytest.mark.parametrize("space", battery.GSPACES)
def test_angle_is_principal_and_rebuilds_the_action(space: str) -> None:
    """g = r^θ f^s: a rotation by θ after the reflection that escnn calls f."""
    gspace = battery.gspace(space)
    sample = sample_group(gspace, samples=12)
    assert (sample.angle > -math.pi).all()
    assert (sample.angle <= math.pi).all()
    reflection = next((a for a in sample.action if np.linalg.det(a) < 0), np.eye(2))
    for element, angle, flip in zip(sample.elements, sample.angle, sample.reflected, strict=True):
        expected = rotation_matrix(angle) @ (reflection if flip else np.eye(2))
        assert np.abs(gspace.basespace_action(element) - expected).max() <= FEW_TERMS


@pytest.mark.parametrize("space", battery.GSPACES)
def test_angle_and_flip_are_those_of_escnns_parametrisation(space: str) -> None:
    sample = sample_group(battery.gspace(space), samples=8)
    expected = [angle_and_flip(battery.gspace(space), element) for element in sample.elements]
    assert np.allclose(sample.angle, [angle for angle, _ in expected], rtol=0, atol=FEW_TERMS)
    assert sample.reflected.tolist() == [flip for _, flip in expected]


def test_three_quarters_of_a_turn_is_wrapped() -> None:
    """escnn's C4 element 3 is 4.71 in 'radians'."""
    assert sample_group(battery.gspace("C4"), 1).angle.tolist() == pytest.approx(
        [0, math.pi / 2, math.pi, -math.pi / 2]
    )


@pytest.mark.parametrize("space", ["C2", "C4", "C6", "C8", "D2", "D4", "D6", "D8", "SO(2)", "O(2)"])
def test_half_a_turn_is_plus_pi_whatever_its_rounding(space: str) -> None:
    sample = sample_group(battery.gspace(space), samples=10)
    half_turns = np.abs(sample.angle) > math.pi - 1e-6
    assert half_turns.any()
    assert (sample.angle[half_turns] > 0).all()


@pytest.mark.parametrize("space", battery.CONTINUOUS)
@pytest.mark.parametrize("offset", [0.1, 1.0, 3.0])
def test_offset_turns_every_element(space: str, offset: float) -> None:
    gspace = battery.gspace(space)
    plain, turned = sample_group(gspace, 6), sample_group(gspace, 6, offset)
    assert np.allclose(turned.action, rotation_matrix(offset) @ plain.action, rtol=0, atol=FEW_TERMS)
    assert turned.reflected.tolist() == plain.reflected.tolist()
    difference = np.angle(np.exp(1j * (turned.angle - plain.angle - offset)))
    assert np.allclose(difference, 0, atol=FEW_TERMS)
    for element, action in zip(turned.elements, turned.action, strict=True):
        assert np.allclose(gspace.basespace_action(element), action, rtol=0, atol=FEW_TERMS)


def test_continuous_groups_are_sampled_on_a_regular_grid() -> None:
    assert len(sample_group(battery.gspace("SO(2)"), 12)) == 12
    sample = sample_group(battery.gspace("O(2)"), 12)
    assert len(sample) == 24
    assert sorted(np.diff(np.sort(sample.angle[:12]))) == pytest.approx([math.pi / 6] * 11)


@pytest.mark.parametrize("space", [name for name in battery.GSPACES if name not in battery.CONTINUOUS])
def test_relative_elements_are_products_of_actions(space: str) -> None:
    sample = sample_group(battery.gspace(space), 1)
    relative = relative_elements(sample)
    for v, u in np.ndindex(relative.shape):
        expected = sample.action[v].T @ sample.action[u]
        assert np.allclose(sample.action[relative[v, u]], expected, rtol=0, atol=FEW_TERMS)


FINITE = [name for name in battery.GSPACES if name not in battery.CONTINUOUS]


@pytest.mark.parametrize("space", FINITE)
def test_translates_are_products_of_elements(space: str) -> None:
    """The set of hg for each g: as many as h, with the angle, the flip and the action of escnn's product."""
    gspace = battery.gspace(space)
    sample = sample_group(gspace, 1)
    for subgroups in ((), ("rotation",), ("reflection",), ("rotation", "reflection")):
        own = [
            h
            for h, angle, flip in zip(sample.elements, sample.angle, sample.reflected, strict=True)
            if (abs(angle) < 1e-9 or "rotation" in subgroups) and (not flip or "reflection" in subgroups)
        ]
        angle, reflected, action = translates(sample, subgroups)
        assert angle.shape == reflected.shape == action.shape[:2] == (len(sample), len(own))
        assert (angle > -math.pi).all()
        assert (angle <= math.pi).all()
        for row, g in enumerate(sample.elements):
            products = {(*angle_and_flip(gspace, h @ g), *gspace.basespace_action(h @ g).ravel()) for h in own}
            found = {(a, r, *m.ravel()) for a, r, m in zip(angle[row], reflected[row], action[row], strict=True)}
            assert in_order(found) == pytest.approx(in_order(products), abs=FEW_TERMS)


def in_order(rows: set[tuple[float, ...]]) -> np.ndarray:
    """Rows sorted by what is left of them without their rounding errors."""
    return np.array(sorted(rows, key=lambda row: tuple(round(value, 6) + 0.0 for value in row)))


@pytest.mark.parametrize("space", ["C6", "D3", "SO(2)", "O(2)"])
@pytest.mark.parametrize("offset", [0.0, 0.1])
def test_translates_have_the_action_that_their_angle_and_flip_say(space: str, offset: float) -> None:
    """R^θ f^s, also on a turned grid; translates of one element are the subgroup's distance from it."""
    gspace = battery.gspace(space)
    sample = sample_group(gspace, 4, offset if space in battery.CONTINUOUS else 0.0)
    for subgroups in (("rotation",), ("reflection",), ("rotation", "reflection")):
        angle, reflected, action = translates(sample, subgroups)
        for index in np.ndindex(angle.shape):
            expected = rotation_matrix(angle[index]) @ (sample.reflection if reflected[index] else np.eye(2))
            assert np.allclose(action[index], expected, rtol=0, atol=FEW_TERMS)
            distance = action[index] @ sample.action[index[0]].T  # h = (hg)g⁻¹
            assert np.isclose(np.linalg.det(distance), 1) or "reflection" in subgroups
            if subgroups == ("reflection",):
                # On a turned grid the reflection is turned with it, so that it maps the grid to itself.
                candidates = [np.eye(2), rotation_matrix(2 * sample.offset) @ sample.reflection]
                assert any(np.allclose(distance, h, rtol=0, atol=FEW_TERMS) for h in candidates)


def test_coordinates_of_subgroups() -> None:
    sample = sample_group(battery.gspace("D4"), 1)
    circle, log = (group_coordinates(sample.angle, sample.reflected, form) for form in ("circle", "log"))
    assert np.allclose(circle["rotation"], np.stack([np.cos(sample.angle), np.sin(sample.angle)], axis=1))
    assert np.allclose(np.linalg.norm(circle["rotation"], axis=1), 1)
    assert log["rotation"][:4, 0] == pytest.approx([0, 0.25, 0.5, -0.25])
    assert circle["reflection"][:, 0].tolist() == [0, 0, 0, 0, 0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("space", battery.GSPACES)
def test_subgroups_of_each_symmetry(space: str) -> None:
    gspace = battery.gspace(space)
    assert has_subgroup(gspace, "rotation") == (space in battery.WITH_ROTATION)
    assert has_subgroup(gspace, "reflection") == (space in battery.WITH_REFLECTION)
    assert has_subgroup(gspace, "translation")


def test_harmonic_limit_grows_with_the_number_of_rotations() -> None:
    assert circle_harmonic_limit("log", 8) == 4
    assert circle_harmonic_limit("circle", 8) == pytest.approx(2 / math.pi)


@pytest.mark.parametrize("space", ["C4", "D4", "flip axis 0", "O(2)"])
def test_steering_permutes_the_pixels_of_a_square_image(space: str) -> None:
    sample = sample_group(battery.gspace(space), 4)
    positions = pixel_positions(5, 5).reshape(-1, 2)
    for action, steered in zip(sample.action, steer(sample, positions), strict=True):
        assert np.allclose(steered, positions @ action, rtol=0, atol=FEW_TERMS)  # g⁻¹ = gᵀ
        assert {tuple(p.round(9) + 0.0) for p in steered} == {tuple(p.round(9) + 0.0) for p in positions}
