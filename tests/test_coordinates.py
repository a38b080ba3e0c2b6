"""The points at which κ is evaluated, against escnn's elements: steered taps, elements and positions of the domain."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import small
import torch
from errors import BROKEN, FEW_TERMS, ROUNDING, relative_error
from escnn import gspaces
from escnn.group import GroupElement
from small import build
from torch import Tensor

from escnn_relaxed import ContinuousKernel, RelaxedR3Conv
from escnn_relaxed.checks import SUBGROUPS
from escnn_relaxed.continuous.coordinates import DomainPoints, FilterPoints
from escnn_relaxed.group.domain import Domain
from escnn_relaxed.group.kept import kept_group
from escnn_relaxed.kernel.domain_frequency import DomainFrequency
from escnn_relaxed.kernel.kernel import KernelConfig

SPACES = ("trivial", "flip axis 0", "C3", "C4", "D4", "SO(2)", "O(2)")
AVERAGED = [names for count in range(4) for names in itertools.combinations(SUBGROUPS, count)]
SAMPLES = 4
CENTRES = [(x, y) for y in (0.5, -0.5) for x in (-0.5, 0.5)]
STEPS = (np.arange(8) - 3.5) / 4
REFERENCE = np.array([(x, y) for y in STEPS for x in STEPS])  # the pixels of the reference image


def domain_of(space: str, keep: str | None = None, form: str = "circle") -> Domain:
    gspace = small.gspace(space)
    return Domain(gspace, SAMPLES, kept_group(keep, gspace, SAMPLES), form)


def soft_in(space: str, translation: bool = True) -> dict[str, object]:
    return ({"translation": (0.3, 0.5)} if translation else {}) | small.subgroups(space, 0.2)


@functools.cache
def elements_of(space: str) -> list[GroupElement]:
    group = small.gspace(space).fibergroup
    return list(group.grid(type="regular", N=SAMPLES) if group.continuous else group.elements)


def action_of(space: str, element: GroupElement) -> np.ndarray:
    return np.array(small.gspace(space).basespace_action(element), dtype=np.float64)


def is_turned(action: np.ndarray, flip: np.ndarray) -> bool:
    rotation = action if np.linalg.det(action) > 0 else action @ flip
    return not np.allclose(rotation, np.eye(2), rtol=0, atol=1e-6)


@functools.cache
def flip_of(space: str) -> np.ndarray:
    """The first reflection that escnn lists; the identity without one."""
    actions = [action_of(space, element) for element in elements_of(space)]
    return next((action for action in actions if np.linalg.det(action) < 0), np.eye(2))


def coordinates(space: str, action: np.ndarray, position: np.ndarray, frequency: dict[str, object]) -> list[float]:
    """ω′ ⊙ a(g, x), of a position that g sees at the given one."""
    reflects = np.linalg.det(action) < 0
    rotation = action @ flip_of(space) if reflects else action
    own = {"translation": position, "rotation": rotation[:, 0], "reflection": np.array([0.5 if reflects else 0.0])}
    return [value for name, scale in frequency.items() for value in (np.array(scale) * own[name]).tolist()]


def means(points: Tensor) -> Tensor:
    """Means of a few functions over points (…, L, D), which tell sets with other points or other weights apart."""
    generator = torch.Generator().manual_seed(0)
    wave = 9 * torch.randn(points.shape[-1], 16, generator=generator, dtype=points.dtype)
    return torch.cos(points @ wave + torch.arange(16)).mean(dim=-2)


def expected_means(space: str, averaged: tuple[str, ...], positions: list[tuple[float, float]]) -> Tensor:
    """For every sampled g and position x, means over a(hg, hx): (M, P, 16)."""
    actions, flip = [action_of(space, element) for element in elements_of(space)], flip_of(space)
    members = [
        h
        for h in actions
        if ("rotation" in averaged or not is_turned(h, flip)) and ("reflection" in averaged or np.linalg.det(h) > 0)
    ]
    anywhere = [g.T @ x for g in actions for x in REFERENCE]
    rows = []
    for g, x in itertools.product(actions, np.array(positions)):
        seen = anywhere if "translation" in averaged else [g.T @ x]
        points = [coordinates(space, h @ g, position, soft_in(space)) for h in members for position in seen]
        rows.append(means(torch.tensor(points, dtype=torch.float64)))
    return torch.stack(rows).view(len(actions), len(positions), -1)


@pytest.mark.parametrize("averaged", AVERAGED, ids=lambda names: " + ".join(names) or "nothing")
@pytest.mark.parametrize("space", SPACES)
def test_points_are_those_of_the_translates_of_each_element(space: str, averaged: tuple[str, ...]) -> None:
    points = DomainPoints(domain_of(space), tuple(soft_in(space))).double()
    frequency = DomainFrequency(soft_in(space)).double()
    for size, positions in (((2, 2), CENTRES), (None, [(0.0, 0.0)])):
        expected = expected_means(space, averaged, positions)
        found = means(points(frequency, averaged, None if size is None else points.pixels(size))).expand_as(expected)
        assert relative_error(found, expected) <= ROUNDING


@torch.no_grad()
def test_positions_of_volumes_have_three_coordinates() -> None:
    """Half turns map the voxels of the reference volume to each other, so the mean is that over its voxels."""
    gspace = gspaces.rot2dOnR3(2)
    types = gspace.type(gspace.trivial_repr), gspace.type(gspace.regular_repr)
    relax = {"translation": (0.2, 0.3, 0.4), "rotation": 0.1}
    layer = RelaxedR3Conv(*types, 3, relax=relax, initial_softness=0.3, kernel=ContinuousKernel(hidden_size=3)).double()
    assert layer.kernel.domain_points.columns == ["translation"] * 3 + ["rotation"] * 9
    banks = layer.filter_banks((8, 8, 8))
    mean = layer.kernel(layer.weights, ("translation",))
    assert relative_error(banks.flatten(0, 2).mean(0), mean) <= ROUNDING
    assert all((banks - banks.flip(axis)).abs().max() > BROKEN * banks.abs().max() for axis in range(3))


@pytest.mark.parametrize(("space", "count"), [("trivial", 1), ("C4", 1), ("D4", 1), ("C3", 3), ("C8", 2), ("D8", 2)])
def test_positions_of_the_mean_are_the_pixels_once_for_each_set(space: str, count: int) -> None:
    """Quarter turns map the pixels to themselves, eighths of a turn to others."""
    found = DomainPoints(domain_of(space), ("translation",)).double().exact("everywhere").squeeze((0, 1))
    seen = np.concatenate([REFERENCE @ action_of(space, element) for element in elements_of(space)])
    assert found.shape == (64 * count, 2)
    assert np.abs(found.numpy()[:, None] - seen).max(-1).min(1).max() <= FEW_TERMS


@pytest.mark.parametrize(("keep", "fold"), [("C2", 2), ("C4", 4)])
def test_kept_rotations_share_a_point(keep: str, fold: int) -> None:
    """The coordinate is that of the coset, a multiple of the angle: nothing is left to average over."""
    points = DomainPoints(domain_of("C8", keep), ("rotation",)).double()
    found = points(DomainFrequency({"rotation": 1.0}).double())
    angles = fold * np.pi / 4 * np.arange(8)
    wanted = torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=-1))
    assert found.shape == (8, 1, 1, 2)
    assert (found.squeeze((1, 2)) - wanted).abs().max() <= FEW_TERMS


def test_rotations_about_a_kept_axis_share_the_axis_as_an_element_sees_it() -> None:
    gspace = gspaces.octaOnR3()
    domain = Domain(gspace, 24, kept_group("SO(2)", gspace, 24))
    actions = [np.array(gspace.basespace_action(element)) for element in gspace.fibergroup.elements]
    seen = np.stack([action.T @ [0.0, 0.0, 1.0] for action in actions])
    assert np.abs(domain.elements(["rotation"]) - seen).max() <= 1e-6  # escnn's matrices of the octahedral group
    assert len(np.unique(seen.round(3) + 0.0, axis=0)) == 6


def filter_points(space: str, sees_relative: bool, kernel_size: int = 3, support: str = "smooth") -> FilterPoints:
    fields = small.field_type(space, "trivial")
    config = KernelConfig(fields, fields, kernel_size, 2, domain_of(space))
    frequency = {"position": 0.5, "rotation": 0.3, "reflection": 0.7}
    return FilterPoints(config, frequency, sees_relative, support).double()


def taps_of(kernel_size: int) -> np.ndarray:
    line = np.arange(kernel_size) - (kernel_size - 1) / 2
    return np.array([(x, -y) for y in line for x in line])


@pytest.mark.parametrize("space", ["trivial", "C4", "D4"])
def test_taps_are_steered_and_stand_beside_relative_elements(space: str) -> None:
    points, elements = filter_points(space, True), elements_of(space)
    relative = {name: {"rotation": 0.3, "reflection": 0.7}[name] for name in small.subgroups(space, 1.0)}
    assert points.taps.shape[:3] == (len(elements), len(elements) if relative else 1, 9)
    radius = 3 / 2  # in taps, whatever the dilation
    for m, r, t in np.ndindex(*points.taps.shape[:3]):
        position = 0.5 * taps_of(3)[t] / radius @ action_of(space, elements[m])
        action = action_of(space, elements[m]).T @ action_of(space, elements[r])
        wanted = [*position, *coordinates(space, action, position, relative)]
        assert points.taps[m, r, t].tolist() == pytest.approx(wanted, abs=FEW_TERMS)


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4, 7])
def test_window_is_a_disk(kernel_size: int) -> None:
    distance = np.linalg.norm(taps_of(kernel_size), axis=-1)
    smooth, disk = (filter_points("C4", False, kernel_size, of).window.numpy() for of in ("smooth", "disk"))
    fall = np.clip(distance - (kernel_size / 2 - 1), 0, 1)
    assert smooth == pytest.approx(np.cos(np.pi / 2 * fall) ** 2, abs=FEW_TERMS)
    reach = (kernel_size - 1) / 2 if kernel_size % 2 else kernel_size / 2
    assert disk.tolist() == (distance <= reach + FEW_TERMS).tolist()


@torch.no_grad()
@pytest.mark.parametrize("averaged", [(), ("rotation",), ("translation",), SUBGROUPS], ids=" + ".join)
def test_features_are_means_over_the_points_within_the_window(averaged: tuple[str, ...]) -> None:
    """φ at the same taps, for each of the points in turn; and a constant."""
    types = small.types("D4", "regular -> regular")
    kernel = build(*types, relax=soft_in("D4"), soft_part="continuous").kernel
    positions = kernel.domain_points.pixels((2, 3))
    points = kernel.domain_points(kernel.frequency, averaged, positions)
    taps, window = kernel.filter_points.taps.unsqueeze(1), kernel.filter_points.window
    expected = torch.stack([kernel.net(taps, points[:, :, None, None, i]) for i in range(points.shape[2])]).mean(dim=0)
    found = kernel.features(kernel.net, kernel.frequency, averaged, positions)
    assert relative_error(found[:-1], expected * window) <= ROUNDING
    assert torch.equal(found[-1], window.expand_as(found[-1]))
    assert found.shape[2] == (1 if "translation" in averaged else 6)
