"""Bad arguments and inputs: the right error, which names the argument, the value and what would be right."""

from __future__ import annotations

import math
import re
import warnings

import battery
import numpy as np
import pytest
import torch
from escnn import gspaces
from escnn.nn import FieldType, GeometricTensor
from layers import with_kernel

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv

C4, D4 = battery.gspace("C4"), battery.gspace("D4")
REGULAR = FieldType(C4, [C4.regular_repr] * 2)
DIHEDRAL = FieldType(D4, [D4.regular_repr])
SPACE_3D = gspaces.rot3dOnR3()
IN_SPACE = FieldType(SPACE_3D, [SPACE_3D.trivial_repr])
NAN, INFINITE = float("nan"), float("inf")

# name: (arguments that replace those of a good layer, the error, what its message must hold)
BAD = {
    "in_type of another class": ({"in_type": "regular"}, TypeError, ["in_type", "'regular'", "FieldType"]),
    "in_type None": ({"in_type": None}, TypeError, ["in_type", "None", "FieldType"]),
    "out_type a representation": ({"out_type": C4.regular_repr}, TypeError, ["out_type", "FieldType"]),
    "out_type on another gspace": ({"out_type": DIHEDRAL}, ValueError, ["in_type", "out_type", "gspace", D4.name]),
    "a gspace of other axes": (
        {"out_type": FieldType(gspaces.rot2dOnR2(8), [gspaces.rot2dOnR2(8).trivial_repr])},
        ValueError,
        ["in_type", "out_type", "gspace"],
    ),
    "a gspace of space": ({"in_type": IN_SPACE, "out_type": IN_SPACE}, ValueError, ["in_type", "plane"]),
    "kernel size 0": ({"kernel_size": 0}, ValueError, ["kernel_size", "0", ">= 1"]),
    "kernel size -1": ({"kernel_size": -1}, ValueError, ["kernel_size", "-1", ">= 1"]),
    "kernel size 3.0": ({"kernel_size": 3.0}, TypeError, ["kernel_size", "3.0", "integer"]),
    "kernel size True": ({"kernel_size": True}, TypeError, ["kernel_size", "True", "integer"]),
    "kernel size '3'": ({"kernel_size": "3"}, TypeError, ["kernel_size", "'3'", "integer"]),
    "kernel size None": ({"kernel_size": None}, TypeError, ["kernel_size", "None", "integer"]),
    "a pair of kernel sizes": ({"kernel_size": (3, 3)}, TypeError, ["kernel_size", "(3, 3)", "integer"]),
    "negative padding": ({"padding": -1}, ValueError, ["padding", "-1", ">= 0"]),
    "padding of one": ({"padding": (1,)}, ValueError, ["padding", "(1,)", "pair"]),
    "padding of three": ({"padding": (1, 1, 1)}, ValueError, ["padding", "(1, 1, 1)", "pair"]),
    "padding in words": ({"padding": "same"}, TypeError, ["padding", "'same'", "integer"]),
    "padding of floats": ({"padding": (1, 1.5)}, TypeError, ["padding", "1.5", "integer"]),
    "stride 0": ({"stride": 0}, ValueError, ["stride", "0", ">= 1"]),
    "stride a float": ({"stride": 2.0}, TypeError, ["stride", "2.0", "integer"]),
    "dilation 0": ({"dilation": 0}, ValueError, ["dilation", "0", ">= 1"]),
    "unknown padding mode": ({"padding_mode": "same"}, ValueError, ["padding_mode", "'same'", "circular"]),
    "groups that do not divide": ({"groups": 3}, ValueError, ["groups", "3", "2", "divide"]),
    "groups 0": ({"groups": 0}, ValueError, ["groups", "0", ">= 1"]),
    "groups a float": ({"groups": 2.0}, TypeError, ["groups", "2.0", "integer"]),
    "groups that split unequally": (
        {"in_type": FieldType(C4, [C4.regular_repr, C4.trivial_repr]), "groups": 2},
        ValueError,
        ["groups", "2", "in_type", "equal parts"],
    ),
    "relax a number": ({"relax": 0.5}, TypeError, ["relax", "0.5", "dict"]),
    "relax True": ({"relax": True}, TypeError, ["relax", "True", "dict"]),
    "relax an unknown word": ({"relax": "rotation"}, ValueError, ["relax={'rotation': 0.25}", "'default'"]),
    "relax another word": ({"relax": "soft"}, ValueError, ["relax={'rotation': 0.25}", "'soft'"]),
    "relax translation in a word": ({"relax": "translation"}, ValueError, ["relax={'translation': 0.25}"]),
    "unknown subgroup": ({"relax": {"scaling": 1.0}}, ValueError, ["relax", "'scaling'", "rotation", "translation"]),
    "subgroup the group lacks": ({"relax": {"reflection": 1.0}}, ValueError, ["relax", "reflection", C4.name]),
    "frequency NaN": ({"relax": {"rotation": NAN}}, ValueError, ["relax", "rotation", "nan", "finite"]),
    "frequency infinite": ({"relax": {"rotation": INFINITE}}, ValueError, ["relax", "rotation", "inf", "finite"]),
    "frequency in words": ({"relax": {"rotation": "much"}}, TypeError, ["relax", "rotation", "'much'", "number"]),
    "frequency None": ({"relax": {"rotation": None}}, TypeError, ["relax", "rotation", "None", "number"]),
    "frequency complex": ({"relax": {"rotation": 1j}}, TypeError, ["relax", "rotation", "1j", "number"]),
    "two frequencies of rotation": ({"relax": {"rotation": (0.1, 0.1)}}, ValueError, ["relax", "rotation", "1 value"]),
    "three of translation": ({"relax": {"translation": (1, 1, 1)}}, ValueError, ["relax", "translation", "2 value"]),
    "frequency True": ({"relax": {"rotation": True}}, TypeError, ["relax", "rotation", "True", "number"]),
    "pair in words": ({"relax": {"translation": "much"}}, TypeError, ["relax", "translation", "'much'", "pair (x, y)"]),
    "one of two infinite": ({"relax": {"translation": (0.1, INFINITE)}}, ValueError, ["relax", "translation", "inf"]),
    "samples 0": ({"samples": 0}, ValueError, ["samples", "0", ">= 1"]),
    "samples a float": ({"samples": 8.0}, TypeError, ["samples", "8.0", "integer"]),
    "unknown frame": ({"frame": "world"}, ValueError, ["frame", "'world'", "group", "image"]),
    "regions 0": ({"regions": 0}, ValueError, ["regions", "0", ">= 1"]),
    "regions negative": ({"regions": -4}, ValueError, ["regions", "-4", ">= 1"]),
    "regions a float": ({"regions": 4.0}, TypeError, ["regions", "4.0", "integer"]),
    "regions True": ({"regions": True}, TypeError, ["regions", "True", "integer"]),
    "regions in words": ({"regions": "pixels"}, TypeError, ["regions", "'pixels'", "integer"]),
    "a pair of regions": ({"regions": (4, 4)}, TypeError, ["regions", "(4, 4)", "integer"]),
    "unknown coordinates": ({"rotation_coordinates": "angle"}, ValueError, ["rotation_coordinates", "'angle'", "log"]),
    "unknown strict kernel": ({"strict_kernel": "free"}, ValueError, ["strict_kernel", "'free'", "steerable"]),
    "unknown kernel net": ({"net": "mlp"}, TypeError, ["net", "'mlp'", "KernelNet"]),
    "unknown support": ({"support": "square"}, ValueError, ["support", "'square'", "disk"]),
    "hidden size 0": ({"hidden_size": 0}, ValueError, ["hidden_size", "0", ">= 1"]),
    "filter frequency negative": ({"filter_frequency": -1.0}, ValueError, ["filter_frequency", "-1.0", ">= 0"]),
    "filter frequency NaN": ({"filter_frequency": NAN}, ValueError, ["filter_frequency", "nan", "finite"]),
    "filter frequency in words": ({"filter_frequency": "low"}, TypeError, ["filter_frequency", "'low'", "number"]),
    "unknown filter coordinate": ({"filter_frequency": {"scale": 1.0}}, ValueError, ["filter_frequency", "'scale'"]),
    "softness above 1": ({"initial_softness": 1.5}, ValueError, ["initial_softness", "1.5"]),
    "softness of 1": ({"initial_softness": 1.0}, ValueError, ["initial_softness", "1.0"]),
    "softness negative": ({"initial_softness": -0.1}, ValueError, ["initial_softness", "-0.1"]),
    "softness NaN": ({"initial_softness": NAN}, ValueError, ["initial_softness", "nan"]),
    "bias None": ({"bias": None}, TypeError, ["bias", "None", "True or False"]),
    "bias 1": ({"bias": 1}, TypeError, ["bias", "1", "True or False"]),
    "learning in words": ({"learn_relaxation": "no"}, TypeError, ["learn_relaxation", "'no'", "True or False"]),
    "learning a number": ({"learn_relaxation": 0.1}, TypeError, ["learn_relaxation", "0.1", "True or False"]),
    "initialize in words": ({"initialize": "no"}, TypeError, ["initialize", "'no'", "True or False"]),
    "random offset a number": ({"random_offset": 0.1}, TypeError, ["random_offset", "0.1", "True or False"]),
    "softness True": ({"initial_softness": True}, TypeError, ["initial_softness", "True", "number"]),
    "filter frequency True": ({"filter_frequency": True}, TypeError, ["filter_frequency", "True", "number"]),
    "softness in words": ({"initial_softness": "soft"}, TypeError, ["initial_softness", "'soft'"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_argument_raises_an_error_that_says_so(case: str) -> None:
    arguments, error, words = BAD[case]
    good = {"in_type": REGULAR, "out_type": REGULAR, "kernel_size": 3}
    with pytest.raises(error) as raised:
        RelaxedR2Conv(**with_kernel({**good, **arguments}))
    message = str(raised.value)
    assert all(word in message for word in words), message


def layer_of(**arguments: object) -> RelaxedR2Conv:
    return RelaxedR2Conv(REGULAR, REGULAR, 3, **with_kernel(arguments))


BAD_INPUT = {
    "a tensor": (lambda: torch.randn(1, 8, 5, 5), TypeError, ["input", "GeometricTensor", "Tensor"]),
    "None": (lambda: None, TypeError, ["input", "GeometricTensor", "None"]),
    "another type": (
        lambda: FieldType(C4, [C4.regular_repr])(torch.randn(1, 4, 5, 5)),
        TypeError,
        ["input", "type", "regular"],
    ),
    "another gspace": (lambda: DIHEDRAL(torch.randn(1, 8, 5, 5)), TypeError, ["input", "type", D4.name]),
    "integers": (lambda: REGULAR(torch.ones(1, 8, 5, 5, dtype=torch.int64)), TypeError, ["input", "int64", "floating"]),
    "complex": (
        lambda: REGULAR(torch.ones(1, 8, 5, 5, dtype=torch.complex64)),
        TypeError,
        ["input", "complex64", "real"],
    ),
    "an image lower than the kernel": (
        lambda: REGULAR(torch.randn(1, 8, 2, 5)),
        ValueError,
        ["input", "2x5", "3", "smaller"],
    ),
    "an image narrower than the kernel": (
        lambda: REGULAR(torch.randn(1, 8, 5, 2)),
        ValueError,
        ["input", "5x2", "3", "smaller"],
    ),
}


@pytest.mark.parametrize("relax", [None, {"translation": 0.2}], ids=["stationary", "soft in translation"])
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_raises_an_error_that_says_so(case: str, relax: dict[str, float] | None) -> None:
    make, error, words = BAD_INPUT[case]
    with pytest.raises(error) as raised:
        layer_of(relax=relax)(make())
    message = str(raised.value)
    assert all(word in message for word in words), message


def test_dilated_kernel_counts_with_its_whole_extent() -> None:
    layer = layer_of(dilation=2, padding=1)
    assert layer(REGULAR(torch.randn(1, 8, 3, 3))).tensor.shape[2:] == (1, 1)
    with pytest.raises(ValueError, match=r"4x5.*5"):
        layer(REGULAR(torch.randn(1, 8, 2, 3)))


@pytest.mark.parametrize(
    ("mode", "padding", "size"),
    [("reflect", 3, 3), ("reflect", (0, 4), 4), ("circular", 4, 3), ("circular", (5, 0), 4)],
)
@pytest.mark.parametrize("relax", [None, {"translation": 0.2}], ids=["stationary", "soft in translation"])
def test_padding_that_the_mode_cannot_fill_is_refused(mode: str, padding: object, size: int, relax: object) -> None:
    """Reflection has n − 1 pixels to copy, a circle n."""
    layer = layer_of(padding=padding, padding_mode=mode, relax=relax)
    with pytest.raises(ValueError, match="padding") as raised:
        layer(REGULAR(torch.randn(1, 8, size, size)))
    assert mode in str(raised.value)


@pytest.mark.parametrize("shape", [(1, 8, 5), (1, 7, 5, 5), (8, 5, 5)])
def test_output_shape_of_a_bad_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="input_shape") as raised:
        layer_of().evaluate_output_shape(shape)
    assert str(shape) in str(raised.value)


def test_output_shape_of_an_image_smaller_than_the_kernel() -> None:
    with pytest.raises(ValueError, match="smaller"):
        layer_of().evaluate_output_shape((1, 8, 2, 5))


@pytest.mark.parametrize(
    ("value", "error"), [(True, TypeError), (NAN, ValueError), ("much", TypeError), ((0.1, 0.2), ValueError)]
)
def test_bad_frequency_is_refused_when_set_and_changes_nothing(value: object, error: type[Exception]) -> None:
    layer = layer_of(relax={"rotation": 0.25})
    with pytest.raises(error, match=r"set_domain_frequency.*rotation"):
        layer.set_domain_frequency(rotation=value)
    assert layer.domain_frequency["rotation"].item() == 0.25


def test_subgroup_that_was_not_named_cannot_be_set() -> None:
    with pytest.raises(ValueError, match=r"translation.*rotation"):
        layer_of(relax={"rotation": 0.25}).set_domain_frequency(translation=0.1)


ALIASING = [
    ("C4", "circle", 4 / (4 * math.pi)),
    ("C8", "circle", 8 / (4 * math.pi)),
    ("C8", "log", 4.0),
    ("SO(2)", "circle", 16 / (4 * math.pi)),
    ("SO(2)", "log", 8.0),
]


def test_frequency_that_was_learned_can_be_set_and_start_another_layer() -> None:
    """Learning may make it negative."""
    layer = layer_of(relax={"rotation": -0.2, "translation": (0.1, -0.3)}, learn_relaxation=True)
    expected = {name: value.tolist() for name, value in layer.domain_frequency.items()}
    layer.set_domain_frequency(**layer.domain_frequency)
    other = layer_of(relax=layer.domain_frequency)
    for each in (layer, other):
        assert {name: value.tolist() for name, value in each.domain_frequency.items()} == expected


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize(("space", "form", "limit"), ALIASING)
def test_aliasing_rotation_frequency_is_warned_of_once(space: str, form: str, limit: float) -> None:
    types = battery.types(space, "trivial -> irreps")

    def build(frequency: float) -> None:
        RelaxedR2Conv(*types, 1, relax={"rotation": frequency}, kernel=ContinuousKernel(rotation_coordinates=form))

    build(0.99 * limit)  # warnings are errors
    with pytest.warns(UserWarning, match="relax.*aliases") as caught:
        build(1.01 * limit)
    assert f"{1.01 * limit:g}"[:4] in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(1.01 * limit)


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize("regions", [1, 2, 4, 6])
def test_frequency_of_translation_that_regions_do_not_resolve_is_warned_of_once(regions: int) -> None:
    limit = regions / 4
    layer_of(relax={"translation": (limit, -limit)}, regions=regions)  # warnings are errors
    for value in (1.01 * limit, (0.0, -1.01 * limit)):
        with pytest.warns(UserWarning, match=f"relax: .* of translation .*regions = {regions}: it aliases") as caught:
            layer = layer_of(relax={"translation": value}, regions=regions)
        assert f"{1.01 * limit:g}"[:4] in str(caught[0].message)
        assert f"above {limit:g} " in str(caught[0].message)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layer_of(relax={"translation": value}, regions=regions)
    with pytest.warns(UserWarning, match=r"set_domain_frequency: .* of translation .* it aliases"):
        layer.set_domain_frequency(translation=2 * limit)


def test_kernel_for_every_pixel_resolves_every_frequency_of_translation() -> None:
    layer = layer_of(relax={"translation": 20.0}, regions=None)  # warnings are errors
    layer.set_domain_frequency(translation=(30.0, -30.0))
    assert layer.domain_frequency["translation"].tolist() == [30.0, -30.0]


IGNORED = {
    "sigma": 0.5,
    "frequencies_cutoff": 2.0,
    "rings": [0.0, 1.0],
    "maximum_offset": 1,
    "recompute": True,
    "basis_filter": lambda attributes: True,
}


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize("name", IGNORED)
def test_argument_without_meaning_for_a_continuous_kernel_is_warned_of_once(name: str) -> None:
    arguments = {name: IGNORED[name], "strict_kernel": "continuous"}
    with pytest.warns(UserWarning, match=f"{name}.*ignored") as caught:
        layer_of(**arguments)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer_of(**arguments)


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_arguments_left_at_their_defaults_give_no_warning() -> None:
    """Every default of R2Conv's, spelled out; warnings are errors."""
    layer_of(sigma=None, frequencies_cutoff=None, rings=None, maximum_offset=None, recompute=False, basis_filter=None)


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_random_offset_of_a_finite_group_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=f"random_offset: ignored.*finite group {re.escape(C4.name)}"):
        assert not layer_of(random_offset=True).random_offset


def test_numbers_of_numpy_are_numbers() -> None:
    softness, frequency = np.float32(0.125), np.float64(0.25)
    layer = layer_of(
        initial_softness=softness, filter_frequency=frequency, relax={"translation": np.array([0.5, 0.25])}
    )
    assert layer.domain_frequency["translation"].tolist() == [0.5, 0.25]
    assert layer.bank.options.filter_frequency["position"] == 0.25
    assert layer.softness().item() == pytest.approx(0.125, rel=0.2)


def test_numpy_integers_are_integers() -> None:
    layer = RelaxedR2Conv(REGULAR, REGULAR, np.int64(3), padding=np.int64(1))
    assert layer(REGULAR(torch.randn(1, 8, 4, 4))).tensor.shape == (1, 8, 4, 4)


def test_good_input_passes() -> None:
    """The table above can pass: the same layer takes what it should."""
    output = layer_of()(REGULAR(torch.randn(1, 8, 3, 3)))
    assert isinstance(output, GeometricTensor)
