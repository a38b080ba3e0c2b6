"""Group elements as arrays, against matrices written out and escnn's own."""

from __future__ import annotations

import math

import battery
import numpy as np
import pytest
from reference_coordinates import angle_and_flip
from tolerances import FEW_TERMS

from escnn_relaxed.group.elements import (
    has_subgroup,
    relative_elements,
    sample_group,
    steer,
)
from escnn_relaxed.group.points import pixel_positions


def rotation_matrix(angle: float) -> np.ndarray:
    """Written out by itself."""
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


@pytest.mark.parametrize("space", battery.GSPACES)
def test_subgroups_of_each_symmetry(space: str) -> None:
    gspace = battery.gspace(space)
    assert has_subgroup(gspace, "rotation") == (space in battery.WITH_ROTATION)
    assert has_subgroup(gspace, "reflection") == (space in battery.WITH_REFLECTION)
    assert has_subgroup(gspace, "translation")


@pytest.mark.parametrize("space", ["C4", "D4", "flip axis 0", "O(2)"])
def test_steering_permutes_the_pixels_of_a_square_image(space: str) -> None:
    sample = sample_group(battery.gspace(space), 4)
    positions = pixel_positions(5, 5)
    for action, steered in zip(sample.action, steer(sample, positions), strict=True):
        assert np.allclose(steered, positions @ action, rtol=0, atol=FEW_TERMS)  # g⁻¹ = gᵀ
        assert {tuple(p.round(9) + 0.0) for p in steered} == {tuple(p.round(9) + 0.0) for p in positions}
