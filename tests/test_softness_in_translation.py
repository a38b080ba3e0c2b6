"""Strict part and softness of layers soft in translation, against means of their matrix over shifts and the group.

The strict part is exact on a torus of every size, and softness where regions are the cells of the kernel.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import battery
import pytest
import torch
from dense_matrix import dense_matrix, in_orthogonal_basis, matrix_of, mean_over_elements, mean_over_shifts
from group_average import subgroup_elements
from layers import EVERY_KERNEL, ROUGH, TORUS, soft_layer
from tolerances import BROKEN, ROUNDING
from torch import Tensor
from transformations import largest_error, relative_error, shift_error

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, harden_network

SIDE = 8  # of four regions, which are the cells

TRANSLATION = {"translation": (0.3, 0.5)}
SOFT = {
    "translation alone": TRANSLATION,
    "with rotation": TRANSLATION | {"rotation": 0.3},
    "with reflection": TRANSLATION | {"reflection": 0.5},
    "with both": TRANSLATION | {"rotation": 0.3, "reflection": 0.5},
}
SUBGROUPS = (
    (),
    ("translation",),
    ("rotation",),
    ("reflection",),
    ("rotation", "reflection"),
    ("translation", "rotation"),
    ("translation", "reflection"),
)
TIED, CONTINUOUS = {}, {"soft_part": "continuous"}
CASES = {
    "trivial": ("trivial", "irreps -> two regular", "translation alone", TIED),
    "flip": ("flip", "regular -> irreps", "with reflection", TIED),
    "C4, translation": ("C4", "regular -> irreps", "translation alone", TIED),
    "C4": ("C4", "regular -> irreps", "with rotation", TIED),
    "sheared": ("C4", "mixed, sheared -> mixed, sheared", "with rotation", TIED),
    "D4": ("D4", "trivial + induced -> trivial", "with both", TIED),
    "C4, continuous": ("C4", "regular -> irreps", "with rotation", CONTINUOUS),
    "D4, continuous": ("D4", "trivial -> regular", "with both", CONTINUOUS),
}
EVERY_CASE = pytest.mark.parametrize("name", CASES)


def rough_layer(name: str, **arguments: object) -> RelaxedR2Conv:
    space, pair, soft, kappa = CASES[name]
    kappa = {**kappa, "filter_frequency": ROUGH} if kappa else {}
    arguments = {"relax": SOFT[soft], "regions": 2, "bias": False, **TORUS, **kappa, **arguments}
    return soft_layer(space, pair, **arguments)


@dataclass(frozen=True)
class Case:
    """A soft layer, its matrix, and the means of this over subgroups."""

    layer: RelaxedR2Conv
    matrix: Tensor
    means: dict[tuple[str, ...], Tensor]

    def energy(self, matrix: Tensor) -> float:
        """‖M‖² where the representations are orthogonal."""
        return float(in_orthogonal_basis(matrix, self.layer.in_type, self.layer.out_type).square().sum())

    def softness(self, *names: str) -> float:
        """The part of the energy that a mean leaves out."""
        return self.energy(self.matrix - self.means[names]) / self.energy(self.matrix)


def averaged(layer: RelaxedR2Conv, matrix: Tensor) -> Case:
    types = layer.in_type, layer.out_type
    over_shifts, means = mean_over_shifts(matrix), {}
    for names in SUBGROUPS:
        start = over_shifts if not names or "translation" in names else matrix
        elements = subgroup_elements(layer.in_type.gspace, [name for name in names if name != "translation"])
        is_start = names == ("translation",) or len(elements) == 1
        means[names] = start if is_start else mean_over_elements(start, *types, elements)
    return Case(layer, matrix, means)


@functools.cache
def case(name: str, regions: int = 2, side: int = SIDE) -> Case:
    """Built once: what follows are several claims about the same layers."""
    torch.manual_seed(0)
    layer = rough_layer(name, regions=regions)
    return averaged(layer, dense_matrix(layer, side))


@EVERY_CASE
def test_hardened_layer_is_the_mean_of_its_matrix_and_softness_what_it_leaves_out(name: str) -> None:
    given = case(name)
    for names, mean in given.means.items():
        assert relative_error(dense_matrix(harden_network(given.layer, names), SIDE), mean) <= ROUNDING, names
        expected = given.softness(*names)
        assert given.layer.softness(*names).item() == pytest.approx(expected, rel=0, abs=ROUNDING), names
        # Large enough for the comparison to fail.
        assert expected > 1e-3 or names not in ((), ("translation",))


@pytest.mark.parametrize("name", ["C4", "C4, continuous"])
@pytest.mark.parametrize("first", [("translation",), ("rotation",)])
def test_one_subgroup_after_the_other_is_both(first: tuple[str, ...], name: str) -> None:
    given = case(name)
    once = harden_network(given.layer, first)
    left = given.energy(given.means[first] - given.means[()]) / given.energy(given.means[first])
    (second,) = {"rotation", "translation"} - set(first)
    for found in (once.softness(), once.softness(second)):
        assert found.item() == pytest.approx(left, rel=0, abs=ROUNDING)
    assert once.softness(*first).item() <= ROUNDING
    assert relative_error(dense_matrix(harden_network(once, (second,)), SIDE), given.means[()]) <= ROUNDING


@EVERY_CASE
def test_hardened_in_translation_is_a_convolution(name: str) -> None:
    """With one filter bank, whose shifts are exact on an image of any size."""
    layer = harden_network(case(name).layer, ("translation",))
    assert layer.is_stationary
    assert layer.filter_bank().shape == (layer.out_type.size, layer.in_type.size, 3, 3)
    assert shift_error(layer, battery.random_input(layer.in_type, 5, 7)) <= ROUNDING


@pytest.mark.parametrize("name", [name for name in CASES if name != "trivial"])
def test_hardened_in_the_group_is_exact_about_the_centre_of_any_image(name: str) -> None:
    """Four regions are one orbit of quarter turns, and would have one kernel: so more of them."""
    layer = harden_network(rough_layer(name, regions=4), ("rotation", "reflection"))
    assert not layer.is_stationary
    for size in ((13, 13), (16, 13)):
        features = battery.random_input(layer.in_type, *size)
        assert largest_error(layer, features) <= ROUNDING
        assert shift_error(layer, features) > BROKEN


@EVERY_KERNEL
@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
def test_layer_at_zero_is_its_own_strict_part(learn: bool, soft_part: str) -> None:
    layer = rough_layer("C4", soft_part=soft_part, learn_relaxation=learn)
    assert layer.softness().item() > 1e-3
    layer.set_domain_frequency(rotation=0.0, translation=0.0)
    assert max(layer.softness().item(), layer.softness("translation").item()) <= 1e-15
    assert relative_error(dense_matrix(harden_network(layer), SIDE), dense_matrix(layer, SIDE)) <= ROUNDING


# Regions and the side of a torus; whether the regions are the cells.
SIDES = {(2, 12): True, (3, 12): True, (2, 9): False, (3, 10): False, (4, 13): False}


@pytest.mark.parametrize("name", ["C4", "C4, continuous"])
@pytest.mark.parametrize(("regions", "side"), SIDES)
def test_strict_part_is_that_of_every_size_and_softness_the_most(regions: int, side: int, name: str) -> None:
    """A region takes the mean of what differs from the strict part, which is what it is: less of it is left."""
    given = case(name, regions, side)
    for names, mean in given.means.items():
        assert relative_error(dense_matrix(harden_network(given.layer, names), side), mean) <= ROUNDING, names
        found, on_cells = given.softness(*names), given.layer.softness(*names).item()
        if SIDES[regions, side]:
            assert on_cells == pytest.approx(found, rel=0, abs=ROUNDING), names
        elif not names or "translation" in names:
            assert 0.1 < found / on_cells < 1 - 1e-3, names  # found: 0.26 to 0.92


def test_layer_with_one_region_has_no_softness_in_translation_left() -> None:
    layer = rough_layer("C4, translation", regions=4)
    matrix = dense_matrix(layer, 7)
    assert layer.softness("translation").item() > 1e-3
    assert relative_error(matrix, mean_over_shifts(matrix)) <= ROUNDING


def on_the_torus(layer: RelaxedR2ConvTransposed, side: int) -> Tensor:
    """The matrix, (C_out, side, side, C_in, side, side), where what lies beyond one edge is added at the other."""
    channels = layer.in_type.size
    columns = matrix_of(lambda image: layer(layer.in_type(image)).tensor, channels, (side, side)).mT.unflatten(
        1, (-1, side + 2, side + 2)
    )
    found = columns.new_zeros(len(columns), layer.out_type.size, side, side)
    for row, column in itertools.product(range(side + 2), repeat=2):
        found[..., (row - 1) % side, (column - 1) % side] += columns[..., row, column]
    return found.movedim(0, -1).unflatten(-1, (channels, side, side))


def test_strict_part_of_a_transposed_layer_is_the_mean_of_its_matrix() -> None:
    relax = SOFT["with rotation"]
    place = {"make": RelaxedR2ConvTransposed, "bias": False, "regions": 2}
    layer = soft_layer("C4", "trivial -> regular", relax=relax, **place)
    given = averaged(layer, on_the_torus(layer, SIDE))
    for names, mean in given.means.items():
        assert layer.softness(*names).item() == pytest.approx(given.softness(*names), rel=0, abs=ROUNDING)
        assert relative_error(on_the_torus(harden_network(layer, names), SIDE), mean) <= ROUNDING
