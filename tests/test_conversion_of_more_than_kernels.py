"""Layers that do more than their kernel and bias say: refused by name where they would be relaxed, else left alone."""

from __future__ import annotations

import battery
import pytest
import torch
from escnn import nn
from escnn.nn import R2Conv
from tolerances import SINGLE
from torch.nn.utils import parametrize
from trained_networks import answer
from transformations import relative_error

from escnn_relaxed import relax_network
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

SOFT = {"rotation": 0.2}


class Doubled(R2Conv):
    def forward(self, input: nn.GeometricTensor) -> nn.GeometricTensor:
        return super().forward(input) * 2.0


def with_hook(layer: R2Conv, register: str, hook) -> R2Conv:
    getattr(layer, register)(hook)
    return layer


def with_own_forward(layer: R2Conv) -> R2Conv:
    layer.forward = lambda input: R2Conv.forward(layer, input) * 2.0
    return layer


def parametrized(layer: R2Conv) -> R2Conv:
    parametrize.register_parametrization(layer, "weights", torch.nn.Tanh())
    return layer


TYPES_OF_C4 = battery.types("C4", "two regular -> two regular")
MORE_THAN_A_KERNEL = {
    "subclass": (lambda: Doubled(*TYPES_OF_C4, 3), "1, a Doubled, has methods of its own.*type.layer. is R2Conv"),
    "forward": (lambda: with_own_forward(R2Conv(*TYPES_OF_C4, 3)), "1, a R2Conv, has methods of its own"),
    "hook": (
        lambda: with_hook(
            R2Conv(*TYPES_OF_C4, 3), "register_forward_hook", lambda module, inputs, output: output * 2.0
        ),
        "1 has forward_hooks, which would be lost",
    ),
    "hook before": (
        lambda: with_hook(R2Conv(*TYPES_OF_C4, 3), "register_forward_pre_hook", lambda module, inputs: None),
        "1 has forward_pre_hooks, which would be lost",
    ),
    "parametrization": (lambda: parametrized(R2Conv(*TYPES_OF_C4, 3)), r"1 has parametrized \['weights'\]"),
}


@pytest.mark.parametrize("case", MORE_THAN_A_KERNEL)
def test_layer_that_does_more_than_its_kernel_is_refused_or_left_as_it_is(case: str) -> None:
    build, message = MORE_THAN_A_KERNEL[case]
    trained = nn.SequentialModule(R2Conv(*TYPES_OF_C4, 3), build())
    with pytest.raises(ValueError, match=message):
        relax_network(trained, relax=SOFT)
    relaxed = relax_network(trained, lambda name, layer: name == "0", relax=SOFT)
    assert [name for name, _ in named_relaxed_layers(relaxed)] == ["0"]
    if case != "forward":  # bound to the layer that it was made for
        assert relative_error(answer(relaxed), answer(trained)) <= SINGLE
