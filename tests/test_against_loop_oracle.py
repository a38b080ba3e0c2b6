"""The layer equals equations (1) and (2) of docs/concepts/mathematics.md by plain loops: values and gradients."""

from __future__ import annotations

import battery
import pytest
import torch
from layers import EVERY_KIND, KINDS, SIZES, SOFT_PARTS, build_with_oracle, relaxation
from tolerances import ROUNDING
from transformations import relative_error

from escnn_relaxed.kernel import SirenKernel

# Arguments that keep the loops short, and a layer that is far from strict.
SMALL = {"padding": 1, "samples": 4, "hidden_size": 4, "initial_softness": 0.3}
TRANSLATION = {"translation": (0.3, 0.5)}

# Every kind of pair for symmetries of every kind; the loops take seconds for more than eight elements.
FEW_ELEMENTS = ("trivial", "flip axis 0", "C3", "C4", "D2", "D3", "D4 axis 45°", "O(2)")
STATIONARY = [case for case in battery.covering("C4") if case[0] in FEW_ELEMENTS]
SOFT_IN_TRANSLATION = [
    *[("flip", pair) for pair in battery.pairs("flip")[::2]],
    *[("C4", pair) for pair in battery.PAIRS_ROTATION[::2]],
    ("C3", "reordered regular -> regular"),
    ("D4", "trivial -> regular"),
    ("D4 axis 45°", "regular -> irreps"),
    ("D2", "two regular -> regular"),
    *[("SO(2)", pair) for pair in battery.pairs("SO(2)")[1::2]],
    ("O(2)", "induced -> induced"),
]
EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)
EACH_SOFT_IN_TRANSLATION = [(*case, soft_part) for case in SOFT_IN_TRANSLATION for soft_part in SOFT_PARTS]


def compare(space: str, pair: str, size: tuple[int, int], **arguments: object) -> float:
    """Relative difference between a layer and the oracle on white noise."""
    in_type, out_type = battery.types(space, pair)
    layer, oracle = build_with_oracle(in_type, out_type, **SMALL | arguments)
    features = battery.random_input(in_type, *size)
    with torch.no_grad():
        found, expected = layer(in_type(features)).tensor, oracle(features)
    assert found.shape == expected.shape
    if not layer.is_stationary and layer.regions is not None:
        assert layer.region_banks((found.shape[2], found.shape[3])).shape[:2].numel() > 1
    return relative_error(found, expected)


@EVERY_KERNEL
@pytest.mark.parametrize(("space", "pair"), STATIONARY)
def test_stationary_layer_equals_the_loops(space: str, pair: str, soft_part: str) -> None:
    relax = battery.subgroups(space, 0.2)
    assert compare(space, pair, (2, 2), relax=relax, soft_part=soft_part) <= ROUNDING


@pytest.mark.parametrize(("space", "pair", "soft_part"), EACH_SOFT_IN_TRANSLATION)
def test_layer_soft_in_translation_equals_the_loops(space: str, pair: str, soft_part: str) -> None:
    relax = battery.subgroups(space, 0.15) | TRANSLATION
    assert compare(space, pair, SIZES["by regions"], relax=relax, regions=2, soft_part=soft_part) <= ROUNDING


@pytest.mark.parametrize(("space", "pair", "soft_part"), EACH_SOFT_IN_TRANSLATION[::3])
def test_layer_with_a_kernel_for_every_pixel_equals_the_loops(space: str, pair: str, soft_part: str) -> None:
    relax = battery.subgroups(space, 0.15) | TRANSLATION
    assert compare(space, pair, (2, 3), relax=relax, regions=None, soft_part=soft_part) <= ROUNDING


@pytest.mark.parametrize(
    ("regions", "size", "frame"),
    [
        (2, (8, 16), "group"),
        (3, (9, 13), "image"),
        (4, (13, 14), "group"),
        (4, (17, 5), "image"),
        (5, (22, 8), "image"),
        (7, (12, 19), "group"),
    ],
    ids=lambda value: f"{value}",
)
def test_regions_of_any_image_are_those_of_the_loops(regions: int, size: tuple[int, int], frame: str) -> None:
    """Cells, means of cells, tiles that stick out of the image or share a pixel, and one region along an axis."""
    arguments = {"relax": TRANSLATION, "regions": regions, "frame": frame}
    assert compare("C4", "trivial -> irreps", size, **arguments) <= ROUNDING


# The smallest image that the loops take for layers with one kernel, or one a pixel.
OPTIONS = {
    "strict": ((4, 4), {"relax": None}),
    "kernel 1": ((2, 3), {"kernel_size": 1}),
    "kernel 2": ((3, 2), {"kernel_size": 2}),
    "kernel 4": ((3, 3), {"kernel_size": 4}),
    "stride": ((4, 5), {"stride": 2}),
    "stride that does not fit": ((5, 4), {"stride": 2, "kernel_size": 2, "padding_mode": "circular"}),
    "dilation": ((3, 4), {"dilation": 2, "padding": 2}),
    "zeros": ((3, 4), {"padding": 2}),
    "unequal padding": ((3, 4), {"padding": (0, 2)}),
    "reflect": ((3, 3), {"padding_mode": "reflect", "padding": (2, 1)}),
    "replicate": ((3, 2), {"padding_mode": "replicate", "padding": 2}),
    "circular": ((3, 3), {"padding_mode": "circular", "padding": (1, 3)}),
    "groups": ((3, 3), {"groups": 2}),
    "no bias": ((3, 3), {"bias": False}),
    "image frame": ((3, 4), {"frame": "image"}),
    "hard disk": ((3, 3), {"kernel_size": 3, "support": "disk"}),
    "log coordinates": ((3, 3), {"rotation_coordinates": "log"}),
    "siren": ((3, 3), {"net": SirenKernel}),
}


# The loops take seconds where every pixel has its own kernel.
PER_PIXEL = ("kernel 2", "stride that does not fit", "unequal padding", "groups", "image frame", "siren")


# Arguments of κ that a tied kernel does not have.
OF_KAPPA = ("image frame", "hard disk", "log coordinates", "siren")


@pytest.mark.parametrize(
    ("option", "kind", "soft_part"),
    [
        (option, kind, soft_part)
        for option in OPTIONS
        for kind in KINDS
        for soft_part in SOFT_PARTS
        if (kind != "per pixel" or option in PER_PIXEL) and not (soft_part == "tied" and option in OF_KAPPA)
    ],
)
def test_every_option_equals_the_loops(option: str, kind: str, soft_part: str) -> None:
    (height, width), given = OPTIONS[option]
    if kind == "by regions":
        # Seven pixels of the output more: eight at least.
        more = 7 * given.get("stride", 1)
        height, width = height + more, width + more
    arguments = relaxation(kind, {"rotation": 0.2}) | given | {"soft_part": soft_part}
    # Loops over many kernels have few channels.
    space = "C4" if kind == "stationary" else "C2"
    assert compare(space, "regular + regular -> irreps + irreps", (height, width), **arguments) <= ROUNDING


@pytest.mark.parametrize(
    ("space", "pair", "keep", "kind"),
    [
        ("C8", "regular -> quotient + irreps", "C4", "by regions"),
        ("C8", "regular -> irreps", "C2", "stationary"),
        ("D4", "trivial -> regular + irreps", "D2", "stationary"),
        ("D4", "trivial -> regular", "D1", "per pixel"),
        ("SO(2)", "trivial -> irreps", "C2", "by regions"),
        ("O(2)", "trivial -> irreps", "C2", "stationary"),
    ],
)
def test_tied_layer_that_keeps_a_subgroup_equals_the_loops(space: str, pair: str, keep: str, kind: str) -> None:
    subgroups = battery.subgroups(space, 0.2)
    arguments = relaxation(kind, {"rotation": 0.2} if keep.startswith("D") else subgroups)
    assert compare(space, pair, SIZES[kind], **arguments, keep=keep, soft_part="tied") <= ROUNDING


@pytest.mark.slow
@EVERY_KERNEL
def test_grouped_layer_of_several_kinds_equals_the_loops(soft_part: str) -> None:
    in_fields, out_fields = "regular + trivial + trivial", "quotient + last irrep"
    pair = f"{in_fields} + {in_fields} -> {out_fields} + {out_fields}"
    relax = {"rotation": 0.2, "reflection": 0.5, "translation": 0.3}
    assert compare("D2", pair, SIZES["by regions"], relax=relax, groups=2, regions=2, soft_part=soft_part) <= ROUNDING


@pytest.mark.parametrize(
    ("space", "pair", "kind"),
    [
        *[("C2", "regular -> irreps", kind) for kind in KINDS],
        *[("SO(2)", "trivial -> irreps", kind) for kind in ("stationary", "by regions")],
    ],
)
def test_soft_part_beside_a_steerable_kernel_equals_the_loops(space: str, pair: str, kind: str) -> None:
    """Features less their mean over the whole domain, the cells."""
    in_type, out_type = battery.types(space, pair)
    arguments = SMALL | relaxation(kind, battery.subgroups(space, 0.2)) | {"bias": False}
    layer, oracle = build_with_oracle(in_type, out_type, soft_part="centred", **arguments)
    features = battery.random_input(in_type, *SIZES[kind])
    with torch.no_grad():
        strict = torch.nn.functional.conv2d(features, layer.steerable_basis(layer.weights), padding=1)
        found, expected = layer(in_type(features)).tensor, oracle(features)
    assert relative_error(found - strict, expected) <= ROUNDING


@EVERY_KERNEL
@EVERY_KIND
@pytest.mark.parametrize(
    ("space", "pair"),
    [
        ("C4", "regular -> quotient"),
        ("D2", "regular + irreps -> mixed, sheared + regular"),
        ("SO(2)", "trivial -> irreps"),
        ("flip", "irreps -> regular"),
    ],
)
def test_gradients_equal_those_of_the_loops(space: str, pair: str, kind: str, soft_part: str) -> None:
    in_type, out_type = battery.types(space, pair)
    arguments = SMALL | relaxation(kind, battery.subgroups(space, 0.2))
    layer, oracle = build_with_oracle(in_type, out_type, **arguments, soft_part=soft_part, learn_relaxation=True)
    features = battery.random_input(in_type, *SIZES[kind]).requires_grad_()
    answers = layer(in_type(features)).tensor, oracle(features)
    cotangent = torch.randn_like(answers[0])
    names = ["input", *[name for name, _ in layer.named_parameters()]]
    gradients = [torch.autograd.grad(answer, [features, *layer.parameters()], cotangent) for answer in answers]
    for name, found, expected in zip(names, *gradients, strict=True):
        assert expected.norm() > 0, name
        assert relative_error(found, expected) <= ROUNDING, name


@pytest.mark.parametrize("change", [{"frame": "image"}, {"regions": 3, "cells": 3}], ids=["frame", "regions"])
def test_oracle_sees_a_kernel_in_the_wrong_place(change: dict[str, object]) -> None:
    """The comparison can fail: the same numbers with positions in the image's axes, or in other regions."""
    in_type, out_type = battery.types("C4", "regular -> regular")
    layer, oracle = build_with_oracle(in_type, out_type, **SMALL, relax={"translation": 0.4}, regions=2)
    features = battery.random_input(in_type, 8, 12)
    for name, value in change.items():
        setattr(oracle, name, value)
    with torch.no_grad():
        assert relative_error(layer(in_type(features)).tensor, oracle(features)) > 1e-2
