"""``RelaxedR3ConvTransposed`` beside escnn's layer, beside its own filter banks at each voxel, and in networks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from errors import BROKEN, ROUNDING, SINGLE, SINGLE_REORDERED, answer_to, largest_error, relative_error
from escnn import nn as enn
from escnn.nn import FieldType
from group_average import energy, mean_over
from small import shake, voxel_symmetries
from small import volume_space as gspace
from small import volume_type as fields
from torch import Tensor, nn
from torch.nn import functional

from escnn_relaxed import (
    ContinuousKernel,
    RelaxedR3Conv,
    RelaxedR3ConvTransposed,
    export_network,
    harden_network,
)
from escnn_relaxed.measure import softness_by_axis
from escnn_relaxed.network import to_escnn

# Arguments of the geometry.
PLACES: dict[str, dict[str, object]] = {
    "plain": {},
    "up": {"padding": 1, "stride": 2, "output_padding": 1},
    "uneven": {"padding": (1, 0, 2), "stride": 2, "output_padding": (0, 1, 1)},
    "dilated": {"dilation": 2, "padding": 1},
    "groups": {"groups": 2, "stride": 2},
}
EVERY_PLACE = pytest.mark.parametrize("place", PLACES)
SOFT = {"rotation": 0.25, "translation": 0.5}


def types(name: str = "octahedral", groups: int = 1) -> tuple[FieldType, FieldType]:
    """Fields of the input and of the output."""
    of = gspace(name)
    return FieldType(of, groups * [of.trivial_repr, of.irrep(1)]), FieldType(
        of, groups * [of.irrep(1), of.trivial_repr]
    )


def arguments(place: str) -> tuple[tuple[FieldType, FieldType, int], dict[str, object]]:
    return (*types(groups=int(PLACES[place].get("groups", 1))), 3), PLACES[place]


def build(place: str = "up", **options: object) -> RelaxedR3ConvTransposed:
    """A layer in float64, far from strict."""
    given, geometry = arguments(place)
    layer = RelaxedR3ConvTransposed(*given, **geometry, **{"initial_softness": 0.2, **options}).double()
    shake(layer)
    return layer


def trained(place: str = "up") -> enn.R3ConvTransposed:
    given, geometry = arguments(place)
    layer = enn.R3ConvTransposed(*given, **geometry)
    shake(layer)
    return layer


def volumes(layer: enn.EquivariantModule, *size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, layer.in_type.size, *(size or (4, 3, 2)), dtype=dtype)


@EVERY_PLACE
def test_strict_layer_is_that_of_escnn_in_values_and_gradients(place: str) -> None:
    theirs = trained(place)
    own = RelaxedR3ConvTransposed(*arguments(place)[0], **PLACES[place], relax=None)
    assert isinstance(own, enn.R3ConvTransposed)
    own.load_state_dict(theirs.state_dict())
    inputs = volumes(own, dtype=torch.float32)
    outputs = [layer(layer.in_type(inputs)).tensor for layer in (own, theirs)]
    assert relative_error(*(of.detach() for of in outputs)) <= SINGLE
    for output in outputs:
        output.square().sum().backward()
    assert relative_error(own.weights.grad, theirs.weights.grad) <= SINGLE_REORDERED
    assert relative_error(own.bias.grad, theirs.bias.grad) <= SINGLE_REORDERED
    assert own.evaluate_output_shape(tuple(inputs.shape)) == tuple(outputs[0].shape)
    assert own.output_padding == theirs.output_padding


@pytest.mark.parametrize("in_eval", [False, True])
def test_states_load_both_ways(in_eval: bool) -> None:
    theirs = trained().train(not in_eval)
    soft = RelaxedR3ConvTransposed(*arguments("up")[0], **PLACES["up"], relax=SOFT, initial_softness=0.2)
    soft.load_state_dict(theirs.state_dict())
    assert soft.softness().item() == 0.0
    inputs = volumes(soft, dtype=torch.float32)
    expected = answer_to(theirs.eval(), inputs)
    assert relative_error(answer_to(soft, inputs), expected) <= SINGLE
    back = to_escnn(harden_network(soft))
    assert type(back) is enn.R3ConvTransposed
    fresh = trained()
    fresh.load_state_dict(back.state_dict())
    assert relative_error(answer_to(fresh.eval(), inputs), expected) <= SINGLE
    with pytest.raises(RuntimeError, match="operator is transposed convolution, here convolution"):
        RelaxedR3Conv(*types(), 3).load_state_dict(soft.state_dict())


@EVERY_PLACE
def test_layer_adds_its_filter_bank_around_each_voxel(place: str) -> None:
    """``filter_banks`` says K at each voxel of the output: each output is that of one transposed convolution."""
    layer = build(place, relax=SOFT)
    inputs = volumes(layer)
    geometry = layer.geometry
    size = geometry.output_size(*inputs.shape[2:])
    banks = layer.filter_banks(size).detach()
    found = answer_to(layer, inputs)
    expected = torch.empty_like(found)
    for place_of in torch.cartesian_prod(*map(torch.arange, size)).tolist():
        at = tuple(place_of)
        output = functional.conv_transpose3d(
            inputs,
            banks[at].transpose(0, 1),
            layer.expanded_bias.detach(),
            geometry.stride,
            geometry.padding,
            geometry.output_padding,
            geometry.groups,
            geometry.dilation,
        )
        expected[(..., *at)] = output[(..., *at)]
    assert relative_error(found, expected) <= ROUNDING
    assert (banks - banks[0, 0, 0]).abs().max() > BROKEN


@torch.no_grad()
def test_hardened_layer_is_the_mean_over_the_group() -> None:
    layer = build("plain")
    bank = layer.filter_bank().transpose(0, 1)
    mean = mean_over(layer, bank)
    hardened = harden_network(layer)
    assert relative_error(hardened.filter_bank().transpose(0, 1), mean) <= ROUNDING
    share = float(energy(layer, bank - mean) / energy(layer, bank))
    assert share > BROKEN
    assert layer.softness().item() == pytest.approx(share, abs=ROUNDING)
    assert layer.softness_in((False, 4)).item() > 0
    assert {row.name for row in softness_by_axis(layer)} > {"x", "y", "z"}


@pytest.mark.parametrize("name", ["octahedral", "SO(3)"])
@pytest.mark.parametrize("place", ["plain", "up"])
def test_hardened_layer_is_equivariant(name: str, place: str) -> None:
    geometry = {**PLACES[place], "output_padding": 0}
    soft = RelaxedR3ConvTransposed(*types(name), 3, **geometry, relax=SOFT, initial_softness=0.2).double()
    shake(soft)
    layer = harden_network(soft)
    inputs = volumes(layer, 3, 3, 3)
    elements = voxel_symmetries(gspace(name))
    assert largest_error(layer, inputs, lambda space: elements) <= (ROUNDING if name == "octahedral" else SINGLE)
    assert largest_error(soft, inputs, lambda space: elements) > BROKEN


@EVERY_PLACE
@pytest.mark.parametrize("relax", [{"rotation": 0.25}, SOFT], ids=["rotation", "both"])
def test_exported_layer_computes_the_same(place: str, relax: dict[str, float]) -> None:
    layer = build(place, relax=relax).eval()
    plain = layer.export()
    assert (type(plain) is nn.ConvTranspose3d) == layer.is_stationary
    for size in ((4, 3, 2), (3, 3, 3)):
        inputs = volumes(layer, *size)
        with torch.no_grad():
            assert relative_error(plain(inputs), answer_to(layer, inputs)) <= ROUNDING


@EVERY_PLACE
def test_exported_layer_of_escnn_keeps_the_output_padding(place: str) -> None:
    """escnn's own export() drops it."""
    layer = trained(place).eval()
    inputs = volumes(layer, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(export_network(layer)(inputs), answer_to(layer, inputs))


INTO, OUT = fields("octahedral"), fields("C4")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: RelaxedR3ConvTransposed(INTO, OUT, 3), ValueError, "must share a gspace"),
        (
            lambda: RelaxedR3ConvTransposed(*types(), 3, padding=(1, 1)),
            ValueError,
            r"a triple \(planes, rows, columns\)",
        ),
        (
            lambda: RelaxedR3ConvTransposed(*types(), 3, output_padding=(1, 1)),
            ValueError,
            "output_padding must be an int",
        ),
        (lambda: RelaxedR3ConvTransposed(*types(), 3, stride=(1, 2, 1)), ValueError, "a triple of equal ones"),
        (lambda: RelaxedR3ConvTransposed(*types(), 3, output_padding=1), ValueError, "at most 0"),
        (
            lambda: RelaxedR3ConvTransposed(*types(), 3, kernel=ContinuousKernel(rotation_coordinates="log")),
            ValueError,
            "rotation_coordinates must be 'circle'",
        ),
        (lambda: build()(build().in_type(torch.zeros(1, 4, 0, 1, 1))), ValueError, "leaves a pixel of the output"),
    ],
)
def test_bad_calls_say_what_is_right(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
