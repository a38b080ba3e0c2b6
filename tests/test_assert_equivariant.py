"""``assert_equivariant``: errors within a tolerance pass, others are listed beside it with the layers that are soft."""

import re
from typing import Any

import pytest
import small
import torch
from errors import ROUNDING
from escnn import nn as enn
from small import soft_layer, soft_regular_layer
from small_networks import left_alone, network_of
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, assert_equivariant, equivariance_error

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
EVERY_DTYPE = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
IMAGE = small.field_type("C4", "trivial")


class PlusRolled(nn.Module):
    """x + δ x shifted on the torus: under turns of white noise its error is √2 δ, of a half turn too."""

    def __init__(self, factor: float, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor, dtype=dtype))

    def forward(self, images: Tensor) -> Tensor:
        return images + self.factor * images.roll((1, 2), (2, 3))


@EVERY_DTYPE
def test_tolerance_is_that_of_rounding_by_the_dtype(dtype: torch.dtype) -> None:
    images = torch.randn(64, 1, 16, 16).to(dtype)
    place = {"data": images, "in_type": IMAGE, "out_type": IMAGE}
    most = TOLERANCES[dtype] / 2**0.5
    assert_equivariant(PlusRolled(0.7 * most, dtype), **place)
    with pytest.raises(AssertionError, match=f"3 of 3 .*\n.*\nrotation 90° .* {TOLERANCES[dtype]:.2g}\n"):
        assert_equivariant(PlusRolled(1.4 * most, dtype), **place)
    assert_equivariant(PlusRolled(1.4 * most, dtype), **place, atol=2.1 * most)


@EVERY_DTYPE
def test_strict_networks_pass_in_every_dtype(dtype: torch.dtype) -> None:
    fields = small.field_type("D4", "regular")
    layers = [RelaxedR2Conv(fields, fields, 3, padding=1, relax=None) for _ in range(4)]
    network = network_of(*layers).to(dtype)
    report = assert_equivariant(network, 9)
    assert report == equivariance_error(network, 9)
    assert max(row.error for row in report.rows) < TOLERANCES[dtype] / 10


def test_maps_of_escnn_count_as_single_precision() -> None:
    """Their bases are sampled so."""
    layer = enn.R2Conv(*small.types("C4", "regular -> irreps"), 3, padding=1).double()
    (row, *_) = assert_equivariant(layer, 9).rows
    assert 1e-9 < row.error < 1e-5


def test_message_lists_the_element_its_error_and_tolerance_and_what_is_soft() -> None:
    kept = soft_regular_layer(relax={"rotation": 0.2}, keep="C2", initial_softness=0.1)
    network = network_of(soft_regular_layer(relax={"rotation": 0.0}), kept)
    with left_alone(network), pytest.raises(AssertionError) as caught:
        assert_equivariant(network, 7, shifts=[(1, 2)])
    first, header, *rows, soft = str(caught.value).splitlines()
    assert first == "SequentialModule is not equivariant: 2 of 4 transformations are above their tolerance"
    assert header.split() == ["transformation", "kind", "error", "tolerance"]
    measured = {row.name: row.error for row in equivariance_error(network, 7).rows}
    for row, name in zip(rows, ("rotation 90°", "rotation 270°"), strict=True):
        assert row.split("  ")[0] == name
        assert row.split()[2:] == ["exact", f"{measured[name]:.2g}", "1e-09"]
    assert soft == f"soft: 2 in rotation (s = {kept.softness().item():.2g})"
    half = kept.in_type.fibergroup.element(2)
    assert_equivariant(network, 7, elements=[half], shifts=[(1, 2)])
    with pytest.raises(AssertionError, match="SequentialModule up to '2' is not equivariant"):
        assert_equivariant(network, 7, layer="2")
    assert_equivariant(network, 7, layer="1")


def test_each_soft_subgroup_is_named_and_where_nothing_is_soft_too() -> None:
    layer = soft_layer("D4", "regular -> regular", relax={"rotation": 0.2, "reflection": 0.2})
    s = {name: f"{layer.softness(name).item():.2g}" for name in ("rotation", "reflection")}
    message = f"soft: the layer itself in rotation (s = {s['rotation']}), reflection (s = {s['reflection']})"
    with pytest.raises(AssertionError, match=f"{re.escape(message)}$"):
        assert_equivariant(layer, 7)
    with pytest.raises(AssertionError, match=r"soft: no layer; measure modules inside by layer="):
        assert_equivariant(PlusRolled(0.1), 7, in_type=IMAGE, out_type=IMAGE)


class Corners(nn.Module):
    """The sum of the four neighbours along diagonals: exact at quarter turns, and far from it at 45°."""

    def forward(self, images: Tensor) -> Tensor:
        kernel = torch.zeros(1, 1, 9, 9, dtype=images.dtype)
        kernel[..., ::8, ::8] = 1
        return nn.functional.conv2d(images, kernel, padding=4)


def test_interpolated_transformations_have_a_tolerance_of_their_own_above_resampling() -> None:
    place: dict[str, Any] = {"input_size": 33, "in_type": IMAGE, "out_type": IMAGE}
    assert_equivariant(Corners(), **place)
    assert_equivariant(Corners(), **place, angles=[90, -180.0])
    with pytest.raises(AssertionError, match=r"1 of 4 .*\n.*\nrotation 45° +interpolated") as caught:
        assert_equivariant(Corners(), **place, angles=[45])
    row = assert_equivariant(Corners(), **place, angles=[45], interpolated_atol=2).rows[-1]
    assert f"{row.error:.2g}" in str(caught.value)
    assert f"{0.2 + row.resampling:.2g}\n" in str(caught.value)
    assert_equivariant(Corners(), **place, angles=[45], interpolated_atol=row.error - row.resampling + 1e-6)
    with pytest.raises(AssertionError, match="interpolated"):
        assert_equivariant(Corners(), **place, angles=[45], interpolated_atol=row.error - row.resampling - 1e-3)


def test_strict_layers_pass_between_pixels_and_soft_ones_do_not() -> None:
    image = small.field_type("C8", "trivial")
    fields = small.field_type("C8", "regular")
    assert_equivariant(RelaxedR2Conv(image, fields, 5, padding=2, relax=None), 29)
    soft = RelaxedR2Conv(image, fields, 5, padding=2, initial_softness=0.1)
    with pytest.raises(AssertionError, match=r"rotation 45° +interpolated(.*\n)+.*in rotation \(s = 0.1\)$"):
        assert_equivariant(soft, 29)


def test_a_stride_that_does_not_fit_is_named() -> None:
    fields = small.field_type("C4", "regular")
    layer = RelaxedR2Conv(fields, fields, 3, padding=1, stride=2, relax=None).double()
    assert_equivariant(layer, 9, atol=ROUNDING)
    with pytest.raises(AssertionError, match=r"rotation 90° +strided .*1e-09\n(.*\n)+strided: a stride does not fit"):
        assert_equivariant(layer, 8)


def test_values_that_are_no_numbers_fail() -> None:
    layer = soft_regular_layer(relax={"rotation": 0.0})
    layer.weights.data.fill_(float("nan"))
    with pytest.raises(AssertionError, match="3 of 3"):
        assert_equivariant(layer, 7, atol=10, interpolated_atol=10)

    class Infinite(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images + torch.inf

    with pytest.raises(AssertionError, match=r"rotation 90° +exact +nan"):
        assert_equivariant(Infinite(), 7, in_type=IMAGE, out_type=IMAGE, atol=10)


def test_an_output_that_is_zero_wherever_it_is_compared_is_not_tested() -> None:
    # A map of 5 pixels that is shifted by 5 has no pixel in common with itself.
    layer = soft_layer("C4", "regular -> regular", relax=None)
    assert equivariance_error(layer, 7, shifts=[(0, 1), (0, 5)]).rows[-1].is_empty
    message = r"RelaxedR2Conv was not tested under shift 0, 5: its output is 0"
    with pytest.raises(ValueError, match=message):
        assert_equivariant(layer, 7, shifts=[(0, 1), (0, 5)])
    network = network_of(layer, soft_layer("C4", "regular -> regular", relax=None))
    for parameter in network[2].parameters():
        parameter.data.zero_()
    assert_equivariant(network, 7, layer="0")
    with pytest.raises(ValueError, match=r"up to '2' was not tested under rotation 90°, rotation 180°, rotation 270°"):
        assert_equivariant(network, 7, layer="2", atol=10)
    assert "nothing compared" in str(equivariance_error(network, 7))


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"atol": -1e-3}, ValueError, "atol must be finite and >= 0, got -0.001"),
    ({"atol": float("nan")}, ValueError, "atol must be finite"),
    ({"interpolated_atol": "much"}, TypeError, "interpolated_atol must be a number, got 'much'"),
    ({"angles": [float("inf")]}, ValueError, "angles must be finite numbers in degrees, got inf"),
    ({"angles": 45}, TypeError, "angles must be a sequence of numbers in degrees, got 45"),
    ({"angles": [45]}, ValueError, "which holds no rotation 45°"),
    ({"data": torch.zeros(1, 4, 5, 5)}, ValueError, "give input_size or data, one of them"),
    ({"elements": ()}, ValueError, "nothing to measure"),
    ({"layer": "body"}, ValueError, "layer must be the name of a module inside, got 'body'"),
    ({"module": None}, TypeError, "module must be a torch.nn.Module"),
]


@pytest.mark.parametrize(("given", "error", "message"), BAD)
def test_bad_arguments_are_no_failures_of_the_property(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        assert_equivariant(**{"module": soft_regular_layer(relax={"rotation": 0.0}), "input_size": 5, **given})
