"""Logged values are those of the layers, and logging changes nothing."""

from __future__ import annotations

import pytest
import small
import torch
from escnn import nn as enn
from small import soft_regular_layer
from small_networks import OnTensors, network_of
from torch import nn

from escnn_relaxed import equivariance_error
from escnn_relaxed.measure import relaxation_scalars


def network() -> enn.SequentialModule:
    layers = soft_regular_layer(), soft_regular_layer(relax={"rotation": 0.1, "translation": (0.3, 0.2)})
    return network_of(*layers)


def images(count: int = 3) -> torch.Tensor:
    return small.random_input(small.field_type("C4", "regular"), 5, 5, batch=count)


def test_numbers_are_those_of_the_layers() -> None:
    net = network()
    expected = {
        "domain_frequency/0/rotation": 0.2,
        "domain_frequency/2/rotation": 0.1,
        "domain_frequency/2/translation_x": 0.3,
        "domain_frequency/2/translation_y": 0.2,
        "frequency_energy/0": 0.04,
        "frequency_energy/2": 0.01 + 0.09 + 0.04,
        "frequency_energy/total": 0.18,
        "softness/0": net[0].softness().item(),
        "softness/2": net[2].softness().item(),
    }
    assert relaxation_scalars(net) == pytest.approx(expected, rel=1e-6)  # ω′ is drawn up in float32


@pytest.mark.parametrize("typed", [False, True], ids=["tensor", "GeometricTensor"])
def test_errors_are_the_largest_exact_ones_up_to_each_layer(typed: bool) -> None:
    net, data = network(), images()
    found = relaxation_scalars(net, net.in_type(data) if typed else data, shifts=[(1, 0)])
    for name in ("0", "2"):
        rows = equivariance_error(net, data=data, layer=name, shifts=[(1, 0)]).exact
        assert found[f"equivariance_error/{name}"] == max(row.error for row in rows)
    assert found["equivariance_error/network"] == found["equivariance_error/2"]


def test_errors_are_logged_where_they_are_known_and_exact() -> None:
    def errors(module: nn.Module, data: torch.Tensor) -> set[str]:
        return {tag for tag in relaxation_scalars(module, data) if tag.startswith("equivariance_error")}

    # A layer alone is the network; a plain output has no fields; nothing is exact where the group is trivial.
    assert errors(soft_regular_layer(), images()) == {"equivariance_error/network"}
    assert errors(OnTensors(network()), images()) == {"equivariance_error/fields.0", "equivariance_error/fields.2"}
    layer = soft_regular_layer(space="trivial", relax={"translation": 0.3})
    data = small.random_input(layer.in_type, 8, 8)
    assert errors(layer, data) == set()
    assert relaxation_scalars(layer, data, shifts=[(1, 1)])["equivariance_error/network"] > 0.01
