"""Strict part and softness of layers soft in translation, against means of their matrix over shifts and the group."""

import copy
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import small
import torch
from errors import ROUNDING, answer_to, relative_error, transform
from escnn import gspaces
from escnn.group import GroupElement
from escnn.nn import FieldType
from group_average import energy, subgroup_elements
from small import ROUGH, TORUS, soft_layer
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, harden_network

# Odd and even, and that of the reference image.
SIDES = (3, 4, 8)

TRANSLATION = {"translation": (0.3, 0.5)}
SOFT = {
    "translation alone": TRANSLATION,
    "with rotation": TRANSLATION | {"rotation": 0.3},
    "with reflection": TRANSLATION | {"reflection": 0.5},
    "with both": TRANSLATION | {"rotation": 0.3, "reflection": 0.5},
}
SUBGROUPS = (
    *((), ("translation",), ("rotation",), ("reflection",)),
    *(("rotation", "reflection"), ("translation", "rotation"), ("translation", "reflection")),
)
TIED, CONTINUOUS = {}, {"soft_part": "continuous"}
CASES = {
    "trivial": ("trivial", "irreps -> two regular", "translation alone", TIED),
    "flip": ("flip", "regular -> irreps", "with reflection", TIED),
    "C4, translation": ("C4", "regular -> irreps", "translation alone", TIED),
    "C4": ("C4", "regular -> irreps", "with rotation", TIED),
    "sheared": ("C4", "mixed, sheared -> mixed, sheared", "with rotation", TIED),
    "D4": ("D4", "trivial + induced -> regular + irreps", "with both", TIED),
    "C4, continuous": ("C4", "regular -> irreps", "with rotation", CONTINUOUS),
    "D4, continuous": ("D4", "trivial -> regular", "with both", CONTINUOUS),
}


def rough_layer(name: str, **arguments: object) -> RelaxedR2Conv:
    space, pair, soft, kappa = CASES[name]
    kappa = {**kappa, "filter_frequency": ROUGH} if kappa else {}
    arguments = {"relax": SOFT[soft], "bias": False, **TORUS, **kappa, **arguments}
    return soft_layer(space, pair, **arguments)


@torch.no_grad()
def dense_matrix(layer: RelaxedR2Conv, side: int) -> Tensor:
    """Outputs of unit images on a torus, of a layer without bias: (C_out, side, side, C_in, side, side)."""
    answers = layer(layer.in_type(_unit_images(layer.in_type, side))).tensor
    return answers.movedim(0, -1).unflatten(-1, (-1, side, side))


def mean_over_shifts(matrix: Tensor) -> Tensor:
    """Mean over all shifts of S M S⁻¹."""
    side = matrix.shape[-1]
    shifts = itertools.product(range(side), range(side))
    return sum(matrix.roll((r, c, r, c), dims=(1, 2, 4, 5)) for r, c in shifts) / side**2


def mean_over_elements(
    matrix: Tensor, in_type: FieldType, out_type: FieldType, elements: Sequence[GroupElement]
) -> Tensor:
    """Mean over elements on the grid of h M h⁻¹, about the centre of the image."""
    flat = matrix.flatten(3).flatten(0, 2)
    total = torch.zeros_like(flat)
    for h in elements:
        total += _action(out_type, h, matrix.shape[-1]) @ flat @ _action(in_type, ~h, matrix.shape[-1])
    return (total / len(elements)).view_as(matrix)


def _action(field_type: FieldType, element: GroupElement, side: int) -> Tensor:
    return transform(_unit_images(field_type, side), field_type, element).flatten(1).T


def _unit_images(field_type: FieldType, side: int) -> Tensor:
    count = field_type.size * side**2
    return torch.eye(count, dtype=torch.float64).view(count, field_type.size, side, side)


@dataclass(frozen=True)
class Case:
    """A soft layer, its matrix, and the means of this over subgroups."""

    layer: RelaxedR2Conv
    matrix: Tensor
    means: dict[tuple[str, ...], Tensor]

    def energy(self, matrix: Tensor) -> float:
        """‖M‖² where the representations are orthogonal: that of a kernel with as many taps."""
        return float(energy(self.layer, matrix.movedim(3, 1).flatten(2, 4)))

    def differs(self, layer: RelaxedR2Conv, matrix: Tensor) -> float:
        """The relative error of a layer, on white noise: that of entries of its matrix would be in a sum of others."""
        features = small.random_input(layer.in_type, *matrix.shape[-2:])
        return relative_error(answer_to(layer, features), torch.einsum("oyxirc,birc->boyx", matrix, features))

    def softness(self, *names: str) -> float:
        """The part of the energy that a mean leaves out."""
        return self.energy(self.matrix - self.means[names]) / self.energy(self.matrix)


def averaged(layer: RelaxedR2Conv, matrix: Tensor) -> Case:
    types = layer.in_type, layer.out_type
    over_shifts, means = mean_over_shifts(matrix), {}
    for names in SUBGROUPS:
        start = over_shifts if not names or "translation" in names else matrix
        elements = subgroup_elements(layer.in_type.gspace, tuple(name for name in names if name != "translation"))
        is_start = names == ("translation",) or len(elements) == 1
        means[names] = start if is_start else mean_over_elements(start, *types, elements)
    return Case(layer, matrix, means)


@functools.cache
def case(name: str, side: int = 5) -> Case:
    """Built once: what follows are several claims about the same layers."""
    torch.manual_seed(0)
    layer = rough_layer(name)
    return averaged(layer, dense_matrix(layer, side))


@pytest.mark.parametrize(
    ("name", "side"), [(name, of) for name in CASES for of in SIDES if "cont" not in name or of == 8]
)
def test_hardened_layer_is_the_mean_of_its_matrix_and_softness_what_it_leaves_out(name: str, side: int) -> None:
    """The positions over which a continuous kernel is averaged are those of the reference image for all sizes."""
    given = case(name, side)
    for names, mean in given.means.items():
        assert given.differs(harden_network(given.layer, names), mean) <= ROUNDING, names
        expected = given.softness(*names)
        assert given.layer.softness(*names, size=side).item() == pytest.approx(expected, rel=0, abs=ROUNDING), names
        # Large enough for the comparison to fail.
        assert expected > 1e-3 or names not in ((), ("translation",))
        if side == 8:
            assert given.layer.softness(*names).item() == pytest.approx(expected, rel=0, abs=ROUNDING), names


@pytest.mark.parametrize("make", [RelaxedR2Conv, RelaxedR2ConvTransposed])
@pytest.mark.parametrize("name", ["C4", "D4", "flip"])
@pytest.mark.parametrize("size", [(3, 6), (7, 2), (2, 2)], ids=str)
def test_softness_on_an_image_of_unequal_sides_is_what_the_mean_of_its_banks_leaves_out(
    size: tuple[int, int], name: str, make: type[RelaxedR2Conv]
) -> None:
    space, pair, soft, _ = CASES[name]
    layer = soft_layer(space, pair, relax=SOFT[soft], make=make)
    banks = layer.filter_banks(size).detach().flatten(0, 1)
    mean = banks.mean(0)
    assert relative_error(mean.flatten(2), layer.kernel(layer.weights, ("translation",)).detach()) <= ROUNDING
    energies = [energy(layer, of) for of in (banks - mean, banks)]
    expected = float(energies[0].mean() / energies[1].mean())
    assert layer.softness("translation", size=size).item() == pytest.approx(expected, rel=0, abs=ROUNDING)


@pytest.mark.parametrize("name", ["C4", "C4, continuous"])
@pytest.mark.parametrize("first", [("translation",), ("rotation",)])
def test_one_subgroup_after_the_other_is_both(first: tuple[str, ...], name: str) -> None:
    given = case(name, 8)
    once = harden_network(given.layer, first)
    left = given.energy(given.means[first] - given.means[()]) / given.energy(given.means[first])
    (second,) = {"rotation", "translation"} - set(first)
    for found in (once.softness(), once.softness(second)):
        assert found.item() == pytest.approx(left, rel=0, abs=ROUNDING)
    assert once.softness(*first).item() <= ROUNDING
    assert given.differs(harden_network(once, (second,)), given.means[()]) <= ROUNDING


@torch.no_grad()
@pytest.mark.parametrize("names", [("translation",), ("rotation",), (), ("rotation", "translation")], ids=str)
@pytest.mark.parametrize("space", [3, 5])
@pytest.mark.parametrize("has_mirrors", [False, True])
def test_softness_is_that_of_its_equation_where_no_rotation_is_one_of_the_grid(
    space: int, has_mirrors: bool, names: tuple[str, ...]
) -> None:
    """Then products of f_G, f_T and the entries of K do not cancel, as half turns make them do."""
    gspace = gspaces.flipRot2dOnR2(space) if has_mirrors else gspaces.rot2dOnR2(space)
    fields = gspace.type(gspace.regular_repr)
    relax = ("rotation", "translation")
    layer = RelaxedR2Conv(fields, fields, 3, relax=relax, initial_softness=0.4).double()
    # As soft in both; the exact numerator is far from one without products.
    banks, strict = layer.filter_banks((8, 8)), copy.deepcopy(layer)
    strict.harden(*names)
    mean = strict.filter_bank() if strict.is_stationary else strict.filter_banks((8, 8))
    soft, kept = (banks - mean).square().mean(), mean.square().mean()
    assert layer.softness(*names).item() == pytest.approx(float(soft / (soft + kept)), rel=ROUNDING)
