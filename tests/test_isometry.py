"""Isometries by their angles and names, and feature maps that they carry: rolls, escnn's axes, closed forms."""

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import small
import torch
from errors import BROKEN, DECOMPOSED, FEW_TERMS, ROUNDING, answer_to, relative_error
from escnn import gspaces
from escnn.group import O3, o3_group
from escnn.gspaces import GSpace
from escnn.nn import FieldType
from scipy.spatial.transform import Rotation
from small import TORUS, soft_layer
from torch import Tensor

from escnn_relaxed import equivariance_error
from escnn_relaxed.group.elements import element_with_action
from escnn_relaxed.measure.isometry import PixelGrid, moved, rotation, shift, turn_or_flip


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


def test_sweep_in_space_turns_about_z() -> None:
    isometry = rotation(0.3, dimension=3)
    assert np.abs(isometry.matrix - Rotation.from_euler("z", 0.3).as_matrix()).max() <= FEW_TERMS
    assert (isometry.name, isometry.angle) == ("rotation 17.19° about z", pytest.approx(0.3))


@pytest.mark.parametrize("pixels", [(2, -1), (2, -1, 3)])
def test_shifts_are_rolls_on_the_torus_and_else_what_they_bring_in_has_no_source(pixels: tuple[int, ...]) -> None:
    """Rows down and columns to the right: y and z are against the axes of an image."""
    *against, along = pixels
    isometry = shift(*pixels)
    assert isometry.translation.tolist() == [along, *(-step for step in reversed(against))]
    image = torch.randn(2, 3, *(5, 6, 7)[: len(pixels)])
    grid = PixelGrid.of_image(*image.shape[2:])
    rolled = image.roll(pixels, tuple(range(2, image.dim())))
    for on_torus in (True, False):
        found, mask = moved(image, grid, grid, isometry, on_torus)
        known = torch.ones_like(image[0, 0], dtype=torch.bool)
        for axis, step in enumerate(pixels if not on_torus else ()):
            places = torch.arange(known.shape[axis]) - step
            inside = (places >= 0) & (places < known.shape[axis])
            known &= inside.view(-1, *[1] * (known.dim() - axis - 1))
        assert torch.equal(mask, known)
        assert torch.equal(found[..., mask], rolled[..., mask])
    assert isometry.inverse().pixels == tuple(-step for step in pixels)


def test_a_fraction_of_a_pixel_on_the_torus() -> None:
    """cos 2πx/n shifted by half a step of a map with every second pixel."""
    column = torch.arange(16, dtype=torch.float64)
    wave = torch.cos(2 * math.pi * column / 16).expand(1, 1, 16, 16)
    grid = PixelGrid((16, 16), (2.0, 2.0), (0.0, 0.0))
    found, mask = moved(wave, grid, grid, shift(0, 1), on_torus=True)
    assert mask.all()
    assert (found - torch.cos(2 * math.pi * (column - 0.5) / 16)).abs().max() < 0.002  # a whole pixel: 0.2


@pytest.mark.parametrize("rows_and_columns", [(2, 0), (0, -4), (6, 10)])
def test_strided_map_on_the_torus_is_compared_in_all_its_pixels(rows_and_columns: tuple[int, int]) -> None:
    """Pixels that leave it on one side come in on the other."""
    layer = soft_layer("C4", "trivial -> regular", relax={"translation": 0.4}, stride=2, **TORUS)
    images = small.random_input(layer.in_type, 16, 20)
    (row,) = equivariance_error(layer, data=images, elements=[], shifts=[rows_and_columns]).rows
    shifted = answer_to(layer, images.roll(rows_and_columns, (-2, -1)))
    expected = answer_to(layer, images).roll([pixels // 2 for pixels in rows_and_columns], (-2, -1))
    assert row.kind == "exact"
    assert row.error == pytest.approx(relative_error(shifted, expected), rel=ROUNDING)
    assert row.error > BROKEN


# What NumPy does to an array of planes, rows and columns, which point against z, against y and along x.
TURNS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rotation 90° about y": lambda a: np.rot90(a, 1, (-1, -3)),
    "rotation 120° about (1, 1, 1)": lambda a: np.rot90(np.rot90(a, 1, (-2, -3)), 1, (-2, -1)),
    "inversion": lambda a: np.flip(a, (-3, -2, -1)),
    "reflection along z": lambda a: np.flip(a, -3),
    "rotation 90° about z, inverted": lambda a: np.flip(np.rot90(a, 1, (-2, -1)), (-3, -2, -1)),
}


@pytest.mark.parametrize("turn", TURNS)
def test_error_is_that_of_turns_written_out(turn: str) -> None:
    space = small.volume_space("full octahedral")
    fields = FieldType(space, [space.irrep((1,), (1,)), space.trivial_repr])
    layer = small.volume_layer(fields, **TORUS)
    # The matrix of a turn, from what it does to the coordinates of a cube: (f moved)(x) = f(A⁻¹x).
    cube = PixelGrid.of_image(3, 3, 3).positions()
    sources = TURNS[turn](cube.transpose(3, 0, 1, 2)).reshape(3, -1)
    matrix = np.linalg.lstsq(sources.T, cube.reshape(-1, 3), rcond=None)[0].T
    element = next(e for e in space.fibergroup.elements if np.allclose(space.basespace_action(e), matrix, atol=1e-6))

    def turned(features: Tensor) -> Tensor:
        """ρ(g) f(g⁻¹x)."""
        values = np.einsum("oc,bc...->bo...", fields.representation(element), TURNS[turn](features.numpy()))
        return torch.from_numpy(values)

    data = torch.randn(2, 4, 3, 4, 5, dtype=torch.float64)
    with torch.no_grad():
        still, found = (layer(fields(features)).tensor for features in (data, turned(data)))
    expected = float((found - turned(still)).norm() / still.norm())
    (row,) = equivariance_error(layer, data=data, elements=[element]).rows
    assert (row.name, row.kind) == (turn, "exact")
    assert row.error == pytest.approx(expected, rel=1e-9)  # escnn's matrices of irreps are exact to about 1e-10
    assert expected > BROKEN


def test_features_between_voxels_are_turned_the_right_way() -> None:
    """Cubic convolution reproduces linear functions, here the coordinates: they become A⁻¹x."""
    space = small.volume_space("SO(3)")
    isometry = turn_or_flip(space, space.fibergroup.element(np.array([0.3, -0.5, 0.7]), "EV"))
    grid = PixelGrid.of_image(9, 9, 9)
    coordinates = torch.from_numpy(grid.positions()).movedim(-1, 0)[None]
    found, _ = moved(coordinates, grid, grid, isometry, on_torus=False)
    inside = torch.from_numpy((grid.positions() ** 2).sum(-1) ** 0.5 <= 2.5)  # the four neighbours are in the volume
    expected = torch.from_numpy(grid.positions() @ isometry.matrix).movedim(-1, 0)[None]
    assert (found - expected)[..., inside].abs().max() <= ROUNDING
    assert (coordinates - expected)[..., inside].abs().max() > 1


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


@pytest.mark.parametrize("name", ["C4", "SO(2)", "space, full octahedral", "space, SO(3)", "space, tilted"])
def test_no_element_acts_as_the_group_does_not(name: str) -> None:
    """Finite groups have no eighth of a turn, and groups of rotations no reflection."""
    space: GSpace = ACTING[name]()
    action = np.diag([-1.0, *(1.0 for _ in range(space.dimensionality - 1))])
    if not space.fibergroup.continuous:
        half = 0.5**0.5
        action[:2, :2] = [[half, -half], [half, half]]
    assert element_with_action(space, action) is None
