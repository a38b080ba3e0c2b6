"""Isometries by their angles and names: matrices are built from these again, in the plane and in space."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import small
from errors import FEW_TERMS
from scipy.spatial.transform import Rotation

from escnn_relaxed.measure.isometry import rotation, shift, turn_or_flip


def test_angles_are_in_one_turn_and_reflections_follow_a_flip() -> None:
    gspace = small.gspace("D4")
    isometries = [turn_or_flip(gspace, element) for element in gspace.fibergroup.elements]
    for isometry in isometries:
        cosine, sine = math.cos(isometry.angle), math.sin(isometry.angle)
        flip = np.diag([1.0, -1.0 if isometry.subgroup == "reflection" else 1.0])
        assert np.allclose(np.array([[cosine, -sine], [sine, cosine]]) @ flip, isometry.matrix, atol=1e-9)
    assert sorted(round(math.degrees(isometry.angle)) for isometry in isometries) == [0, 0, 90, 90, 180, 180, 270, 270]
    names = {of.name: of.matrix.round(9).tolist() for of in isometries if of.subgroup == "reflection"}
    assert names == {
        "reflection along x": [[-1, 0], [0, 1]],
        "reflection along 45°": [[0, -1], [-1, 0]],
        "reflection along y": [[1, 0], [0, -1]],
        "reflection along 135°": [[0, 1], [1, 0]],
    }
    assert all(np.allclose(m.matrix @ m.inverse().matrix, np.eye(2)) for m in isometries)


def from_name(name: str) -> np.ndarray:
    """The matrix that a name in space means."""
    axis = np.zeros(3)
    if found := re.search(r"(about|along) ([xyz])", name):
        axis["xyz".index(found[2])] = 1
    elif found := re.search(r"\((.*)\)", name):
        axis = np.array([float(component.replace("−", "-")) for component in found[1].split(", ")])
    # A mirror is the inversion, turned by half.
    turn = re.search(r"rotation (.*)°", name)
    degrees = float(turn[1]) if turn else 180.0 if "reflection" in name else 0.0
    length = np.linalg.norm(axis) if axis.any() else 1
    matrix = Rotation.from_rotvec(math.radians(degrees) * axis / length).as_matrix()
    return matrix if re.fullmatch(r"rotation [^,]*(\(.*\))?", name) else -matrix


@pytest.mark.parametrize(
    ("space", "precision"),
    # Names of axes have three digits.
    [("full octahedral", 1e-9), ("full cylinder 2", 1e-9), ("dihedral", 2e-3), ("cone", 2e-3)],
)
def test_name_in_space_says_what_is_done(space: str, precision: float) -> None:
    gspace = small.volume_space(space)
    group = gspace.fibergroup
    elements = group.grid(type="regular", N=16) if group.continuous else group.elements
    isometries = [turn_or_flip(gspace, element) for element in elements]
    assert len({isometry.name for isometry in isometries}) == len(isometries)
    for isometry in isometries:
        assert np.abs(from_name(isometry.name) - isometry.matrix).max() <= precision
        assert isometry.subgroup == ("reflection" if np.linalg.det(isometry.matrix) < 0 else "rotation")


@pytest.mark.parametrize("space", ["SO(3)", "O(3)"])
def test_angle_in_space_is_that_of_escnn(space: str) -> None:
    gspace = small.volume_space(space)
    np.random.seed(1)  # escnn draws by NumPy's own generator
    for element in [gspace.fibergroup.sample() for _ in range(20)]:
        value = element.to("EV") if space == "SO(3)" else element.to("EV")[1]
        angle, vector = turn_or_flip(gspace, element).angle, np.asarray(value)
        # escnn's angle is at most half a turn, and its axis has any sign.
        expected = np.linalg.norm(vector) * np.sign(vector[np.abs(vector) > 1e-9][0])
        assert angle == pytest.approx(expected % (2 * math.pi))


def test_sweep_in_space_turns_about_z() -> None:
    isometry = rotation(0.3, dimension=3)
    assert np.abs(isometry.matrix - Rotation.from_euler("z", 0.3).as_matrix()).max() <= FEW_TERMS
    assert (isometry.name, isometry.angle) == ("rotation 17.19° about z", pytest.approx(0.3))


@pytest.mark.parametrize("pixels", [(2, -1), (2, -1, 3)])
def test_shift_is_against_all_axes_but_x(pixels: tuple[int, ...]) -> None:
    *against, along = pixels
    isometry = shift(*pixels)
    assert isometry.translation.tolist() == [along, *(-step for step in reversed(against))]
    assert isometry.pixels == pixels
    assert isometry.inverse().pixels == tuple(-step for step in pixels)
