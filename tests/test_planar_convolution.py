"""Input of a layer: the right error, which names the value and what would be right."""

from __future__ import annotations

import battery
import pytest
import torch
from escnn.nn import FieldType, GeometricTensor

from escnn_relaxed import RelaxedR2Conv

C4, D4 = battery.gspace("C4"), battery.gspace("D4")
REGULAR = FieldType(C4, [C4.regular_repr] * 2)
DIHEDRAL = FieldType(D4, [D4.regular_repr])


def layer_of(**arguments: object) -> RelaxedR2Conv:
    return RelaxedR2Conv(REGULAR, REGULAR, 3, **arguments)


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


def test_good_input_passes() -> None:
    """The table above can pass: the same layer takes what it should."""
    output = layer_of()(REGULAR(torch.randn(1, 8, 3, 3)))
    assert isinstance(output, GeometricTensor)
