"""Layers equal equations (1) and (2) of docs/concepts/mathematics.md by plain loops: values and gradients."""

import functools
import math
from typing import Any

import numpy as np
import pytest
import small
import torch
from errors import BROKEN, ROUNDING, SINGLE, answer_to, relative_error
from escnn import gspaces
from escnn.group import GroupElement
from escnn.gspaces import GSpace
from escnn.nn import FieldType
from reference import Layer, Oracle
from reference_group import Elements
from reference_kappas import REFERENCE, ContinuousKappa, TiedKappa
from small import EVERY_KERNEL, EVERY_KIND, ROUGH, SIZES, build, shake

from escnn_relaxed import RelaxedR2ConvTransposed, RelaxedR3Conv, RelaxedR3ConvTransposed
from escnn_relaxed.continuous import SirenKernel
from escnn_relaxed.kernel.tied import TiedKernel

# Units of weights are constants, and drawn numbers are the same in both: built in float32 they would lose digits.
pytestmark = [
    pytest.mark.usefixtures("float64_default"),
    pytest.mark.filterwarnings("ignore:rotation_coordinates='log'. the kernel jumps:UserWarning"),
]

FREQUENCIES = {"rotation": 0.2, "reflection": 0.35, "translation": (0.3, 0.5)}
OF_KAPPA = ("support",)


def layer_and_loops(
    space: str,
    pair: str,
    kind: str = "stationary",
    soft_part: str = "tied",
    keep: str | None = None,
    all_directions: bool = False,
    **arguments: Any,
) -> tuple[Layer, Oracle]:
    """A layer that is soft in all that its symmetry has, but for what it keeps, and the loops that evaluate it."""
    names = [*small.subgroups(space, REFERENCE), *(["translation"] if kind != "stationary" else [])]
    names = [name for name in names if keep is None or not (keep.startswith("D") and name == "reflection")]
    # Three rotations resolve no larger ω′ of a continuous kernel, whose weights need no reference.
    start = REFERENCE if soft_part == "tied" else 0.2
    arguments = {"relax": dict.fromkeys(names, start), "samples": 4, "initial_softness": 0.3, **arguments}
    if soft_part == "continuous":
        arguments = {"hidden_size": 3, "filter_frequency": ROUGH, **arguments}
    if all_directions:
        arguments["kernel"] = functools.partial(TiedKernel, all_directions=True)
    layer = build(
        *small.types(space, pair), soft_part=soft_part, **({} if keep is None else {"keep": keep}), **arguments
    )
    names = [name for name in layer.domain_frequency if arguments["relax"] is not None]
    layer.set_domain_frequency(**{name: FREQUENCIES[name] for name in names})
    form = arguments.get("rotation_coordinates", "circle")
    elements = Elements(layer.in_type.gspace, arguments["samples"], **kept(layer, keep), form=form)
    if soft_part == "tied":
        return layer, Oracle(layer, TiedKappa(layer, elements, all_directions), elements)
    shape = {name: arguments[name] for name in OF_KAPPA if name in arguments}
    return layer, Oracle(layer, ContinuousKappa(layer, elements, **shape), elements)


def kept(layer: Layer, keep: str | None) -> dict[str, Any]:
    return {} if keep is None else {"kept": small.kept_elements(layer.in_type.gspace, keep), "fold": int(keep[1:])}


def compare(layer: Layer, oracle: Oracle, *size: int) -> float:
    """Relative difference on white noise."""
    features = small.random_input(layer.in_type, *size)
    with torch.no_grad():
        found, expected = layer(layer.in_type(features)).tensor, oracle(features)
    assert found.shape == expected.shape
    return relative_error(found, expected)


# Every kind of pair for symmetries of every kind; the loops of a continuous kernel take seconds for many elements.
CASES = small.covering("C4", step=6)
OF_FEW_ELEMENTS = [case for case in CASES if case[0] not in ("C6", "C8", "D4", "D6", "D8")][::2]
IN_TRANSLATION = [
    ("flip", "irreps -> two regular"),
    ("C4", "quotient -> irreps"),
    ("C4", "induced + quotient + trivial -> regular + induced"),
    ("C3", "reordered regular -> regular"),
    ("D2", "mixed, sheared -> regular"),
    ("SO(2)", "mixed -> irreps"),
    ("O(2)", "induced -> induced"),
]


@pytest.mark.parametrize(
    ("space", "pair", "soft_part"),
    [*((*case, "tied") for case in CASES), *((*case, "continuous") for case in OF_FEW_ELEMENTS)],
)
def test_stationary_layer_equals_the_loops(space: str, pair: str, soft_part: str) -> None:
    layer, oracle = layer_and_loops(space, pair, soft_part=soft_part)
    with torch.no_grad():
        assert relative_error(layer.filter_bank().flatten(2), oracle.filter_bank()) <= ROUNDING


@pytest.mark.parametrize(
    ("space", "pair", "soft_part"),
    [*((*case, "tied") for case in IN_TRANSLATION), *((*case, "continuous") for case in IN_TRANSLATION[::3])],
)
def test_layer_soft_in_translation_equals_the_loops(space: str, pair: str, soft_part: str) -> None:
    assert compare(*layer_and_loops(space, pair, "in translation", soft_part), *SIZES["in translation"]) <= ROUNDING


@pytest.mark.parametrize(
    ("space", "pair"),
    [("trivial", "irreps -> two regular"), ("C4", "regular -> quotient + irreps"), ("C8", "trivial -> regular")],
)
def test_layer_with_directions_of_all_fields_equals_the_loops(space: str, pair: str) -> None:
    layer, oracle = layer_and_loops(space, pair, "in translation", all_directions=True, padding=1)
    assert layer.filter_banks(3).shape[:2] == (3, 3)
    assert compare(layer, oracle, *SIZES["in translation"]) <= ROUNDING


@EVERY_KERNEL
@pytest.mark.parametrize("size", [(2, 2), (2, 5), (1, 4), (8, 7)], ids=str)
def test_banks_at_the_pixels_of_maps_of_any_size_are_those_of_the_loops(size: tuple[int, int], soft_part: str) -> None:
    """Down to maps of 2×2 pixels, where all directions of the kernel are there."""
    layer, oracle = layer_and_loops("C4", "trivial -> regular + irreps", "in translation", soft_part)
    with torch.no_grad():
        banks = layer.filter_banks(size)
        for pixel in ((0, 0), (0, size[1] - 1), (size[0] - 1, 0)):
            assert relative_error(banks[pixel].flatten(2), oracle.filter_bank(pixel, size)) <= ROUNDING
    assert relative_error(banks[0, 0], banks[-1, -1]) > BROKEN


# The smallest image that the loops take for layers with one kernel.
OPTIONS: dict[str, tuple[tuple[int, int], dict[str, object]]] = {
    "strict": ((4, 4), {"relax": None}),
    "kernel 1": ((2, 3), {"kernel_size": 1}),
    "kernel 4": ((4, 4), {"kernel_size": 4}),
    "stride": ((4, 5), {"stride": 2, "padding": 1}),
    "stride that does not fit": ((5, 4), {"stride": 2, "kernel_size": 2, "padding": 1, "padding_mode": "circular"}),
    "dilation": ((3, 4), {"dilation": 2, "padding": 2}),
    "reflect": ((3, 3), {"padding_mode": "reflect", "padding": (2, 1)}),
    "replicate": ((3, 2), {"padding_mode": "replicate", "padding": 2}),
    "circular": ((3, 3), {"padding_mode": "circular", "padding": (1, 3)}),
    "groups": ((3, 3), {"groups": 2}),
    "no bias": ((3, 3), {"bias": False}),
    "all at once": ((4, 6), {"padding": (2, 1), "padding_mode": "reflect", "stride": 2, "dilation": 2, "groups": 2}),
}
OPTIONS_OF_KAPPA: dict[str, tuple[tuple[int, int], dict[str, object]]] = {
    "hard disk": ((3, 3), {"support": "disk"}),
    "log coordinates": ((3, 3), {"rotation_coordinates": "log"}),
    "siren": ((3, 3), {"net": SirenKernel}),
}


@EVERY_KIND
@pytest.mark.parametrize(
    ("option", "soft_part"),
    [*((option, "tied") for option in OPTIONS), *((option, "continuous") for option in ("groups", *OPTIONS_OF_KAPPA))],
)
def test_every_option_equals_the_loops(option: str, soft_part: str, kind: str) -> None:
    size, arguments = (OPTIONS | OPTIONS_OF_KAPPA)[option]
    if kind == "in translation":
        # A pixel of the output more: two at least.
        size = tuple(side + arguments.get("stride", 1) for side in size)
    space = "C4" if kind == "stationary" else "C2"
    layer, oracle = layer_and_loops(space, "regular + regular -> irreps + irreps", kind, soft_part, **arguments)
    assert compare(layer, oracle, *size) <= ROUNDING
    if soft_part == "tied" or kind == "stationary":
        exported = layer.eval().export()
        is_factored = kind == "in translation" and option != "strict"
        assert type(exported).__name__ == ("FactoredConvolution" if is_factored else "Conv2d")
        for height, width in (size, (7, 8), (13, 5)):
            features = small.random_input(layer.in_type, height, width)
            assert relative_error(exported(features).detach(), answer_to(layer, features)) <= ROUNDING
        single = layer.float()
        assert relative_error(single.export()(features.float()).detach(), answer_to(single, features.float())) <= SINGLE


@pytest.mark.parametrize("space", ["C6", "C8", "D3"])
def test_angles_are_principal(space: str) -> None:
    """A half turn is +π, whatever the sign of its rounding error, and three quarters of a turn are −π/2."""
    arguments = {"rotation_coordinates": "log", "relax": {"rotation": 0.3}, "hidden_size": 2}
    layer, oracle = layer_and_loops(space, "trivial -> regular", soft_part="continuous", **arguments)
    with torch.no_grad():
        assert relative_error(layer.filter_bank().flatten(2), oracle.filter_bank()) <= ROUNDING


@pytest.mark.parametrize(
    ("space", "pair", "keep", "kind"),
    [
        ("C8", "regular -> quotient + irreps", "C4", "in translation"),
        ("C8", "regular -> irreps", "C2", "stationary"),
        ("D4", "trivial -> regular + irreps", "D2", "stationary"),
        ("D2", "trivial -> regular", "D1", "in translation"),
        ("SO(2)", "trivial -> irreps", "C2", "in translation"),
        ("O(2)", "trivial -> irreps", "C2", "stationary"),
    ],
)
def test_layer_that_keeps_a_subgroup_equals_the_loops(space: str, pair: str, keep: str, kind: str) -> None:
    assert compare(*layer_and_loops(space, pair, kind, keep=keep, padding=1), *SIZES[kind]) <= ROUNDING


TRANSPOSED: dict[str, tuple[str, str, str, dict[str, object]]] = {
    "plain": ("SO(2)", "irreps -> trivial", "in translation", {}),
    "padding pair": ("D4", "trivial -> regular", "stationary", {"padding": (1, 0)}),
    "stride": ("C4", "regular -> irreps", "in translation", {"padding": 1, "stride": 2}),
    "output padding": ("flip", "mixed, sheared -> regular", "stationary", {"stride": 3, "output_padding": (2, 0)}),
    "dilation": ("C8", "regular -> irreps", "stationary", {"padding": 2, "dilation": 2}),
    "stride beyond the kernel": ("O(2)", "irreps -> trivial", "stationary", {"stride": 3, "kernel_size": 2}),
    "everything": (
        *("C4", "trivial + trivial -> irreps + irreps", "in translation"),
        {"padding": (1, 2), "stride": 2, "output_padding": (1, 0), "dilation": 2, "groups": 2},
    ),
}


@EVERY_KERNEL
@pytest.mark.parametrize("geometry", TRANSPOSED)
def test_transposed_layer_equals_the_loops(geometry: str, soft_part: str) -> None:
    space, pair, kind, arguments = TRANSPOSED[geometry]
    layer, oracle = layer_and_loops(space, pair, kind, soft_part, make=RelaxedR2ConvTransposed, **arguments)
    assert compare(layer, oracle, *SIZES[kind]) <= ROUNDING


@pytest.mark.parametrize(
    ("space", "pair", "kind", "soft_part"),
    [
        ("C4", "regular -> quotient", "in translation", "tied"),
        ("D2", "regular + irreps -> mixed, sheared + regular", "stationary", "tied"),
        ("SO(2)", "trivial -> irreps", "in translation", "tied"),
        ("C4", "regular -> quotient", "stationary", "continuous"),
        ("flip", "irreps -> regular", "in translation", "continuous"),
        ("SO(2)", "trivial -> irreps", "stationary", "continuous"),
    ],
)
def test_gradients_equal_those_of_the_loops(space: str, pair: str, kind: str, soft_part: str) -> None:
    layer, oracle = layer_and_loops(space, pair, kind, soft_part, learn_relaxation=True, padding=1)
    features = small.random_input(layer.in_type, *SIZES[kind]).requires_grad_()
    answers = layer(layer.in_type(features)).tensor, oracle(features)
    cotangent = torch.randn_like(answers[0])
    names = ["input", *[name for name, _ in layer.named_parameters()]]
    gradients = [torch.autograd.grad(answer, [features, *layer.parameters()], cotangent) for answer in answers]
    for name, found, expected in zip(names, *gradients, strict=True):
        assert expected.norm() > 0, name
        assert relative_error(found, expected) <= ROUNDING, name


def volumes_and_loops(
    fields: FieldType,
    keep: object = None,
    place: dict[str, Any] | None = None,
    in_translation: bool = False,
    make: type[Layer] = RelaxedR3Conv,
    **elements: Any,
) -> tuple[Layer, Oracle]:
    sample = Elements(fields.gspace, 24, **elements)
    proper = [action for action in sample.actions if np.linalg.det(action) > 0]
    is_kept = any(np.linalg.det(action) < 0 for action in sample.kept)
    has = {"rotation": len(proper) > 1, "reflection": len(proper) < len(sample.actions) and not is_kept}
    names = [name for name, is_there in {**has, "translation": in_translation}.items() if is_there]
    layer = make(
        fields, fields, 3, relax=dict.fromkeys(names, REFERENCE), keep=keep, initial_softness=0.3, **place or {}
    )
    shake(layer)
    frequencies = {**FREQUENCIES, "translation": (0.3, 0.5, 0.2)}
    layer.set_domain_frequency(**{name: frequencies[name] for name in layer.domain_frequency})
    return layer, Oracle(layer, TiedKappa(layer, sample), sample)


@pytest.mark.parametrize("space", [of for of in small.VOLUME_SPACES if of != "full octahedral"] + [small.ICOSAHEDRAL])
def test_layer_of_volumes_equals_the_loops(space: str) -> None:
    layer, oracle = volumes_and_loops(small.volume_type(space))
    with torch.no_grad():
        assert relative_error(layer.filter_bank().flatten(2), oracle.filter_bank()) <= ROUNDING
    assert space == "trivial" or layer.softness().item() > 0.05


PLACES = [{"stride": 2, "padding": (0, 1, 2)}, {"dilation": 2, "padding": 1, "padding_mode": "replicate"}]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_volumes_are_convolved_as_the_loops_do(place: dict[str, object]) -> None:
    assert compare(*volumes_and_loops(small.volume_type("mirror"), place=place), 3, 4, 5) <= ROUNDING


@pytest.mark.parametrize("space", ["C4", "cone 4", "mirror", "trivial"])
def test_volumes_soft_in_translation_equal_the_loops(space: str) -> None:
    place = {"stride": 2, "padding": (1, 1, 0)}
    layer, oracle = volumes_and_loops(small.volume_type(space), place=place, in_translation=True)
    assert compare(layer, oracle, 3, 2, 5) <= ROUNDING
    assert layer.softness("translation").item() > 1e-3


@pytest.mark.parametrize("place", small.TRANSPOSED_VOLUMES)
def test_transposed_volumes_equal_the_loops(place: str) -> None:
    arguments = small.TRANSPOSED_VOLUMES[place]
    part = small.volume_type("C4" if place == "groups" else "mirror")
    fields = FieldType(part.gspace, part.representations * int(arguments.get("groups", 1)))
    layer, oracle = volumes_and_loops(fields, place=arguments, in_translation=True, make=RelaxedR3ConvTransposed)
    assert compare(layer, oracle, 2, 3, 2) <= ROUNDING


def turns_about_z(space: GSpace, order: int) -> list[GroupElement]:
    """The identity and the other turns of a cyclic group of this order; the second generates it."""
    turn = space.fibergroup.identity
    for element in space.fibergroup.elements:
        angle = 2 * math.pi / order
        if np.allclose(space.basespace_action(element)[:2, 0], [math.cos(angle), math.sin(angle)], atol=1e-6):
            turn = element if small.about_z(space, element) else turn
    powers = [space.fibergroup.identity]
    for _ in range(order - 1):
        powers.append(powers[-1] @ turn)
    return powers


def element_by(space: GSpace, *diagonal: int) -> GroupElement:
    actions = {element: np.asarray(space.basespace_action(element)) for element in space.fibergroup.elements}
    return next(element for element, of in actions.items() if np.allclose(of, np.diag(diagonal)))


def in_space(case: str) -> tuple[FieldType, object, dict[str, Any]]:
    """Fields, what is kept, and this as the loops take it."""
    octahedral, turns_of_8, cone = gspaces.octaOnR3(), gspaces.rot2dOnR3(8), gspaces.conicalOnR3(8)
    mixed = FieldType(octahedral, [octahedral.irrep(1), octahedral.regular_repr])
    if case.startswith("an axis"):
        # Channels that belong to elements see more of the axis than means over all elements do.
        return mixed if "elements" in case else small.volume_type("octahedral"), "SO(2)", {"about_axis": True}
    if case.startswith("dihedral"):
        turns, flip = turns_about_z(octahedral, int(case[-1])), element_by(octahedral, 1, -1, -1)
        return mixed, [*turns[1:2], flip], {"kept": [*turns, *(turn @ flip for turn in turns)]}
    if case.startswith("turns"):
        order = int(case[-1])
        fields = FieldType(turns_of_8, [turns_of_8.regular_repr, turns_of_8.irrep(1)])
        # The coordinate of a rotation by θ is that of a rotation by nθ, as in the plane.
        return fields, order, {"kept": turns_about_z(turns_of_8, order), "fold": order}
    half_turn, mirror = element_by(cone, -1, -1, 1), element_by(cone, 1, -1, 1)
    kept = [cone.fibergroup.identity, half_turn, mirror, half_turn @ mirror]
    # Turns count without mirrors.
    return FieldType(cone, [cone.regular_repr]), [half_turn, mirror], {"kept": kept, "fold": 2}


@pytest.mark.parametrize("case", ["an axis", "an axis, elements", "dihedral 4", "turns 2", "turn and mirror"])
def test_layer_of_volumes_that_keeps_a_group_equals_the_loops(case: str) -> None:
    fields, keep, elements = in_space(case)
    layer, oracle = volumes_and_loops(fields, keep, **elements)
    with torch.no_grad():
        assert relative_error(layer.filter_bank().flatten(2), oracle.filter_bank()) <= ROUNDING
