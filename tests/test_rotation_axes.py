"""The axes of a group of space by a count of its elements, and the element that acts by a matrix."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import small
from errors import DECOMPOSED
from escnn import gspaces
from escnn.group import O3, o3_group
from escnn.gspaces import GSpace

from escnn_relaxed.group.rotation_axes import element_with_action, rotation_axes

SPACES = "octahedral", "full octahedral", "SO(3)", "SO(2)", "C4", "D4", "inversion"


def directions() -> list[np.ndarray]:
    """One end of each of the 13 axes of a cube."""
    ends = [np.array(end) for end in itertools.product((-1, 0, 1), repeat=3)]
    return [end for end in ends if next((value for value in end if value), -1) > 0]


@pytest.mark.parametrize("space", SPACES)
def test_axes_are_those_of_the_elements_that_fix_a_direction(space: str) -> None:
    gspace = small.volume_space(space)
    matrices = [np.asarray(gspace.basespace_action(element)) for element in small.voxel_symmetries(gspace)]
    proper = [matrix for matrix in matrices if np.linalg.det(matrix) > 0]
    counted = {tuple(end): sum(np.allclose(matrix @ end, end, atol=1e-6) for matrix in proper) for end in directions()}
    found = {}
    for axis in rotation_axes(gspace):
        end = np.round(np.array(axis.direction) / np.abs(axis.direction).max()).astype(int)
        found[tuple(end if tuple(end) in counted else -end)] = axis.fold
    assert found == {end: fold for end, fold in counted.items() if fold > 1}


@pytest.mark.parametrize("space", SPACES)
def test_rotation_of_an_axis_is_the_least_one_counter_clockwise(space: str) -> None:
    gspace = small.volume_space(space)
    axes = rotation_axes(gspace)
    assert [axis.fold for axis in axes] == sorted((axis.fold for axis in axes), reverse=True)
    for axis in axes:
        matrix, direction = np.asarray(gspace.basespace_action(axis.element)), np.array(axis.direction)
        assert matrix @ direction == pytest.approx(direction, abs=1e-6)  # escnn has quaternions in float32
        across = np.cross(direction, [0.3, 0.5, 0.7])
        across /= np.linalg.norm(across)
        angle = np.arctan2(np.linalg.det([direction, across, matrix @ across]), across @ matrix @ across)
        assert angle % (2 * np.pi) == pytest.approx(2 * np.pi / axis.fold, abs=1e-5)


def test_axes_have_names() -> None:
    names = [axis.name for axis in rotation_axes(small.volume_space("octahedral"))]
    assert names[:4] == ["x", "y", "z", "(1, 1, 1)"]
    assert len(set(names)) == 13


def tilted() -> GSpace:
    """Turns about an axis that is none of the coordinates'."""
    group: O3 = o3_group(2)
    return gspaces.rot2dOnR3(adjoint=group.element((0, np.array([0.3, 0.5, 0.7])), "EV"))


ACTING = {
    **{name: lambda name=name: small.gspace(name) for name in ("C4", "D4 axis 45°", "SO(2)", "O(2)")},
    **{
        f"space, {name}": lambda name=name: small.volume_space(name)
        for name in ("full octahedral", "SO(3)", "O(3)", "SO(2)", "dihedral", "cone")
    },
    "space, cylinder": gspaces.cylindricalOnR3,
    "space, full cylinder": gspaces.fullCylindricalOnR3,
    "space, tilted": tilted,
}


@pytest.mark.parametrize("name", ACTING)
def test_element_is_found_by_its_action(name: str) -> None:
    space: GSpace = ACTING[name]()
    group = space.fibergroup
    np.random.seed(1)  # escnn draws by NumPy's own generator
    for element in [group.sample() for _ in range(6)]:
        found = element_with_action(space, space.basespace_action(element))
        for field in group.irreps():
            assert np.abs(field(found) - field(element)).max() <= DECOMPOSED


@pytest.mark.parametrize(("name", "angle"), [("C4", math.pi / 4), ("space, full octahedral", math.pi / 4)])
def test_no_element_turns_by_an_angle_that_the_group_has_not(name: str, angle: float) -> None:
    space: GSpace = ACTING[name]()
    action = np.eye(space.dimensionality)
    action[:2, :2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    assert element_with_action(space, action) is None


@pytest.mark.parametrize("name", ["SO(2)", "space, SO(3)", "space, SO(2)", "space, dihedral", "space, tilted"])
def test_no_rotation_reflects(name: str) -> None:
    space: GSpace = ACTING[name]()
    flip = np.diag([-1.0, *(1.0 for _ in range(space.dimensionality - 1))])
    assert element_with_action(space, flip) is None
