"""Layers whose soft part starts at nothing: they are strict, and learn to be soft as fast as by default."""

from __future__ import annotations

import battery
import pytest
import torch
from escnn.nn import R2Conv
from layers import options_of

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, relax_network


def test_layer_without_softness_at_the_start_learns_it() -> None:
    layer = RelaxedR2Conv(*battery.types("C4", "regular -> regular"), 3, padding=1, initial_softness=0.0)
    assert layer.softness().item() == 0
    features = layer.in_type(torch.randn(4, layer.in_type.size, 6, 6))
    target = torch.randn(4, layer.out_type.size, 6, 6)
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for _ in range(20):
        optimiser.zero_grad()
        (layer(features).tensor - target).square().mean().backward()
        optimiser.step()
    assert layer.softness().item() > 1e-3


def test_units_are_those_of_the_default() -> None:
    types = battery.types("C4", "regular -> irreps")
    layers = []
    for softness in (0.0, 0.001):
        torch.manual_seed(0)
        layers.append(RelaxedR2Conv(*types, 3, initial_softness=softness, kernel=ContinuousKernel()))
    pairs = [layer.bank.steered_average.block_pairs for layer in layers]
    for of_zero, of_default in zip(*pairs, strict=True):
        assert torch.equal(of_zero.units, of_default.units)
        assert not of_zero.weights.any()


def test_units_of_a_modulation_do_not_depend_on_the_softness_of_the_start() -> None:
    for softness in (0.0, 0.001, 0.5):
        layer = RelaxedR2Conv(*battery.types("C4", "regular -> irreps"), 3, initial_softness=softness)
        # A weight of 1 makes a modulation of this size, as the root of the mean square over channels and taps.
        bank = layer.bank
        columns = bank._values(layer.domain_frequency, (), None).flatten(1) @ bank._scaled_maps()
        sizes = [
            float(columns[:, bank.maps.function_of_column == n].square().mean().sqrt()) for n in range(len(bank.units))
        ]
        assert sizes == pytest.approx([0.2] * len(layer.bank.units), rel=1e-5)
        assert bool(layer.bank.weights.any()) == (softness > 0)


@pytest.mark.parametrize("soft_part", ["centred", "tied"])
def test_relaxed_network_takes_the_units_of_the_default(soft_part: str) -> None:
    trained = R2Conv(*battery.types("C4", "regular -> regular"), 3)
    kernel = options_of(soft_part).get("kernel")
    layer = relax_network(trained, relax={"rotation": 0.25}, initial_softness=0.0, kernel=kernel)
    units = [value for name, value in layer.state_dict().items() if name.endswith("units")]
    assert units
    assert all(value.any() for value in units)


def test_continuous_layer_refuses_to_start_without_softness() -> None:
    with pytest.raises(ValueError, match="initial_softness must be above 0 with strict_kernel='continuous'"):
        RelaxedR2Conv(*battery.types("C4", "regular -> regular"), 3, strict_kernel="continuous", initial_softness=0.0)
