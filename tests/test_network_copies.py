"""Copies of a network keep what users set on layers, and a warning says what they share with the original."""

import weakref
from collections.abc import Callable

import pytest
import torch
from errors import SINGLE, relative_error
from escnn import nn as enn
from escnn.nn import GeometricTensor
from small_networks import C4, EVERY_MODE, answer
from test_expansion import KINDS
from torch import nn

from escnn_relaxed import checks, harden_network, relax_network
from escnn_relaxed.network import to_escnn
from escnn_relaxed.network.conversion import own_attributes


def there_and_back(network: nn.Module) -> nn.Module:
    return to_escnn(harden_network(relax_network(network)))


class Scaled(enn.EquivariantModule):
    """A network that reads what it has set on its layer: a number, a list, another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.in_type = self.out_type = C4
        self.first, self.second = (enn.R2Conv(C4, C4, 3, padding=1) for _ in range(2))
        self.first._gain, self.first.names, self.first.others = 3.0, ["a"], [self.second]

    def forward(self, features: GeometricTensor) -> GeometricTensor:
        return self.first.others[0](self.first(features) * getattr(self.first, "_gain", 1.0))

    def evaluate_output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape


@pytest.mark.parametrize("convert", [relax_network, there_and_back])
def test_attributes_of_a_layer_are_kept_as_copies(convert: Callable[[nn.Module], nn.Module]) -> None:
    network = Scaled()
    converted = convert(network)
    assert relative_error(answer(converted), answer(network)) <= SINGLE
    assert converted.first.names == ["a"]
    assert converted.first.names is not network.first.names
    assert converted.first.others[0] is converted.second


@EVERY_MODE
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", KINDS)
def test_layer_as_it_is_built_has_no_attribute_of_a_user(kind: str, bias: bool, mode: str) -> None:
    theirs, ours, place = KINDS[kind]
    for layer in (theirs(**place, bias=bias), ours(**place, bias=bias)):
        assert own_attributes(layer.train(mode == "train")) == {}


class Closing(Scaled):
    """A network that calls a layer through a function or a weak reference."""

    def __init__(self, holds: str) -> None:
        super().__init__()
        layer = self.first
        held = {"closure": lambda features: layer(features), "closure over self": self.closure(), "weak": None}
        self.call = held[holds]
        if holds == "weak":
            self.calls = [weakref.ref(layer)]

    def closure(self) -> Callable[[GeometricTensor], GeometricTensor]:
        return lambda features: self.first(features)

    def forward(self, features: GeometricTensor) -> GeometricTensor:
        return self.call(features) if self.call is not None else self.calls[0]()(features)


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize("holds", ["closure", "closure over self", "weak"])
def test_functions_that_hold_modules_are_warned_of(holds: str) -> None:
    network = Closing(holds)
    checks._warned.clear()
    with pytest.warns(UserWarning, match=r"^calls? holds modules of the network as a closure or a weak") as caught:
        relaxed = relax_network(network)
    assert [each.filename for each in caught if each.category is UserWarning] == [__file__]
    with torch.no_grad():
        relaxed.first.weights.zero_()
    assert relative_error(answer(relaxed), answer(network)) == 0  # as the warning says


@pytest.mark.parametrize("attribute", ["softness", "domain", "expands_itself"])
def test_attribute_with_the_name_of_a_method_or_property_is_refused_by_name(attribute: str) -> None:
    network = enn.SequentialModule(enn.R2Conv(C4, C4, 3))
    setattr(network[0], attribute, 0.3)
    with pytest.raises(ValueError, match=f"^0 has attributes that were set on it, {attribute}, and a RelaxedR2Conv"):
        relax_network(network)
