"""The domain points over which a projection takes means, against loops over escnn's products of elements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import battery
import numpy as np
import pytest
import torch
from escnn.group import GroupElement
from layers import build_with_oracle
from reference import Oracle
from reference_coordinates import Point, angle_and_flip
from tolerances import ROUNDING
from torch import Tensor
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv

SIDE = 4  # cells along each axis, over whose centres positions are averaged

ON_THE_GRID = ("trivial", "flip", "flip axis 0", "C2", "C4", "D1", "D2", "D4", "D4 axis 45°")
OFF_THE_GRID = ("C3", "D3", "C8", "D8", "SO(2)", "O(2)")
AVERAGED = (("rotation",), ("reflection",), ("rotation", "reflection"))


def layer_and_oracle(space: str, translation: bool, **arguments: object) -> tuple[RelaxedR2Conv, Oracle]:
    """A layer that is soft in all that its symmetry has."""
    relax = battery.subgroups(space, 0.2) | ({"translation": (0.3, 0.7)} if translation else {})
    types = battery.types(space, "trivial -> irreps")
    return build_with_oracle(*types, relax=relax, samples=4, hidden_size=4, **arguments)


def elements_of(oracle: Oracle, averaged: tuple[str, ...]) -> Iterator[GroupElement]:
    """The identity and the sampled elements that the named subgroups hold; f, for reflections alone."""
    for element in oracle.elements:
        angle, flip = angle_and_flip(oracle.space, element)
        if (abs(angle) < 1e-9 or "rotation" in averaged) and (not flip or "reflection" in averaged):
            yield element


def moved(oracle: Oracle, h: GroupElement, position: Point) -> Point:
    """H y."""
    x, y = oracle.space.basespace_action(h) @ np.array(position)
    return float(x), float(y)


def means(points: Tensor) -> Tensor:
    """Means of a few functions over points (…, L, D), which tell sets with other points or other weights apart."""
    generator = torch.Generator().manual_seed(0)
    wave = 9 * torch.randn(points.shape[-1], 16, generator=generator, dtype=points.dtype)
    return torch.cos(points @ wave + torch.arange(16)).mean(dim=-2)


def expected_means(oracle: Oracle, averaged: tuple[str, ...], positions: list[Point]) -> Tensor:
    """For every sampled g and position y, means over a(hg, hy): (M, P, 16)."""
    rows = []
    for g, y in itertools.product(oracle.elements, positions):
        points = []
        for h in elements_of(oracle, averaged):
            if "translation" in averaged:
                seen = [oracle.position(cell, (SIDE, SIDE)) for cell in itertools.product(range(SIDE), range(SIDE))]
            else:
                seen = [moved(oracle, h, y)]
            points += [oracle.domain_point(h @ g, position) for position in seen]
        rows.append(means(torch.stack(points)))
    return torch.stack(rows).view(len(oracle.elements), len(positions), -1)


def found_means(layer: RelaxedR2Conv, averaged: tuple[str, ...], positions: list[Point]) -> Tensor:
    given = torch.tensor(positions, dtype=torch.float64)
    return means(layer.bank.grid.domain_points(averaged, given) * layer.bank.grid.scale(layer.domain_frequency))


POSITIONS = [(0.0, 0.0), (0.3, -0.2), (-0.7, 0.5)]


def check(layer: RelaxedR2Conv, oracle: Oracle, averaged: tuple[str, ...], positions: list[Point]) -> None:
    expected = expected_means(oracle, averaged, positions)
    found = found_means(layer, averaged, positions)
    assert relative_error(found.expand_as(expected), expected) <= ROUNDING


@pytest.mark.parametrize("averaged", AVERAGED, ids=" + ".join)
@pytest.mark.parametrize("space", [*ON_THE_GRID[1:], *OFF_THE_GRID])
def test_points_are_those_of_the_translates_of_each_element(space: str, averaged: tuple[str, ...]) -> None:
    check(*layer_and_oracle(space, translation=False), averaged, POSITIONS[:1])


@pytest.mark.parametrize("frame", ["group", "image"])
@pytest.mark.parametrize("averaged", AVERAGED, ids=" + ".join)
@pytest.mark.parametrize("space", ["C3", "D4 axis 45°", "O(2)"])
def test_positions_move_with_the_elements(space: str, averaged: tuple[str, ...], frame: str) -> None:
    check(*layer_and_oracle(space, translation=True, frame=frame), averaged, POSITIONS[1:])


@pytest.mark.parametrize("frame", ["group", "image"])
@pytest.mark.parametrize(
    ("space", "averaged"),
    [
        ("trivial", ()),
        ("flip axis 0", ("reflection",)),
        ("C2", ()),
        ("C2", ("rotation",)),
        ("D2", ("reflection",)),
        ("D2", ("rotation", "reflection")),
    ],
)
def test_translation_is_averaged_over_the_cells(space: str, averaged: tuple[str, ...], frame: str) -> None:
    layer, oracle = layer_and_oracle(space, translation=True, frame=frame)
    check(layer, oracle, ("translation", *averaged), POSITIONS[:1])


def test_rotation_in_log_coordinates_is_averaged_over_alike() -> None:
    layer, oracle = layer_and_oracle("D4", translation=False, rotation_coordinates="log")
    for averaged in AVERAGED:
        check(layer, oracle, averaged, POSITIONS[:1])


@pytest.mark.parametrize("offset", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("space", battery.CONTINUOUS)
def test_mean_over_the_whole_group_is_over_the_sampled_elements_of_a_turned_grid_too(space: str, offset: float) -> None:
    """Else a centred kernel would have a strict part on a turned grid."""
    layer, _ = layer_and_oracle(space, translation=False)
    layer.bank.turn(offset)
    grid, frequency = layer.bank.grid, layer.domain_frequency
    expected = means(grid.domain_points().squeeze((1, 2)) * grid.scale(frequency))
    found = means(grid.domain_points(("rotation", "reflection")) * grid.scale(frequency)).squeeze(1)
    assert relative_error(found.expand(1, -1), expected[None]) <= ROUNDING


@torch.no_grad()
@pytest.mark.parametrize("soft_part", ["continuous", "centred"])
@pytest.mark.parametrize("averaged", [(), ("rotation",), ("translation",), ("rotation", "translation")])
def test_features_of_one_tap_are_a_part_of_those_of_all(averaged: tuple[str, ...], soft_part: str) -> None:
    layer, _ = layer_and_oracle("C4", translation=True, soft_part=soft_part)
    positions = torch.tensor(POSITIONS, dtype=torch.float64)
    arguments = layer.bank.kernel, layer.domain_frequency, positions
    every = layer.bank.features(*arguments, averaged=averaged)
    for tap in range(9):
        one = layer.bank.features(*arguments, tap, averaged)
        assert (one - every[..., tap : tap + 1]).abs().max() <= ROUNDING
    assert every.shape[2] == (1 if "translation" in averaged else len(POSITIONS))


@torch.no_grad()
@pytest.mark.parametrize("averaged", [("rotation",), ("translation",), ("rotation", "reflection", "translation")])
def test_features_are_replaced_by_their_mean_over_the_points(averaged: tuple[str, ...]) -> None:
    """φ at the same taps, for each of the points in turn."""
    layer, _ = layer_and_oracle("D4", translation=True)
    grid, kernel = layer.bank.grid, layer.bank.kernel
    positions = torch.tensor(POSITIONS, dtype=torch.float64)
    points = grid.domain_points(averaged, positions) * grid.scale(layer.domain_frequency)
    taps = grid.taps.unsqueeze(1)
    expected = torch.stack([kernel(taps, points[:, :, None, None, i]) for i in range(points.shape[2])]).mean(dim=0)
    found = layer.bank.features(kernel, layer.domain_frequency, positions, averaged=averaged)
    assert relative_error(found[:-1], expected * grid.window) <= ROUNDING
    assert torch.equal(found[-1], grid.window.expand_as(found[-1]))
