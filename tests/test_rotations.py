"""Axes, angles and names of rotations of space, and the element that acts by a matrix."""

from __future__ import annotations

import math

import numpy as np
import pytest
import small
from errors import DECOMPOSED
from escnn import gspaces
from escnn.group import O3, o3_group
from escnn.gspaces import GSpace

from escnn_relaxed.group.rotations import element_with_action


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
