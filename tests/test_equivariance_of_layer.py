"""Strict layers are equivariant to rounding, and layers soft in translation about the centre of an image.

For every symmetry, field type and geometry of the convolution. In the frame of g soft translation leaves the group
exact, in the axes of the image it does not.
"""

from __future__ import annotations

import pytest
import small
from errors import BROKEN, ROUNDING, largest_error, on_grid_elements, shift_error
from small import TORUS, build, soft_layer

from escnn_relaxed import RelaxedR2ConvTransposed
from escnn_relaxed.continuous import SirenKernel


@pytest.mark.parametrize(
    ("space", "pair", "soft_part"),
    [
        *((*case, "tied") for case in small.covering("D4", "O(2)", step=3)),
        *((*case, "continuous") for case in small.covering(step=7)),
    ],
)
def test_strict_layer_is_equivariant(space: str, pair: str, soft_part: str) -> None:
    layer = build(*small.types(space, pair), **TORUS, relax=None, soft_part=soft_part)
    features = small.random_input(layer.in_type, 5, 5)
    if on_grid_elements(layer.in_type.gspace):
        assert largest_error(layer, features) <= ROUNDING
    assert shift_error(layer, features) <= ROUNDING


@pytest.mark.parametrize(
    ("space", "pair", "learn", "soft_part"),
    [
        ("flip axis 0", "irreps -> two regular", False, "tied"),
        ("C4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed", True, "tied"),
        ("C8", "induced + quotient + trivial -> regular + induced", False, "tied"),
        ("D4", "two regular -> regular", True, "continuous"),
        ("D6", "quotient -> irreps", False, "continuous"),
        ("SO(2)", "band-limited + trivial -> irreps + mixed", True, "tied"),
        ("O(2)", "induced -> induced", False, "tied"),
    ],
)
def test_layer_with_every_frequency_at_zero_is_strict(space: str, pair: str, learn: bool, soft_part: str) -> None:
    """From the start, and where it was soft before."""
    names = {"translation": 0.0, **small.subgroups(space, 0.0)}
    layer = soft_layer(space, pair, relax=names, learn_relaxation=learn, soft_part=soft_part, **TORUS)
    features = small.random_input(layer.in_type, 8, 8)
    assert largest_error(layer, features) <= ROUNDING
    layer.set_domain_frequency(**dict.fromkeys(names, 0.2))
    assert largest_error(layer, features) > BROKEN
    layer.set_domain_frequency(**names)
    assert layer.is_stationary != learn
    assert largest_error(layer, features) <= ROUNDING
    assert shift_error(layer, features) <= ROUNDING


# Arguments, and an image whose outputs have its centre in their middle: (n + 2p − reach) is a multiple of the stride.
GEOMETRIES: dict[str, tuple[dict[str, object], tuple[int, int]]] = {
    "kernel 1": ({"kernel_size": 1}, (8, 8)),
    "kernel 2": ({"kernel_size": 2}, (9, 9)),
    "kernel 2 padded": ({"kernel_size": 2, "padding": 1}, (8, 8)),
    "kernel 4": ({"kernel_size": 4, "padding": 1}, (11, 11)),
    "kernel 5": ({"kernel_size": 5}, (13, 13)),
    "dilation": ({"dilation": 2, "padding": 2}, (10, 10)),
    "dilation of an even kernel": ({"kernel_size": 2, "dilation": 3}, (11, 11)),
    "stride, even output": ({"stride": 2, "padding": 1}, (15, 15)),
    "stride, odd output": ({"stride": 2, "padding": 1}, (17, 17)),
    "stride beyond the kernel": ({"kernel_size": 2, "stride": 3}, (23, 26)),
    "zeros": ({"padding": 2}, (7, 7)),
    "reflect": ({"padding": 1, "padding_mode": "reflect"}, (8, 8)),
    "replicate": ({"padding": 2, "padding_mode": "replicate"}, (8, 8)),
    "circular": ({"padding": 2, "padding_mode": "circular"}, (8, 8)),
    "groups": ({"groups": 2, "padding": 1}, (8, 8)),
    "no bias": ({"bias": False}, (10, 10)),
    "image of other sides": ({"padding": 1}, (3, 14)),
    "image of other sides, even kernel and stride": ({"kernel_size": 2, "stride": 2}, (16, 18)),
    "transposed": ({"make": RelaxedR2ConvTransposed, "stride": 2}, (8, 9)),
    "hard disk": ({"kernel_size": 5, "support": "disk"}, (13, 13)),
    "siren": ({"net": SirenKernel, "padding": 1}, (9, 9)),
    "log coordinates": ({"rotation_coordinates": "log", "padding": 1}, (9, 9)),
}


@pytest.mark.parametrize("kind", ["strict", "soft in translation"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_layer_is_equivariant_whatever_the_convolution(geometry: str, kind: str) -> None:
    arguments, size = GEOMETRIES[geometry]
    relax = None if kind == "strict" else {"translation": 0.4}
    layer = soft_layer("D4", "regular + regular -> irreps + irreps", relax=relax, **arguments)
    assert largest_error(layer, small.random_input(layer.in_type, *size)) <= ROUNDING
    assert layer.softness("translation").item() > 1e-3 or kind == "strict"


@pytest.mark.parametrize("relax", [None, {"translation": 0.4}], ids=["strict", "soft in translation"])
def test_unequal_padding_keeps_half_turns_and_flips(relax: dict[str, float] | None) -> None:
    layer = soft_layer("D2", "regular -> irreps", padding=(2, 1), relax=relax)
    assert largest_error(layer, small.random_input(layer.in_type, 8, 9)) <= ROUNDING


# --- soft translation -------------------------------------------------------------------------------------------------

# A pair of each kind for a symmetry of each kind.
CASES = [
    ("flip", "trivial -> regular", "tied"),
    ("C2", "mixed, sheared -> regular", "continuous"),
    ("C4", "two regular -> regular", "tied"),
    ("C4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed", "tied"),
    ("C8", "quotient -> irreps", "tied"),
    ("D4", "two regular -> regular", "continuous"),
    ("D4", "induced + quotient + trivial -> regular + induced", "tied"),
    ("D4 axis 45°", "regular -> irreps", "tied"),
    ("D6", "regular -> quotient", "tied"),
    ("SO(2)", "band-limited + trivial -> irreps + mixed", "continuous"),
    ("O(2)", "irreps -> irreps", "tied"),
]


@pytest.mark.parametrize(("space", "pair", "soft_part"), CASES)
def test_soft_translation_keeps_the_group_about_the_image_centre_alone(space: str, pair: str, soft_part: str) -> None:
    layer = soft_layer(space, pair, relax={"translation": (0.1, 0.6)}, soft_part=soft_part, **TORUS)
    for size in ((2, 2), (3, 4), (5, 5), (6, 6)):
        features = small.random_input(layer.in_type, *size, batch=1)
        assert largest_error(layer, features) <= ROUNDING
    assert shift_error(layer, features) > BROKEN


@pytest.mark.parametrize("axis", [0, 1], ids=["x", "y"])
def test_one_frequency_at_zero_keeps_translation_along_that_axis(axis: int) -> None:
    relax = {"translation": [(0.0, 0.4), (0.4, 0.0)][axis]}
    layer = soft_layer("trivial", "trivial -> regular", relax=relax, **TORUS)
    features = small.random_input(layer.in_type, 12, 12)
    along, across = ((0, 1), (1, 0)) if axis == 0 else ((1, 0), (0, 1))
    assert shift_error(layer, features, *along) <= ROUNDING
    assert shift_error(layer, features, *across) > BROKEN


# --- networks ---------------------------------------------------------------------------------------------------------
