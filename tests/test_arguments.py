"""Bad arguments and inputs: the right error, which names the argument, the value and what would be right."""

from __future__ import annotations

import re

import battery
import numpy as np
import pytest
import torch
from escnn import gspaces
from escnn.nn import FieldType
from layers import with_kernel

from escnn_relaxed import RelaxedR2Conv

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
    "padding the same": ({"padding": "same"}, TypeError, ["got 'same': ", "stride=1 padding=1 keeps the size"]),
    "padding the same, dilated": (
        {"padding": "same", "kernel_size": 5, "dilation": 3},
        TypeError,
        ["kernel_size=5, dilation=3 and stride=1 padding=6 keeps the size"],
    ),
    "padding the same, even": (
        {"padding": "same", "kernel_size": 4},
        TypeError,
        ["got 'same'", "no padding, which is alike on both sides, keeps the size"],
    ),
    "padding of valid pixels": ({"padding": "valid"}, TypeError, ["a pair (rows, columns), got 'valid': padding=0"]),
    "padding a pair of words": ({"padding": ("same", "same")}, TypeError, ["padding", "'same'", "integer"]),
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
    "regions 0": ({"regions": 0}, ValueError, ["regions", "0", ">= 1"]),
    "regions negative": ({"regions": -4}, ValueError, ["regions", "-4", ">= 1"]),
    "regions a float": ({"regions": 4.0}, TypeError, ["regions", "4.0", "integer"]),
    "regions True": ({"regions": True}, TypeError, ["regions", "True", "integer"]),
    "regions in words": ({"regions": "pixels"}, TypeError, ["regions", "'pixels'", "integer"]),
    "a pair of regions": ({"regions": (4, 4)}, TypeError, ["regions", "(4, 4)", "integer"]),
    "unknown strict kernel": ({"strict_kernel": "free"}, ValueError, ["strict_kernel", "'free'", "steerable"]),
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


@pytest.mark.parametrize(("kernel_size", "dilation"), [(1, 1), (3, 1), (5, 3), (4, 2)])
def test_padding_that_the_error_names_keeps_the_size(kernel_size: int, dilation: int) -> None:
    with pytest.raises(TypeError) as raised:
        RelaxedR2Conv(REGULAR, REGULAR, kernel_size, padding="same", dilation=dilation)
    (named,) = re.findall(r"padding=(\d+) keeps", str(raised.value))
    layer = RelaxedR2Conv(REGULAR, REGULAR, kernel_size, padding=int(named), dilation=dilation, relax=None)
    assert layer.evaluate_output_shape((1, 8, 20, 21)) == (1, 8, 20, 21)


def layer_of(**arguments: object) -> RelaxedR2Conv:
    return RelaxedR2Conv(REGULAR, REGULAR, 3, **with_kernel(arguments))


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
    assert [each.category for each in caught].count(UserWarning) == 1
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


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize(
    "arguments", [{}, {"relax": {"translation": 0.5}}, {"relax": {"translation": 0.5}, "regions": None}]
)
def test_image_without_a_pixel_is_refused_whatever_the_padding(
    arguments: dict[str, object], size: tuple[int, int]
) -> None:
    layer = RelaxedR2Conv(REGULAR, REGULAR, 3, padding=2, **arguments)
    message = re.escape(f"input must have a pixel along each axis, got an image of {size[0]}x{size[1]}")
    with pytest.raises(ValueError, match=message):
        layer(REGULAR(torch.zeros(2, 8, *size)))
    with pytest.raises(ValueError, match="pixel along each axis"):
        layer.evaluate_output_shape((2, 8, *size))


def test_batch_without_an_image_has_an_output_and_gradients_of_zero() -> None:
    for relax in ({"rotation": 0.25}, {"translation": 0.5}):
        layer = RelaxedR2Conv(REGULAR, REGULAR, 3, relax=relax)
        found = layer(REGULAR(torch.zeros(0, 8, 9, 9))).tensor
        assert found.shape == (0, 8, 7, 7)
        found.sum().backward()
        assert all(not parameter.grad.any() for parameter in layer.parameters())
