"""Measured errors: against transformations written out, dense matrices, softness known from weights, and each other."""

from __future__ import annotations

import math
from collections.abc import Callable

import battery
import numpy as np
import pytest
import torch
from escnn import nn as enn
from layers import TORUS, build
from soft_networks import soft_regular_layer
from tolerances import ROUNDING, SINGLE
from torch import Tensor, nn
from trained_networks import convolution
from transformations import equivariance_error as error_written_out
from transformations import on_grid_elements

from escnn_relaxed import equivariance_error


@pytest.mark.parametrize(
    ("space", "pair", "size"),
    [
        ("C4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed", (4, 6)),
        ("C8", "induced + quotient + trivial -> regular + induced", (5, 5)),
        ("D4 axis 45°", "quotient -> irreps", (5, 5)),
        ("flip axis 0", "irreps -> two regular", (5, 4)),
        ("SO(2)", "band-limited + trivial -> irreps + mixed", (5, 5)),
        ("O(2)", "quotient -> irreps", (4, 6)),
    ],
)
@pytest.mark.parametrize("kind", ["relaxed", "R2Conv"])
def test_strict_layers_have_no_exact_error(space: str, pair: str, size: tuple[int, int], kind: str) -> None:
    types = battery.types(space, pair)
    layer = build(*types, relax=None, **TORUS) if kind == "relaxed" else convolution(space, pair, **TORUS).double()
    report = equivariance_error(layer, size, shifts=[(1, 2)])
    assert len(report.exact) == len(on_grid_elements(types[0].gspace)) + 1
    assert max(row.error for row in report.exact) <= (ROUNDING if kind == "relaxed" else SINGLE)


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize(
    ("space", "pair", "size"),
    [
        ("C4", "regular -> irreps", (5, 5)),
        ("D4", "mixed, sheared -> regular", (4, 6)),
        ("O(2)", "irreps -> irreps", (5, 5)),
    ],
)
def test_exact_errors_are_those_of_transformations_written_out(
    space: str, pair: str, size: tuple[int, int], mode: str
) -> None:
    in_type, out_type = battery.types(space, pair)
    relax = battery.subgroups(space, 0.3)
    layer = build(in_type, out_type, padding=1, padding_mode=mode, relax=relax, initial_softness=0.3)
    features = battery.random_input(in_type, *size)
    elements = on_grid_elements(in_type.gspace)
    report = equivariance_error(layer, data=features, elements=elements)
    expected = [error_written_out(layer, features, element) for element in elements]
    # Where ρ is not orthogonal, ‖g f(x)‖ is not ‖f(x)‖, which is what the definition divides by.
    with torch.no_grad():
        norm = layer(in_type(features)).tensor.norm()
        turned = [layer(in_type(features)).transform(element).tensor.norm() for element in elements]
    expected = [error * float(t / norm) for error, t in zip(expected, turned, strict=True)]
    assert [row.error for row in report.exact] == pytest.approx(expected, rel=1e-6)  # escnn's transform is in float32
    assert min(expected) > 0.01


def basis(fields: enn.FieldType, height: int, width: int) -> Tensor:
    """Every image with a single 1: the norm over the batch is that of the operator's matrix."""
    return torch.eye(fields.size * height * width, dtype=torch.float64).view(-1, fields.size, height, width)


@pytest.mark.parametrize(
    ("space", "relax", "side"),
    [
        ("C4", {"rotation": 0.3}, 5),
        ("D4", {"rotation": 0.2, "reflection": 0.7}, 5),
        # On an image whose regions are the cells of the kernel.
        ("trivial", {"translation": 0.4}, 8),
    ],
)
def test_mean_square_error_over_the_group_is_twice_the_softness(space: str, relax: dict[str, float], side: int) -> None:
    layer = soft_regular_layer("continuous", space, relax, bias=False, regions=2)
    shifts = [(row, column) for row in range(8) for column in range(8)][1:] if "translation" in relax else []
    report = equivariance_error(layer, data=basis(layer.in_type, side, side), shifts=shifts)
    assert len(report.exact) == (len(shifts) or layer.in_type.fibergroup.order() - 1)
    mean_square = sum(row.error**2 for row in report.exact) / (1 + len(report.exact))
    assert mean_square == pytest.approx(2 * layer.softness().item(), rel=ROUNDING)


def test_white_noise_shows_the_softness() -> None:
    layer = soft_regular_layer("tied", "D4", {"rotation": 0.3}, bias=False)
    errors = [row.error for row in equivariance_error(layer, 16).exact]
    root_mean_square = math.sqrt(sum(error**2 for error in errors) / (len(errors) + 1))
    # 16 images of 8 × 256 numbers; one draw differs from the mean by about a percent.
    assert root_mean_square == pytest.approx(math.sqrt(2 * layer.softness().item()), rel=0.05)


class Dense(nn.Module):
    """Any linear map of images of one channel."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(height * width, height * width, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        return (images.flatten(1) @ self.matrix.T).view(images.shape)


# What NumPy does to the pixels of an image.
MOVES: dict[tuple[str, float], Callable[[np.ndarray], np.ndarray]] = {
    ("rotation", 90): lambda a: np.rot90(a, 1),
    ("rotation", 180): lambda a: np.rot90(a, 2),
    ("rotation", 270): lambda a: np.rot90(a, 3),
    ("reflection", 0): np.flipud,
    ("reflection", 90): lambda a: np.rot90(np.flipud(a), 1),
    ("reflection", 180): np.fliplr,
    ("reflection", 270): lambda a: np.rot90(np.flipud(a), 3),
    ("translation", 0): lambda a: np.roll(a, (1, -2), (0, 1)),
}


def test_a_plain_linear_map_errs_as_its_matrix_says() -> None:
    trivial = battery.field_type("D4", "trivial")
    dense = Dense(4, 4)
    matrix = dense.matrix.detach()
    report = equivariance_error(dense, data=basis(trivial, 4, 4), in_type=trivial, out_type=trivial, shifts=[(1, -2)])
    assert len(report.rows) == len(report.exact) == len(MOVES)
    for row in report.rows:
        order = MOVES[row.subgroup, round(math.degrees(row.angle))](np.arange(16).reshape(4, 4)).ravel().copy()
        moves = torch.eye(16, dtype=torch.float64)[torch.from_numpy(order)]
        expected = ((matrix @ moves - moves @ matrix).norm() / matrix.norm()).item()
        assert row.error == pytest.approx(expected, rel=ROUNDING)
