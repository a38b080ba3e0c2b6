"""The relaxed layers of a network, by name and in order, and the size of their ω′."""

from __future__ import annotations

import battery
import pytest
import torch
from layers import build
from torch import nn

from escnn_relaxed.network.relaxed_layers import frequency_energy, named_relaxed_layers, relaxed_layers


def layer_of(**relax: float) -> nn.Module:
    return build(*battery.types("D4", "regular -> regular"), relax=relax or None)


def test_relaxed_layers_are_found_by_name_and_in_order() -> None:
    first, second, third = (layer_of(rotation=0.2) for _ in range(3))
    network = nn.ModuleDict({"body": nn.Sequential(first, nn.ReLU(), second), "head": third, "plain": nn.Linear(2, 2)})
    assert list(named_relaxed_layers(network)) == [("body.0", first), ("body.2", second), ("head", third)]
    assert relaxed_layers(network) == {"body.0": first, "body.2": second, "head": third}


def test_network_without_a_relaxed_layer_is_refused() -> None:
    assert list(named_relaxed_layers(nn.Linear(2, 2))) == []
    with pytest.raises(ValueError, match="no relaxed layer"):
        relaxed_layers(nn.Linear(2, 2))


def test_frequency_energy_is_the_sum_of_squares() -> None:
    layers = [layer_of(rotation=0.2, reflection=0.5), layer_of(translation=0.3), layer_of()]
    assert frequency_energy(layers).item() == pytest.approx(0.2**2 + 0.5**2 + 2 * 0.3**2)
    assert torch.equal(frequency_energy(layers[2:]), torch.zeros(()))
