"""Measured errors of volumes: against turns written out, softness known from weights, and strict networks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import small
import torch
from errors import BROKEN, ROUNDING, SINGLE
from escnn import nn as enn
from escnn.nn import FieldType
from small import shake
from torch import Tensor

from escnn_relaxed import RelaxedR3Conv, equivariance_error
from escnn_relaxed.measure.isometry import PixelGrid, moved, turn_or_flip

TORUS = {"padding": 1, "padding_mode": "circular"}


def strict(space: str, **options: object) -> RelaxedR3Conv:
    layer = small.volume_layer(small.volume_type(space), relax=None, initial_softness=None, kernel=None, **options)
    shake(layer)
    return layer


# What NumPy does to an array of planes, rows and columns, which point against z, against y and along x.
TURNS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rotation 90° about x": lambda a: np.rot90(a, 1, (-2, -3)),
    "rotation 90° about y": lambda a: np.rot90(a, 1, (-1, -3)),
    "rotation 270° about z": lambda a: np.rot90(a, 3, (-2, -1)),
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


@pytest.mark.parametrize(
    ("options", "size", "pixels", "kind"),
    [
        (TORUS, 5, (1, -2, 3), "exact"),
        ({"padding": 1}, (5, 6, 7), (-1, 2, 0), "exact"),
        ({"padding": 0}, 6, (0, 0, 2), "exact"),
        ({"padding": 1, "stride": 2}, 8, (2, 0, -2), "exact"),
        ({"padding": 1, "stride": 2}, 8, (1, 0, 0), "strided"),
    ],
)
def test_shifts(options: dict[str, object], size: int, pixels: tuple[int, int, int], kind: str) -> None:
    layer = strict("octahedral", **options)
    (row,) = equivariance_error(layer, size, elements=(), shifts=[pixels]).rows
    assert (row.kind, row.name) == (kind, f"shift {pixels[0]}, {pixels[1]}, {pixels[2]}")
    assert row.error <= ROUNDING if kind == "exact" else row.error > 0.1


# A module, a size that its stride fits, and one that it does not.
STRIDED: dict[str, tuple[Callable[[FieldType], enn.EquivariantModule], int, int | None]] = {
    "relaxed": (lambda f: RelaxedR3Conv(f, f, 3, padding=1, stride=2, relax=None), 7, 8),
    "maximum": (lambda f: enn.PointwiseMaxPool3D(f, 2), 8, 7),
    "blurred maximum": (lambda f: enn.PointwiseMaxPoolAntialiased3D(f, 3, 2, 1), 7, 8),
    "blurred mean": (lambda f: enn.PointwiseAvgPoolAntialiased3D(f, 0.66, 2), 7, 8),
    "transposed": (lambda f: enn.R3ConvTransposed(f, f, 3, padding=1, stride=2), 5, None),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strides_that_do_not_fit_the_size_are_told(name: str) -> None:
    make, fits, does_not = STRIDED[name]
    module = make(small.volume_type("C4"))
    rows = equivariance_error(module, (5, fits, fits)).rows
    assert [row.kind for row in rows] == 3 * ["exact"]
    assert max(row.error for row in rows) <= SINGLE
    if does_not is not None:
        rows = equivariance_error(module, (5, does_not, does_not)).rows
        assert [row.kind for row in rows] == 3 * ["strided"]
        assert min(row.error for row in rows) > BROKEN


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
