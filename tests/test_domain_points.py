"""The domain of a kernel, against escnn's elements: coordinates of all elements, and the points of each mean."""

from __future__ import annotations

import battery
import numpy as np
import pytest
import torch
from reference_coordinates import inverse_action, subgroup_coordinates
from tolerances import FEW_TERMS

from escnn_relaxed.group.domain_points import DomainPoints
from escnn_relaxed.group.elements import KeptGroup
from escnn_relaxed.group.frame import GroupFrame

SPACES = ("flip", "C3", "C4", "D4", "O(2)")
POSITIONS = [(0.5, -0.25), (0.0, 1.0)]


def points_of(space: str, translation: bool, position_frame: str = "group", **options: object) -> DomainPoints:
    frame = GroupFrame(battery.gspace(space), 8, **options)
    soft = (*(["translation"] if translation else []), *battery.subgroups(space, 1.0))
    return DomainPoints(soft, position_frame, 2, frame).double()


def elements_of(space: str) -> list:
    group = battery.gspace(space).fibergroup
    return list(group.grid(type="regular", N=8) if group.continuous else group.elements)


def expected(space: str, element: object, position: tuple[float, float] | None) -> list[float]:
    """a(g, x): the position in the frame of g, then the soft subgroups' coordinates."""
    gspace = battery.gspace(space)
    own = [] if position is None else list(inverse_action(gspace, element, position))
    coordinates = subgroup_coordinates(gspace, element, "circle")
    return [*own, *(value for name in battery.subgroups(space, 1.0) for value in coordinates[name])]


@pytest.mark.parametrize("space", SPACES)
def test_columns_name_the_subgroup_of_each_coordinate(space: str) -> None:
    sizes = {"rotation": 2, "reflection": 1}
    own = [name for name in battery.subgroups(space, 1.0) for _ in range(sizes[name])]
    assert points_of(space, False).domain_columns == own
    assert points_of(space, True).domain_columns == ["translation", "translation", *own]


@pytest.mark.parametrize("space", SPACES)
def test_points_are_the_coordinates_of_the_elements(space: str) -> None:
    found = points_of(space, False).domain_points()
    wanted = torch.tensor([expected(space, g, None) for g in elements_of(space)], dtype=torch.float64)
    assert found.shape == (len(wanted), 1, 1, wanted.shape[1])
    assert (found[:, 0, 0] - wanted).abs().max() <= FEW_TERMS


@pytest.mark.parametrize("space", SPACES)
def test_positions_are_seen_in_the_frame_of_each_element(space: str) -> None:
    positions = torch.tensor(POSITIONS, dtype=torch.float64)
    found = points_of(space, True).domain_points((), positions)
    wanted = torch.tensor([[expected(space, g, p) for p in POSITIONS] for g in elements_of(space)], dtype=torch.float64)
    assert (found.squeeze(2) - wanted).abs().max() <= FEW_TERMS


@pytest.mark.parametrize("space", ["C4", "D4"])
def test_mean_over_the_group_is_the_same_for_every_element(space: str) -> None:
    """All elements, so that it is the projection on strict kernels."""
    found = points_of(space, False).domain_points(("rotation", "reflection"))
    assert found.shape[:2] == (1, 1)
    wanted = torch.tensor([expected(space, g, None) for g in elements_of(space)], dtype=torch.float64)
    distances = torch.cdist(found[0, 0], wanted, p=1)
    assert found.shape[2] == len(wanted)
    assert distances.min(0).values.max() <= FEW_TERMS


@pytest.mark.parametrize(("sees_cosets", "fold"), [(False, 1), (True, 2)])
def test_kept_rotations_share_a_coset_and_are_averaged_over(sees_cosets: bool, fold: int) -> None:
    """C2 kept in C8: the elements kg for each g, at the angle or, by cosets, at twice the angle."""
    points = points_of("C8", False, kept=KeptGroup(2), sees_cosets=sees_cosets).domain_points()
    assert points.shape == (8, 1, 2, 2)
    for number, element in enumerate(elements_of("C8")):
        angles = np.array([element.to("radians"), element.to("radians") + np.pi]) * fold
        wanted = torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=-1))
        distances = torch.cdist(points[number, 0], wanted, p=1)
        assert distances.min(0).values.max() <= FEW_TERMS


@pytest.mark.parametrize(("space", "count"), [("C4", 4), ("D4", 4), ("C8", 8)])
def test_positions_of_the_mean_are_the_cells_as_all_elements_see_them(space: str, count: int) -> None:
    """Quarter turns map four cells to themselves, eighths of a turn to four others."""
    points = points_of(space, True)
    cells = points.image_positions.numpy()
    assert sorted(map(tuple, cells)) == [(-0.5, -0.5), (-0.5, 0.5), (0.5, -0.5), (0.5, 0.5)]
    assert len(points.turned_positions) == count
    gspace = battery.gspace(space)
    seen = {tuple(np.round(inverse_action(gspace, g, tuple(c)), 9) + 0.0) for g in elements_of(space) for c in cells}
    assert {tuple(np.round(p, 9) + 0.0) for p in points.turned_positions.numpy()} == seen


def test_scale_gives_each_coordinate_the_frequency_of_its_subgroup() -> None:
    points = points_of("D4", True)
    frequency = {
        "translation": torch.tensor([0.1, 0.2]),
        "rotation": torch.tensor([0.3]),
        "reflection": torch.tensor([0.4]),
    }
    assert points.scale(frequency).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.4])
    assert points_of("C4", False).scale({"rotation": torch.tensor([0.3])}).tolist() == pytest.approx([0.3])
    assert len(DomainPoints((), "group", 1, GroupFrame(battery.gspace("C4"), 4)).scale({})) == 0


def test_turned_frame_turns_the_points() -> None:
    points, frame = points_of("SO(2)", False), GroupFrame(battery.gspace("SO(2)"), 8)
    points.set_frame(frame.turned(0.1))
    angles = 0.1 + 2 * np.pi / 8 * np.arange(8)
    wanted = torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=-1))
    assert (points.domain_points()[:, 0, 0] - wanted).abs().max() <= FEW_TERMS
