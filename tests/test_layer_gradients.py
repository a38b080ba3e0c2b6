"""Gradients of a layer's soft weights input by input: as a map over inputs gives them, without banks of all inputs."""

from __future__ import annotations

from functools import partial
from typing import Any

import baseline_layers
import battery
import pytest
import torch
import volumes
from escnn import gspaces
from escnn.nn import FieldType, GeometricTensor
from layers import shake, soft_layer, soft_transposed_layer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from escnn_relaxed import ContinuousKernel, RelaxedLinear, RelaxedR2Conv, RelaxedR3ConvTransposed
from escnn_relaxed.kernel.tied import TiedKernel
from escnn_relaxed.layer.relaxed_layer import RelaxedLayer
from escnn_relaxed.learning import layer_gradients as module
from escnn_relaxed.learning.layer_gradients import LayerCall, layer_gradients

# Sums of some thousand products in another order, of numbers up to a few hundred.
SAME = 1e-10
INPUTS = 3
EVERYWHERE = {"rotation": 0.25, "translation": (0.3, 0.5)}
IN_D4 = {"rotation": 0.25, "reflection": 0.3}
ALL_DIRECTIONS = {"kernel": partial(TiedKernel, all_directions=True)}


def linear() -> RelaxedLinear:
    space = gspaces.no_base_space(gspaces.flipRot2dOnR2(4).fibergroup)
    fields = FieldType(space, [space.regular_repr, space.trivial_repr, space.regular_repr])
    return RelaxedLinear(fields, FieldType(space, [space.regular_repr] * 2), initial_softness=0.3).double()


def volume(transposed: bool = False, **options: Any) -> RelaxedLayer:
    fields = volumes.fields("cone 4")
    if not transposed:
        return volumes.layer(fields, padding=1, **options)
    return RelaxedR3ConvTransposed(fields, fields, 3, stride=2, initial_softness=0.3, **options).double()


LAYERS = {
    "regular": partial(soft_layer, "C8", "two regular -> two regular"),
    "many fields": partial(soft_layer, "C4", "trivial + regular -> irreps + regular + quotient + mixed"),
    "sheared": partial(soft_layer, "D2", "mixed, sheared -> mixed, sheared"),
    "no element of its own": partial(soft_layer, "C4", "regular -> trivial", kernel_size=5),
    "irreps": partial(soft_layer, "SO(2)", "irreps -> irreps"),
    "two subgroups": partial(soft_layer, "D4", "regular -> two regular", relax=IN_D4),
    "one tap": partial(soft_layer, "D4", "regular -> two regular", kernel_size=1),
    "stride, dilation": partial(soft_layer, "C4", "regular -> regular", stride=2, dilation=2, padding=2),
    "reflected border": partial(soft_layer, "C4", "regular -> regular", padding=1, padding_mode="reflect"),
    "groups": partial(soft_layer, "C4", "two regular -> two regular", groups=2, relax=EVERYWHERE),
    "gains at pixels": partial(soft_layer, "C4", "regular -> two regular", padding=1, relax=EVERYWHERE),
    "pixels alone": partial(soft_layer, "C4", "regular -> mixed", relax={"translation": 0.4}),
    "directions at pixels": partial(soft_layer, "C4", "regular -> irreps + regular", relax=EVERYWHERE),
    "all directions": partial(soft_layer, "C4", "regular -> regular", relax=EVERYWHERE, **ALL_DIRECTIONS),
    "learned ω′": partial(soft_layer, "C4", "regular -> irreps", relax=EVERYWHERE, learn_relaxation=True),
    "transposed": partial(soft_transposed_layer, "C4", "regular -> two regular", stride=2, output_padding=1),
    "transposed, groups": partial(soft_transposed_layer, "C4", "two regular -> two regular", groups=2),
    "transposed, groups, at pixels": partial(
        soft_transposed_layer, "C4", "two regular -> irreps + irreps", groups=2, relax=EVERYWHERE
    ),
    "linear": linear,
    "volumes": volume,
    "volumes, at pixels": partial(volume, relax={"rotation": 0.25, "translation": 0.4}),
    "volumes, transposed": partial(volume, transposed=True),
}


def call_of(layer: RelaxedLayer, images: int = 1, side: int = 6) -> tuple[LayerCall, Tensor]:
    """A call with white noise, of some images for each input, and white noise for the gradient of its output."""
    torch.manual_seed(0)
    shape = INPUTS * images, layer.in_type.size, *layer.in_type.gspace.dimensionality * [side]
    features = torch.randn(shape).to(layer.like)
    output = layer.eval()(layer.in_type(features)).tensor
    return LayerCall(layer, features, output), torch.randn_like(output)


def own(layer: RelaxedLayer) -> dict[str, nn.Parameter]:
    soft = {id(parameter) for parameter in layer.soft_parameters()}
    return {name: parameter for name, parameter in layer.named_parameters() if id(parameter) in soft}


def assert_as_mapped(layer: RelaxedLayer, images: int = 1) -> None:
    call, slope = call_of(layer, images)
    wanted = module._mapped(call, slope, own(layer), INPUTS)
    found = layer_gradients(call, slope, own(layer), INPUTS)
    for name, rows in wanted.items():
        if name in found or rows.abs().max() > 0:
            assert found[name].shape == rows.shape
            assert (found[name] - rows).abs().max() <= SAME * (1 + rows.abs().max())
    assert any(rows.abs().max() > SAME for rows in found.values())


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_a_map_over_inputs(name: str) -> None:
    layer = LAYERS[name]()
    shake(layer)
    assert module._is_modulated(layer, own(layer))
    assert_as_mapped(layer)


@pytest.mark.parametrize("name", ["two subgroups", "directions at pixels"])
def test_what_is_hardened_has_no_gradient(name: str) -> None:
    layer = LAYERS[name]()
    layer.harden("rotation")
    assert_as_mapped(layer)


def test_images_of_an_input_are_added() -> None:
    assert_as_mapped(LAYERS["gains at pixels"](), images=2)


def test_some_parameters_may_be_wanted_alone() -> None:
    layer = LAYERS["directions at pixels"]()
    call, slope = call_of(layer)
    whole = layer_gradients(call, slope, own(layer), INPUTS)
    for name, parameter in own(layer).items():
        (rows,) = layer_gradients(call, slope, {name: parameter}, INPUTS).values()
        assert torch.equal(rows, whole[name])


class Doubled(RelaxedR2Conv):
    """A layer whose output is not that of its kernel alone."""

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        output = super().forward(input)
        return GeometricTensor(2 * output.tensor, output.type)


OTHERS = {
    "pairs of channels": partial(soft_layer, "C4", "regular -> trivial", kernel_size=1),
    "continuous": partial(soft_layer, "C4", "regular -> regular", kernel=ContinuousKernel(hidden_size=4)),
    "residual": partial(baseline_layers.baseline, "residual", "C4", "regular -> regular"),
    "a forward of its own": partial(soft_layer, "C4", "regular -> regular", make=Doubled),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_are_mapped_over_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = OTHERS[name]()
    assert not module._is_modulated(layer, own(layer))
    call, slope = call_of(layer)
    whole = module._one_by_one(call, slope, own(layer), INPUTS)
    for most in (module._MOST_VALUES, 1):
        monkeypatch.setattr(module, "_MOST_VALUES", most)
        found = layer_gradients(call, slope, own(layer), INPUTS)
        assert all((found[key] - rows).abs().max() <= SAME * (1 + rows.abs().max()) for key, rows in whole.items())


def test_strict_weights_are_not_those_of_a_modulation() -> None:
    layer = LAYERS["regular"]()
    assert not module._is_modulated(layer, {"weights": layer.weights})


class Largest(TorchDispatchMode):
    """Notes the number of values of the largest tensor that is made."""

    values = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                self.values = max(self.values, tensor.numel())
        return made


@pytest.mark.parametrize("relax", [{"rotation": 0.25}, EVERYWHERE, {"translation": 0.4}], ids=str)
def test_no_input_has_a_filter_bank_of_its_own(relax: dict[str, object]) -> None:
    fields = battery.field_type("C4", " + ".join(["regular"] * 8))
    layer = RelaxedR2Conv(fields, fields, 5, padding=2, relax=relax)
    call, slope = call_of(layer, side=4)
    with Largest() as largest:
        layer_gradients(call, slope, own(layer), INPUTS)
    assert largest.values <= layer.kernel.values_at_a_pixel() == 32 * 32 * 25
