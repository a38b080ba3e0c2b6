"""With nothing relaxed the layer is R2Conv: the same weights, outputs, gradients, and its state dicts."""

from __future__ import annotations

import battery
import pytest
import torch
from escnn.nn import FieldType, R2Conv, ReLU, SequentialModule
from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.steerable_basis import SteerableBasis

TYPES = [
    ("C8", "two regular -> regular"),
    ("C4", "mixed -> regular"),
    ("D4", "regular -> mixed"),
    ("D6", "regular -> regular"),
    ("SO(2)", "irreps -> irreps"),
    ("O(2)", "irreps -> irreps"),
    ("flip", "regular -> irreps"),
]
# Sums over channels and taps in another order, in float32.
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}


def both(in_type: FieldType, out_type: FieldType, kernel_size: int = 5, **arguments: object) -> tuple:
    """R2Conv and the layer in its place, drawn with the same seed."""
    torch.manual_seed(3)
    original = R2Conv(in_type, out_type, kernel_size, **arguments)
    torch.manual_seed(3)
    return original, RelaxedR2Conv(in_type, out_type, kernel_size, relax=None, **arguments)


@pytest.mark.parametrize(("gspace", "types"), TYPES)
def test_weights_outputs_and_gradients_are_those_of_r2conv(gspace: str, types: str) -> None:
    in_type, out_type = battery.types(gspace, types)
    original, layer = both(in_type, out_type)
    assert torch.equal(original.weights, layer.weights)
    features = torch.randn(2, in_type.size, 9, 9)
    outputs = []
    for module in (original, layer):
        output = module(in_type(features)).tensor
        output.square().sum().backward()
        outputs.append(output)
    torch.testing.assert_close(outputs[1], outputs[0], **ROUNDING)
    torch.testing.assert_close(layer.weights.grad, original.weights.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "arguments",
    [
        {"sigma": 0.45},
        {"rings": [0.0, 1.0]},
        {"frequencies_cutoff": 1.0},
        {"basis_filter": lambda element: element["radius"] > 0},
        {"dilation": 2},
        {"groups": 2},
        {"recompute": True},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_arguments_mean_what_they_mean_in_r2conv(arguments: dict) -> None:
    in_type, out_type = battery.types("C4", "two regular -> two regular")
    original, layer = both(in_type, out_type, **arguments)
    features = in_type(torch.randn(1, in_type.size, 11, 11))
    torch.testing.assert_close(layer(features).tensor, original(features).tensor, **ROUNDING)


def test_the_basis_is_a_copy_of_escnns() -> None:
    in_type, out_type = battery.types("C4", "regular -> regular")
    first = RelaxedR2Conv(in_type, out_type, 3, relax=None)
    second = RelaxedR2Conv(in_type, out_type, 3, relax=None)
    first.double()
    assert second.steerable_basis.basis_0.dtype == torch.float32
    assert first.steerable_basis.basis_0.dtype == torch.float64


def test_a_support_without_steerable_kernels_gives_no_weights() -> None:
    """A 1×1 kernel maps no frequency to another one: R2Conv refuses such a layer."""
    space = battery.gspace("SO(2)")
    in_type, out_type = FieldType(space, [space.irrep(1)]), FieldType(space, [space.irrep(2)])
    basis = SteerableBasis(
        in_type,
        out_type,
        1,
        1,
        1,
        sigma=None,
        frequencies_cutoff=None,
        rings=None,
        maximum_offset=None,
        recompute=False,
        basis_filter=None,
    )
    assert basis.dimension == 0
    assert basis(torch.zeros(0)).shape == (2, 2, 1, 1)


@pytest.mark.parametrize("kernel_size", [3, 4, 5])
def test_centred_weights_answer_constant_images_as_one_of_the_basis_elements_would(kernel_size: int) -> None:
    """R2Conv's own answer is larger, and a matter of chance."""
    fields = FieldType(battery.gspace("D4"), [battery.gspace("D4").regular_repr] * 8)
    layer = RelaxedR2Conv(fields, fields, kernel_size, relax=None)
    basis, weights = layer.steerable_basis, layer.weights.detach()
    constant = torch.ones(1, fields.size, kernel_size, kernel_size)
    answers = [
        float(torch.nn.functional.conv2d(constant, basis(drawn)).square().mean())
        for drawn in (weights, basis.centred(weights))
    ]
    # The mean of 8 squares of variance 1/elements: 3 times that is beyond chance.
    assert answers[1] < 3 / len(basis.basis_0) < answers[0]


@pytest.mark.parametrize("saved_in_training", [True, False])
@pytest.mark.parametrize("relax", [None, {"rotation": 0.25, "translation": 0.3}], ids=["strict", "soft"])
def test_a_state_dict_of_r2conv_gives_its_function(saved_in_training: bool, relax: dict | None) -> None:
    in_type, out_type = battery.types("C8", "two regular -> regular")
    original = SequentialModule(R2Conv(in_type, out_type, 5, padding=2), ReLU(out_type))
    torch.nn.init.normal_(original[0].bias)
    layer = SequentialModule(RelaxedR2Conv(in_type, out_type, 5, padding=2, relax=relax), ReLU(out_type))
    features = in_type(torch.randn(2, in_type.size, 9, 9))
    original.train(saved_in_training)
    layer.load_state_dict(original.state_dict())
    torch.testing.assert_close(layer(features).tensor, original(features).tensor, **ROUNDING)


def test_loading_another_layers_state_still_names_what_is_missing() -> None:
    in_type, out_type = battery.types("C4", "regular -> regular")
    layer = RelaxedR2Conv(in_type, out_type, 3)
    state = layer.state_dict()
    del state["weights"]
    with pytest.raises(RuntimeError, match="weights"):
        layer.load_state_dict(state)
