"""The bound on the equivariance error against dense matrices, and against errors that are attained."""

from __future__ import annotations

import battery
import pytest
import torch
from dense_matrix import largest_singular_value, matrix_of
from escnn.nn import FieldType
from layers import STRICT_KERNELS, build
from soft_networks import ROUGH
from torch import Tensor
from transformations import on_grid_elements, transform

from escnn_relaxed import RelaxedR2Conv, harden_network
from escnn_relaxed.measure import soft_part_norm

EXACT = 1e-10  # found: 1e-15
ROUNDING = 1e-12  # singular values of some hundred rows in float64; found: 1e-15

EVERY_KERNEL = pytest.mark.parametrize("strict_kernel", STRICT_KERNELS)


def soft_layer(in_type: FieldType, out_type: FieldType, strict_kernel: str, **arguments) -> RelaxedR2Conv:
    arguments = {"relax": {"rotation": 0.3}, "initial_softness": 0.1, "filter_frequency": ROUGH, **arguments}
    return build(in_type, out_type, strict_kernel=strict_kernel, **arguments)


def dense_soft_part(layer: RelaxedR2Conv, size: tuple[int, int], subgroups: tuple[str, ...] = ()) -> Tensor:
    """K − PK."""
    strict = harden_network(layer, subgroups)
    return matrix_of(lambda basis: layer.linear(basis) - strict.linear(basis), layer.in_type.size, size)


def attained(layer: RelaxedR2Conv, size: tuple[int, int]) -> list[float]:
    """The largest ‖f(hx) − h f(x)‖ / ‖x‖ over all x, for each h on the grid."""

    def error(basis: Tensor, h) -> Tensor:
        return layer.linear(transform(basis, layer.in_type, h)) - transform(layer.linear(basis), layer.out_type, h)

    elements = on_grid_elements(layer.in_type.gspace)
    assert elements
    return [largest_singular_value(matrix_of(lambda x, h=h: error(x, h), layer.in_type.size, size)) for h in elements]


PLACES = {
    "circular": {"padding": 1, "padding_mode": "circular"},
    "zeros": {"padding": 1},
    "valid": {},
    "stride": {"padding": 1, "stride": 2},
    "dilation": {"padding": 2, "dilation": 2},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "even kernel": {"kernel_size": 4, "padding": 1},
    "groups": {"padding": 1, "groups": 2},
}
PAIRS = {
    "rotation": ("C4", "two regular -> two regular", {"rotation": 0.3}),
    "both": ("D4", "two regular -> irreps + irreps", {"rotation": 0.3, "reflection": 0.5}),
    "reflection": ("D4", "irreps + irreps -> two regular", {"reflection": 0.5}),
}
# Both forms of the kernel in turn.
CASES = [
    (soft, place, STRICT_KERNELS[(row + column) % 2])
    for row, soft in enumerate(PAIRS)
    for column, place in enumerate(PLACES)
]


@pytest.mark.parametrize(("soft", "place", "strict_kernel"), CASES)
def test_twice_the_norm_of_the_soft_part_bounds_the_error_and_is_nearly_attained(
    soft: str, place: str, strict_kernel: str
) -> None:
    space, pair, relax = PAIRS[soft]
    size = (5, 5)
    layer = soft_layer(*battery.types(space, pair), strict_kernel, relax=relax, **PLACES[place])
    norm = soft_part_norm(layer, size)
    exact = largest_singular_value(dense_soft_part(layer, size))
    assert exact * (1 - ROUNDING) <= norm <= 2.5 * exact  # found: up to 2.05, with a stride or reflected pixels
    if place == "circular":
        assert norm == pytest.approx(exact, rel=EXACT)
    errors = attained(layer, size)
    assert max(errors) <= 2 * exact * (1 + ROUNDING)
    # S − hSh⁻¹ is S in the mean over h, and 0 for the identity: some h attains |G| / (|G| − 1) times ‖S‖ at least.
    # Found: 1.62 to 1.87 times, and twice where reflections alone are soft.
    assert max(errors) >= (1 + 1 / len(errors)) * exact * (1 - ROUNDING)


@EVERY_KERNEL
@pytest.mark.parametrize("place", ["circular", "stride"])
def test_bound_holds_for_every_image_and_element(place: str, strict_kernel: str) -> None:
    space, pair, relax = PAIRS["both"]
    layer = soft_layer(*battery.types(space, pair), strict_kernel, relax=relax, **PLACES[place])
    features = battery.random_input(layer.in_type, 7, 7, batch=16)
    limit = 2 * soft_part_norm(layer, (7, 7)) * features.flatten(1).norm(dim=1)
    for h in on_grid_elements(layer.in_type.gspace):
        moved = layer(layer.in_type(transform(features, layer.in_type, h))).tensor
        error = (moved - transform(layer(layer.in_type(features)).tensor, layer.out_type, h)).flatten(1).norm(dim=1)
        assert (error <= limit).all()
        assert (error > limit / 20).all()  # white noise; found: 0.14 to 0.3


@EVERY_KERNEL
def test_norm_of_one_subgroup_bounds_its_own_error(strict_kernel: str) -> None:
    space, pair, relax = PAIRS["reflection"]
    layer = soft_layer(*battery.types(space, pair), strict_kernel, relax=relax, padding=1, padding_mode="circular")
    assert soft_part_norm(layer, (5, 5), ("rotation",)) <= ROUNDING
    whole = soft_part_norm(layer, (5, 5))
    assert soft_part_norm(layer, (5, 5), ("reflection",)) == pytest.approx(whole, rel=EXACT)
    assert whole > 0.1


@EVERY_KERNEL
def test_hardened_layer_has_no_soft_part(strict_kernel: str) -> None:
    relax = {"rotation": 0.3, "translation": 0.3}
    layer = soft_layer(*battery.types("C4", "regular -> regular"), strict_kernel, relax=relax, padding=1)
    assert layer.softness() > 0.01
    layer.harden()
    assert soft_part_norm(layer, (4, 4)) == 0


@pytest.mark.parametrize("name", ["rotations", ""])
def test_unknown_subgroup_is_named(name: str) -> None:
    layer = soft_layer(*battery.types("C4", "regular -> regular"), "steerable")
    with pytest.raises(ValueError, match=rf"\['rotation', 'reflection', 'translation'\], got '{name}'"):
        soft_part_norm(layer, (5, 5), (name,))


@pytest.mark.parametrize(
    ("subgroups", "place", "strict_kernel", "seed"),
    [
        (("translation",), "circular", "steerable", 1),
        (("translation",), "zeros", "steerable", 1),
        (("translation",), "valid", "continuous", 0),
        (("rotation", "translation"), "zeros", "continuous", 0),
        (("rotation", "translation"), "circular", "steerable", 0),
    ],
)
def test_norm_where_translation_is_soft_is_that_of_the_matrix(
    subgroups: tuple[str, ...], place: str, strict_kernel: str, seed: int
) -> None:
    torch.manual_seed(seed)
    relax = dict.fromkeys(subgroups, 0.3)
    layer = soft_layer(*battery.types("C4", "regular -> regular"), strict_kernel, relax=relax, **PLACES[place])
    exact = largest_singular_value(dense_soft_part(layer, (10, 10)))
    assert exact > 1e-2
    # An iteration comes from below.
    assert (1 - 1e-3) * exact <= soft_part_norm(layer, (10, 10)) <= exact * (1 + ROUNDING)


@EVERY_KERNEL
def test_bound_holds_where_translation_is_soft(strict_kernel: str) -> None:
    relax = {"rotation": 0.3, "translation": 0.3}
    layer = soft_layer(*battery.types("C4", "regular -> irreps"), strict_kernel, relax=relax, padding=1)
    norm = soft_part_norm(layer, (8, 8))
    errors = attained(layer, (8, 8))
    assert 0.5 * 2 * norm < max(errors) <= 2 * norm * (1 + 1e-3)  # the iteration's tolerance; found: 0.68 to 0.83


@pytest.mark.parametrize(
    ("strict_kernel", "size", "seed"), [("continuous", (2, 4), 2), ("steerable", (4, 2), 2), ("steerable", (5, 2), 2)]
)
def test_bound_holds_on_images_that_are_not_square(strict_kernel: str, size: tuple[int, int], seed: int) -> None:
    """A quarter turn moves K − PK to another torus, where its norm may be larger."""
    torch.manual_seed(seed)
    layer = soft_layer(*battery.types("C4", "trivial -> trivial"), strict_kernel, padding=1, padding_mode="circular")
    assert max(attained(layer, size)) <= 2 * soft_part_norm(layer, size) * (1 + ROUNDING)


@EVERY_KERNEL
@pytest.mark.parametrize("pair", ["mixed, sheared -> trivial", "trivial -> mixed, sheared"])
def test_basis_in_which_the_group_is_not_orthogonal_is_refused(pair: str, strict_kernel: str) -> None:
    """There the group changes norms, and the bound does not hold (by 9 % for a continuous kernel and seed 3)."""
    layer = soft_layer(*battery.types("C4", pair), strict_kernel, padding=1, padding_mode="circular")
    with pytest.raises(ValueError, match="orthogonal"):
        soft_part_norm(layer, (5, 5))
