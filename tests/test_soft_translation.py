"""Soft translation with strict rotation: exact about the image centre in the frame of g, broken in the image's."""

from __future__ import annotations

import functools

import battery
import pytest
import torch
from layers import SOFT_PARTS, soft_layer
from tolerances import BROKEN, ROUNDING
from transformations import largest_error, on_grid_elements, relative_error, shift_error

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.kernel import SirenKernel

EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)
# A pair of each kind for a symmetry of each kind.
CASES = [
    ("flip", "trivial -> regular"),
    ("C2", "mixed, sheared -> regular"),
    ("C4", "two regular -> regular"),
    ("C4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed"),
    ("C8", "quotient -> irreps"),
    ("D4", "two regular -> regular"),
    ("D4", "induced + quotient + trivial -> regular + induced"),
    ("D4 axis 45°", "regular -> irreps"),
    ("D6", "regular -> quotient"),
    ("SO(2)", "band-limited + trivial -> irreps + mixed"),
    ("O(2)", "irreps -> irreps"),
]
EACH_CASE_IN_ONE_FORM = [(*case, SOFT_PARTS[number % 2]) for number, case in enumerate(CASES)]
A_FEW_CASES = pytest.mark.parametrize(("space", "pair"), [CASES[2], CASES[6], CASES[-1]])


layer_soft_in_translation = functools.partial(soft_layer, relax={"translation": 0.4})


def assert_exact(layer: RelaxedR2Conv, *size: int) -> None:
    """Under all elements of the group that map the pixel grid to itself, with more than one region or kernel."""
    features = battery.random_input(layer.in_type, *size, batch=1)
    layer.eval()
    assert not layer.is_stationary
    if layer.regions is not None:
        output_size = layer.evaluate_output_shape(tuple(features.shape))[2:]
        assert layer.region_banks(output_size).shape[:2].numel() > 1
    assert largest_error(layer, features) <= ROUNDING


# Regions that are cells and such that are not, tiles that stick out of the image and such that share its middle.
SIZES = [(8, 8), (9, 9), (13, 13), (14, 11)]
WITH_AN_ELEMENT = [space for space in battery.GSPACES if on_grid_elements(battery.gspace(space))]
PAIRS = [(space, pair) for space, pair in battery.covering("C4", "D2") if space in WITH_AN_ELEMENT]


@pytest.mark.parametrize(("space", "pair"), PAIRS)
def test_every_pair_of_field_types_keeps_the_group(space: str, pair: str) -> None:
    """On images of odd and even sides, with one form of the kernel or the other: sizes and forms in turn."""
    number = PAIRS.index((space, pair))
    soft_part = SOFT_PARTS[number // 2 % 2]
    layer = layer_soft_in_translation(space, pair, padding=1, samples=4, hidden_size=4, regions=4, soft_part=soft_part)
    for size in SIZES[number % 2 :: 2]:
        assert_exact(layer, *size)


@pytest.mark.parametrize(("space", "pair", "soft_part"), EACH_CASE_IN_ONE_FORM)
def test_soft_translation_keeps_the_group_about_the_image_centre_alone(space: str, pair: str, soft_part: str) -> None:
    layer = layer_soft_in_translation(space, pair, padding=1, padding_mode="circular", soft_part=soft_part)
    assert_exact(layer, 12, 12)
    assert shift_error(layer, battery.random_input(layer.in_type, 12, 12)) > BROKEN


@pytest.mark.parametrize("regions", [2, None])
@pytest.mark.parametrize(("space", "pair", "soft_part"), EACH_CASE_IN_ONE_FORM[1::2] + EACH_CASE_IN_ONE_FORM[::4])
def test_layer_is_strict_in_everything_where_the_frequency_is_zero(
    space: str, pair: str, soft_part: str, regions: int | None
) -> None:
    layer = layer_soft_in_translation(
        space, pair, padding=1, padding_mode="circular", soft_part=soft_part, regions=regions
    )
    layer.set_domain_frequency(translation=0.0)
    features = battery.random_input(layer.in_type, 9, 9)
    assert layer.is_stationary
    assert largest_error(layer, features) <= ROUNDING
    assert shift_error(layer, features) <= ROUNDING


@EVERY_KERNEL
@A_FEW_CASES
def test_a_kernel_for_every_pixel_keeps_the_group_too(space: str, pair: str, soft_part: str) -> None:
    layer = layer_soft_in_translation(
        space, pair, padding=1, padding_mode="circular", regions=None, soft_part=soft_part
    )
    for size in ((4, 4), (3, 5)):
        assert_exact(layer, *size)
        assert shift_error(layer, battery.random_input(layer.in_type, *size)) > BROKEN


@pytest.mark.parametrize(
    ("soft_part", "regions", "size"),
    [("centred", 4, (9, 9)), ("continuous", 4, (12, 12)), ("centred", None, (5, 5))],
)
@A_FEW_CASES
def test_position_in_the_axes_of_the_image_breaks_the_group(
    space: str, pair: str, regions: int | None, size: tuple[int, int], soft_part: str
) -> None:
    layer = layer_soft_in_translation(space, pair, padding=1, regions=regions, frame="image", soft_part=soft_part)
    assert largest_error(layer, battery.random_input(layer.in_type, *size)) > BROKEN


@pytest.mark.parametrize(("space", "pair"), [CASES[2], CASES[-1]])
def test_a_frequency_for_each_axis_breaks_quarter_turns_in_the_axes_of_the_image_alone(space: str, pair: str) -> None:
    """In the frame of g the axes turn with g, so ω′_x ≠ ω′_y is as equivariant as one ω′."""
    relax = {"translation": (0.1, 0.6)}
    assert_exact(layer_soft_in_translation(space, pair, relax=relax), 13, 13)
    in_image = layer_soft_in_translation(space, pair, relax=relax, frame="image")
    assert largest_error(in_image, battery.random_input(in_image.in_type, 13, 13)) > BROKEN


@pytest.mark.parametrize("regions", [4, None])
@pytest.mark.parametrize("axis", [0, 1], ids=["x", "y"])
def test_one_frequency_at_zero_keeps_translation_along_that_axis(axis: int, regions: int | None) -> None:
    relax = {"translation": [(0.0, 0.4), (0.4, 0.0)][axis]}
    circular = {"padding": 1, "padding_mode": "circular"}
    layer = layer_soft_in_translation("trivial", "trivial -> regular", relax=relax, regions=regions, **circular)
    features = battery.random_input(layer.in_type, 12, 12)
    along, across = ((0, 1), (1, 0)) if axis == 0 else ((1, 0), (0, 1))
    assert shift_error(layer, features, *along) <= ROUNDING
    assert shift_error(layer, features, *across) > BROKEN


# Arguments, and an image whose outputs have its centre in their middle.
GEOMETRIES = {
    "kernel 1": ({"kernel_size": 1}, (8, 8)),
    "kernel 2": ({"kernel_size": 2}, (9, 9)),
    "kernel 4": ({"kernel_size": 4, "padding": 1}, (11, 11)),
    "dilation": ({"dilation": 2, "padding": 2}, (10, 10)),
    "stride, even output": ({"stride": 2, "padding": 1}, (15, 15)),
    "stride, odd output": ({"stride": 2, "padding": 1}, (17, 17)),
    "stride on an image of other sides": ({"stride": 2, "padding": 1}, (15, 25)),
    "stride beyond the kernel": ({"kernel_size": 2, "stride": 3}, (23, 26)),
    "zeros": ({"padding": 2}, (7, 7)),
    "reflect": ({"padding": 1, "padding_mode": "reflect"}, (8, 8)),
    "replicate": ({"padding": 2, "padding_mode": "replicate"}, (8, 8)),
    "circular": ({"padding": 2, "padding_mode": "circular"}, (8, 8)),
    "groups": ({"groups": 2, "padding": 1}, (8, 8)),
    "image of other sides": ({"padding": 1}, (3, 14)),
    "siren": ({"net": SirenKernel, "padding": 1}, (9, 9)),
    "image of other sides, even kernel and stride": ({"kernel_size": 2, "stride": 2}, (16, 18)),
    "a region": ({"regions": 5, "padding": 1}, (20, 27)),
}


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_soft_translation_keeps_the_group_whatever_the_convolution(geometry: str) -> None:
    """The convolution takes the banks of either form of the kernel: forms in turn."""
    arguments, size = GEOMETRIES[geometry]
    soft_part = SOFT_PARTS[list(GEOMETRIES).index(geometry) % 2]
    types = "D4", "regular + regular -> irreps + irreps"
    assert_exact(layer_soft_in_translation(*types, soft_part=soft_part, **arguments), *size)


@pytest.mark.parametrize("regions", [4, None])
def test_unequal_padding_keeps_half_turns_and_flips(regions: int | None) -> None:
    assert_exact(layer_soft_in_translation("D2", "regular -> irreps", padding=(2, 1), regions=regions), 8, 9)


@pytest.mark.parametrize("regions", [4, None])
def test_soft_rotation_beside_soft_translation_breaks_the_group(regions: int | None) -> None:
    relax = {"translation": 0.4, "rotation": 0.2}
    layer = layer_soft_in_translation("C4", "two regular -> regular", relax=relax, padding=1, regions=regions)
    assert largest_error(layer, battery.random_input(layer.in_type, 9, 9)) > BROKEN


def test_layer_with_one_region_is_soft_in_nothing() -> None:
    """On an image too small for two, or where one is all that is asked for: its kernel is the mean over the cells."""
    for regions, size in ((4, (7, 7)), (1, (16, 16))):
        layer = layer_soft_in_translation(
            *CASES[2], padding=1, padding_mode="circular", regions=regions, relax={"translation": 0.25}
        )
        features = battery.random_input(layer.in_type, *size)
        assert shift_error(layer, features) <= ROUNDING
        with torch.no_grad():
            soft = layer(layer.in_type(features)).tensor
            layer.harden("translation")
            assert relative_error(layer(layer.in_type(features)).tensor, soft) <= ROUNDING


def test_every_symmetry_of_the_table_has_an_element_to_check() -> None:
    assert all(on_grid_elements(battery.gspace(space)) for space, _ in CASES)
    assert set(battery.GSPACES) - set(WITH_AN_ELEMENT) == {"trivial", "C3"}
