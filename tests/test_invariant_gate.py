"""The example of a gate that is an invariant function of the input: the network is equivariant where it is 0."""

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from errors import BROKEN, ROUNDING

from escnn_relaxed import equivariance_error, gate_softness, harden_network
from escnn_relaxed.measure import assert_equivariant

EXAMPLE = Path(__file__).parents[1] / "examples" / "invariant_gate.py"


@pytest.fixture
def example() -> dict[str, Any]:
    torch.manual_seed(0)
    return runpy.run_path(str(EXAMPLE))


def images_of(example: dict[str, Any]) -> torch.Tensor:
    images: torch.Tensor = example["letters"](16)[0].double()
    return images


def largest_error(network: Any, images: torch.Tensor) -> float:
    return max(row.error for row in equivariance_error(network, data=images, in_type=network.image).rows)


def test_gate_is_invariant_and_networks_are_exactly_equivariant_where_it_is_zero(example: dict[str, Any]) -> None:
    network, images = example["Classifier"]().double(), images_of(example)
    # Half of the gates are 0: the bias moves the median there.
    with torch.no_grad():
        network.gate.mlp[2].weight *= 1000
        inner = network.gate.mlp[:3](network.gate.features(network.image(images)).tensor.amax(dim=(2, 3)))
        network.gate.mlp[2].bias -= inner.median() + math.log(5)
    gate = network.gate(network.image(images))
    turned = network.gate(network.image(images.rot90(1, (2, 3))))
    assert (gate - turned).abs().max() <= ROUNDING
    closed = gate == 0
    assert 0 < closed.sum() < len(images)
    assert largest_error(network, images[closed]) <= ROUNDING
    assert largest_error(network, images[~closed]) > BROKEN
    strict = harden_network(network)
    assert (network(images[closed]) - strict(images[closed])).abs().max() <= ROUNDING


def test_error_at_a_given_gate_is_that_of_the_network_under_it(example: dict[str, Any]) -> None:
    network, images = example["Classifier"]().double(), images_of(example)
    layer = network.body[0]
    whole = equivariance_error(layer, data=images).rows
    for number in (0.0, 0.3):
        with gate_softness(layer, number):
            found = equivariance_error(layer, data=images).rows
        for row, of_whole in zip(found, whole, strict=True):
            # ‖f(gx) − g f(x)‖ is proportional to the gate, and ‖f(x)‖ changes.
            assert row.error <= ROUNDING if number == 0 else BROKEN < row.error < of_whole.error
    with gate_softness(network.body, 0.0):
        assert_equivariant(network.body, data=images)


def test_example_runs_and_prints_a_table(example: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    example["main"](["--steps", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["letter", "faint", "bright"]
