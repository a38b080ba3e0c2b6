"""``RelaxedR3ConvTransposed`` beside escnn's layer, beside its own filter banks at each voxel, and in networks."""

from __future__ import annotations

import pytest
import torch
from errors import SINGLE, SINGLE_REORDERED, relative_error
from escnn import nn as enn
from escnn.nn import FieldType
from small import shake
from small import volume_space as gspace
from torch import Tensor

from escnn_relaxed import (
    RelaxedR3ConvTransposed,
    export_network,
)

# Arguments of the geometry.
PLACES: dict[str, dict[str, object]] = {
    "plain": {},
    "up": {"padding": 1, "stride": 2, "output_padding": 1},
    "uneven": {"padding": (1, 0, 2), "stride": 2, "output_padding": (0, 1, 1)},
    "dilated": {"dilation": 2, "padding": 1},
    "groups": {"groups": 2, "stride": 2},
}
EVERY_PLACE = pytest.mark.parametrize("place", PLACES)


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
    # escnn's own export() drops the output padding.
    assert relative_error(export_network(theirs.eval())(inputs).detach(), outputs[1].detach()) <= SINGLE
