"""RelaxedR2ConvTransposed is the adjoint of a convolution whose kernel varies, and as soft as it says."""

from __future__ import annotations

import itertools

import battery
import pytest
import torch
from dense_matrix import in_orthogonal_basis, matrix_of, mean_over_elements, mean_over_shifts
from group_average import acted, energy, subgroup_elements
from layers import SOFT_PARTS, relaxation
from reference_transposed import TransposedOracle
from tolerances import ROUNDING
from torch import Tensor
from transformations import answer_to, largest_error, relative_error, rotations
from transposed_layers import EACH_GEOMETRY, GEOMETRIES, ROUGH, soft_transposed_layer

from escnn_relaxed import RelaxedR2ConvTransposed
from escnn_relaxed.group.regions import RegionPartition
from escnn_relaxed.integral.regions import integrate
from escnn_relaxed.integral.geometry import integrate_stationary

EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)

SOFT_ROTATION = [
    ("C8", "regular -> irreps"),
    ("C4", "quotient + trivial -> regular + irreps"),
    ("D4", "trivial -> regular"),
    ("flip", "mixed, sheared -> regular"),
    ("SO(2)", "irreps -> band-limited"),
    ("O(2)", "irreps -> trivial"),
]


def error_of(space: str, pair: str, size: tuple[int, int], **arguments: object) -> float:
    """Relative difference between a layer and the loops on white noise."""
    arguments = {"hidden_size": 4, "samples": 4, "filter_frequency": ROUGH, "soft_part": "continuous", **arguments}
    layer = soft_transposed_layer(space, pair, **arguments)
    oracle = TransposedOracle(layer, **arguments)
    features = battery.random_input(layer.in_type, *size, batch=1)
    with torch.no_grad():
        expected = oracle(features)
    found = answer_to(layer, features)
    assert found.shape == expected.shape
    return relative_error(found, expected)


@pytest.mark.parametrize(("space", "pair"), SOFT_ROTATION)
def test_layer_equals_the_loops(space: str, pair: str) -> None:
    assert error_of(space, pair, (2, 3), relax=battery.subgroups(space, 0.2), stride=2, padding=1) <= ROUNDING


@pytest.mark.parametrize(
    ("space", "pair", "geometry", "regions", "size"),
    [
        ("C4", "regular -> irreps", "stride", 2, (8, 9)),
        ("C4", "trivial + trivial -> irreps + irreps", "everything", 2, (9, 8)),
        ("flip", "irreps -> regular", "output padding pair", 3, (9, 13)),
        ("trivial", "trivial -> trivial", "dilation", 4, (13, 14)),
        ("SO(2)", "irreps -> trivial", "plain", 2, (9, 8)),
    ],
)
def test_layer_soft_in_translation_equals_the_loops(space, pair, geometry, regions, size) -> None:
    relax = battery.subgroups(space, 0.2) | {"translation": (0.3, 0.5)}
    assert error_of(space, pair, size, relax=relax, regions=regions, **GEOMETRIES[geometry]) <= ROUNDING


@pytest.mark.whole
@EACH_GEOMETRY
@pytest.mark.parametrize("kind", ["stationary", "by regions"])
def test_matrix_is_the_transpose_of_that_of_a_convolution(kind: str, geometry: str) -> None:
    arguments = {"bias": False, **relaxation(kind, {"reflection": 0.2}), **GEOMETRIES[geometry]}
    layer = soft_transposed_layer("flip", "trivial + trivial -> regular + regular", **arguments)
    size = (9, 8)
    output = layer.geometry.output_size(*size)
    found = matrix_of(layer.linear, layer.in_type.size, size)

    def convolution(images: Tensor) -> Tensor:
        if kind == "stationary":
            return integrate_stationary(images, layer.filter_bank(), None, layer.geometry.adjoint)
        partition = RegionPartition.of(size, 2)
        return integrate(
            images, layer.region_banks(size).flatten(0, 1), None, layer.geometry.adjoint, partition
        )

    # On more pixels than strides reach a convolution gives no more: the output's padding is read by none of it.
    assert relative_error(found, matrix_of(convolution, layer.out_type.size, output).mT) <= ROUNDING


def test_kernel_of_each_region_is_added_about_it_alone() -> None:
    layer = soft_transposed_layer("C4", "trivial -> trivial", bias=False, relax={"translation": 0.5}, regions=2)
    banks = layer.region_banks((8, 8))
    for row, column in itertools.product((1, 6), repeat=2):
        unit = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
        unit[..., row, column] = 1
        expected = banks[row // 4, column // 4, 0, 0]
        found = answer_to(layer, unit)[0, 0, row : row + 3, column : column + 3]
        assert relative_error(found, expected.detach()) <= ROUNDING


# How soft it is.


@pytest.mark.parametrize(
    ("space", "pair", "soft_part", "stride"),
    [
        ("C4", "regular -> irreps", "tied", 1),
        ("C4", "regular -> irreps", "continuous", 2),
        ("D4", "quotient -> regular", "tied", 2),
        ("O(2)", "irreps -> irreps", "continuous", 1),
    ],
)
def test_error_is_none_at_zero_and_grows_with_the_frequency(space, pair, soft_part, stride) -> None:
    relax = battery.subgroups(space, 0.2)
    layer = soft_transposed_layer(
        space, pair, relax=relax, soft_part=soft_part, stride=stride, padding=1, initial_softness=0.01
    ).eval()
    features = battery.random_input(layer.in_type, 5, 5)
    errors = []
    for frequency in (0.0, 0.01, 0.03, 0.1, 0.3):
        layer.set_domain_frequency(**dict.fromkeys(relax, frequency))
        errors.append(largest_error(layer, features))
    assert errors[0] <= ROUNDING
    assert errors == sorted(errors)
    assert errors[-1] > 1e-2


def test_soft_reflection_leaves_rotations_exact() -> None:
    layer = soft_transposed_layer("D4", "regular -> irreps", relax={"reflection": 0.3}).eval()
    features = battery.random_input(layer.in_type, 5, 5)
    assert largest_error(layer, features) > 1e-2
    assert largest_error(layer, features, rotations) <= ROUNDING


@pytest.mark.parametrize("size", [(8, 8), (9, 9)])
@pytest.mark.parametrize("geometry", ["plain", "stride"])
def test_soft_translation_leaves_the_group_exact_about_the_centre(geometry: str, size: tuple[int, int]) -> None:
    layer = soft_transposed_layer("D4", "regular -> irreps", relax={"translation": 0.4}, **GEOMETRIES[geometry]).eval()
    assert largest_error(layer, battery.random_input(layer.in_type, *size)) <= ROUNDING
    assert layer.softness("translation") > 0.01


@EVERY_KERNEL
@pytest.mark.parametrize(
    ("space", "pair", "subgroups"),
    [
        ("C4", "regular -> irreps", ()),
        ("C4", "mixed, sheared -> quotient", ("rotation",)),
        ("D4", "trivial + irreps -> regular", ()),
        ("D4", "trivial + irreps -> regular", ("rotation",)),
        ("D4", "regular -> quotient", ("reflection",)),
    ],
)
def test_softness_is_that_of_the_group_average(space, pair, soft_part, subgroups) -> None:
    layer = soft_transposed_layer(space, pair, relax=battery.subgroups(space, 0.3), soft_part=soft_part, stride=2)
    with torch.no_grad():
        bank = layer.filter_bank().transpose(0, 1)
        strict = acted(layer, bank, subgroup_elements(layer.in_type.gspace, subgroups)).mean(dim=0)
        expected = (energy(layer, bank - strict) / energy(layer, bank)).item()
        assert layer.softness(*subgroups).item() == pytest.approx(expected, rel=1e-9)
        layer.harden(*subgroups)
        assert relative_error(layer.filter_bank().transpose(0, 1), strict) <= ROUNDING
    assert layer.softness(*subgroups).item() == 0


def on_the_torus(layer: RelaxedR2ConvTransposed, side: int) -> Tensor:
    """The matrix, (C_out, side, side, C_in, side, side), where what lies beyond one edge is added at the other."""
    channels = layer.in_type.size
    columns = matrix_of(layer.linear, channels, (side, side)).mT.unflatten(1, (-1, side + 2, side + 2))
    found = columns.new_zeros(len(columns), layer.out_type.size, side, side)
    for row, column in itertools.product(range(side + 2), repeat=2):
        found[..., (row - 1) % side, (column - 1) % side] += columns[..., row, column]
    return found.movedim(0, -1).unflatten(-1, (channels, side, side))


@pytest.mark.parametrize("subgroups", [(), ("translation",), ("rotation",), ("translation", "rotation")])
def test_softness_in_translation_is_that_of_the_mean_over_shifts(subgroups: tuple[str, ...]) -> None:
    relax = {"translation": (0.3, 0.5), "rotation": 0.3}
    layer = soft_transposed_layer("C4", "trivial -> regular", bias=False, relax=relax, regions=2)
    types = layer.in_type, layer.out_type
    strict = matrix = on_the_torus(layer, 8)
    if not subgroups or "translation" in subgroups:
        strict = mean_over_shifts(strict)
    if subgroups != ("translation",):
        strict = mean_over_elements(strict, *types, subgroup_elements(layer.in_type.gspace, ("rotation",)))
    energies = [in_orthogonal_basis(part, *types).square().sum() for part in (matrix - strict, matrix)]
    assert layer.softness(*subgroups).item() == pytest.approx((energies[0] / energies[1]).item(), rel=1e-9)
    layer.harden(*subgroups)
    assert relative_error(on_the_torus(layer, 8), strict) <= 1e-10


def test_softness_can_be_set() -> None:
    layer = soft_transposed_layer("C4", "regular -> regular", relax={"rotation": 0.3}, soft_part="tied")
    layer.set_softness(0.01)
    assert layer.softness().item() == pytest.approx(0.01, rel=1e-9)
