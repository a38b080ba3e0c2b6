"""Measuring layers inside networks, networks in plain tensors, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import battery
import pytest
import torch
from escnn import nn as enn
from soft_networks import soft_regular_layer
from tolerances import SINGLE
from torch import Tensor, nn
from trained_networks import convolution, network

from escnn_relaxed import equivariance_error, prediction_agreement


def test_a_layer_inside_is_measured_as_the_network_up_to_it() -> None:
    whole = network("D4").double()
    for name, length in (("3", 4), ("6", 7)):
        inside = equivariance_error(whole, 8, layer=name)
        up_to_it = equivariance_error(enn.SequentialModule(*list(whole)[:length]), 8)
        assert inside.layer == name
        assert inside.rows == up_to_it.rows


class Wrapped(nn.Module):
    """Takes plain images; logits from the pooled features."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(body.out_type.size, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(self.body.in_type(images)).tensor.float().mean(dim=(2, 3)))


def test_networks_that_wrap_plain_images() -> None:
    body = network("C4")
    wrapped = Wrapped(body)
    report = equivariance_error(wrapped, 8)
    assert max(row.error for row in report.rows) <= SINGLE
    assert equivariance_error(wrapped, 8, layer="body").rows == equivariance_error(body, 8).rows


def test_the_error_of_logits_is_their_relative_change() -> None:
    soft = Wrapped(soft_regular_layer())
    images = battery.random_input(soft.body.in_type, 5, 5)
    report = equivariance_error(soft, data=images)
    with torch.no_grad():
        before = soft(images)
        for quarter, row in enumerate(report.rows, start=1):
            turned = soft.body.in_type(images).transform_fibers(soft.body.in_type.fibergroup.element(quarter)).tensor
            after = soft(torch.rot90(turned, quarter, (2, 3)))
            assert row.error == pytest.approx(float((after - before).norm() / before.norm()), rel=1e-4)
            assert row.error > 1e-3


def test_forms_of_input() -> None:
    layer = soft_regular_layer()
    features = battery.random_input(layer.in_type, 5, 5)
    expected = equivariance_error(layer, data=features).rows
    assert equivariance_error(layer, data=layer.in_type(features)).rows == expected
    assert equivariance_error(nn.Sequential(layer), data=features).rows == expected
    assert equivariance_error(layer, 5).rows == equivariance_error(layer, (5, 5)).rows


def test_measuring_changes_nothing() -> None:
    whole = network("C4")
    whole.train()
    whole[1].eval()
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    modes = [module.training for module in whole.modules()]
    drawn = torch.get_rng_state()
    with pytest.raises(ValueError, match="nothing says which fields"):
        equivariance_error(Plain(whole), 8, angles=[0.3], shifts=[(1, 1)])
    equivariance_error(whole, 8, angles=[], shifts=[(1, 1)])
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [module.training for module in whole.modules()] == modes
    after = whole.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in whole.modules())


class Plain(nn.Module):
    """Maps in plain tensors."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.unused = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return self.body(self.body.in_type(images)).tensor


class Pair(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, images


class Table(nn.Module):
    def forward(self, images: Tensor) -> dict[str, Any]:
        return {"images": images, "text": ""}


def test_a_tensor_is_picked_of_what_a_network_returns() -> None:
    trivial = battery.field_type("C4", "trivial")
    place = {"input_size": 5, "in_type": trivial, "out_type": trivial}
    for module, pick in ((Pair(), lambda answer: answer[1]), (Table(), lambda answer: answer["images"].clone())):
        report = equivariance_error(module, **place, output=pick)
        assert [(row.kind, row.error) for row in report.rows] == [("exact", 0.0)] * 3
        network = nn.Sequential(nn.Identity(), module)
        assert equivariance_error(network, **place, layer="1", output=pick).rows == report.rows
    logits = prediction_agreement(
        Pair(), torch.randn(4, 1, 5, 5), in_type=trivial, output=lambda answer: answer[0].mean((2, 3))
    )
    assert logits.orbit == 1


BAD: dict[str, tuple[Callable[[Any], dict[str, Any]], type[Exception], str]] = {
    "neither": (lambda layer: {}, ValueError, "input_size or data, one of them"),
    "both": (
        lambda layer: {"input_size": 5, "data": torch.zeros(1, 4, 5, 5)},
        ValueError,
        "one of them; got input_size=5",
    ),
    "no module": (
        lambda layer: {"module": "layer", "input_size": 5},
        TypeError,
        "module must be a torch.nn.Module, got str",
    ),
    "size": (lambda layer: {"input_size": 0}, ValueError, "input_size must be >= 1, got 0"),
    "sizes": (lambda layer: {"input_size": (5, 5, 5)}, ValueError, r"input_size must be .* got \(5, 5, 5\)"),
    "size of another type": (lambda layer: {"input_size": 5.0}, TypeError, "input_size must be an integer, got 5.0"),
    "data": (lambda layer: {"data": [1.0]}, TypeError, "data must be a floating-point tensor .* got list"),
    "integers": (lambda layer: {"data": torch.zeros(1, 4, 5, 5).long()}, TypeError, "data must be a floating-point"),
    "channels": (lambda layer: {"data": torch.zeros(1, 3, 5, 5)}, ValueError, r"data must be \(batch, 4, H, W\)"),
    "layer": (lambda layer: {"input_size": 5, "layer": "body"}, ValueError, "layer must be .* got 'body'; there are"),
    "not called": (
        lambda layer: {"module": Plain(layer), "input_size": 5, "layer": "unused"},
        ValueError,
        "layer: 'unused' is not called",
    ),
    "fields": (lambda layer: {"input_size": 5, "in_type": "C4"}, TypeError, "in_type must be .* got str: 'C4'"),
    "unknown fields": (lambda layer: {"module": nn.Identity(), "input_size": 5}, ValueError, "in_type: Identity"),
    "unknown output": (
        lambda layer: {"module": Plain(layer), "input_size": 5},
        ValueError,
        "out_type: the output is a plain",
    ),
    "pair": (
        lambda layer: {"module": Pair(), "input_size": 5, "in_type": layer.in_type},
        TypeError,
        "output: it must be a tensor .* '' returns a tuple: pick a tensor of it by output=",
    ),
    "table": (
        lambda layer: {"module": Table(), "input_size": 5, "in_type": layer.in_type},
        TypeError,
        "output: .* '' returns a dict: pick a tensor of it by output=",
    ),
    "no tensor picked": (
        lambda layer: {"module": Table(), "input_size": 5, "in_type": layer.in_type, "output": lambda a: a["text"]},
        TypeError,
        "output: .* output gives a str$",
    ),
    "no function": (lambda layer: {"input_size": 5, "output": "logits"}, TypeError, "output must be a function"),
    "elements": (
        lambda layer: {"input_size": 5, "elements": battery.gspace("C8").fibergroup.elements},
        TypeError,
        "elements must be of C4",
    ),
    "angle": (lambda layer: {"input_size": 5, "angles": ["90°"]}, TypeError, "angles must be .* got '90°'"),
    "angle that is not in the group": (
        lambda layer: {"input_size": 5, "angles": [0.3]},
        ValueError,
        "fields of the input are of .* which holds no rotation 17.19°",
    ),
    "shift": (lambda layer: {"input_size": 5, "shifts": [1]}, TypeError, "shifts must be pairs .* got 1"),
    "shift of half a pixel": (
        lambda layer: {"input_size": 5, "shifts": [(0, 0.5)]},
        TypeError,
        "shifts must be an integer",
    ),
    "far shift": (lambda layer: {"input_size": 5, "shifts": [(0, 5)]}, ValueError, r"smaller than the image, \(5, 5\)"),
    "far shift back": (lambda layer: {"input_size": 5, "shifts": [(-5, 0)]}, ValueError, "shifts must be >= -4"),
    "nothing": (lambda layer: {"input_size": 5, "elements": ()}, ValueError, "nothing to measure: .* angles or shifts"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name: str) -> None:
    arguments, kind, message = BAD[name]
    layer = soft_regular_layer()
    with pytest.raises(kind, match=message):
        equivariance_error(**{"module": layer, **arguments(layer)})


def test_the_report_is_a_table() -> None:
    layer = convolution("C8", "trivial -> trivial", padding=1)
    lines = str(equivariance_error(layer, 9)).splitlines()
    assert len(lines) == 8
    assert lines[0].split() == ["transformation", "kind", "error", "resampling", "alone"]
    assert lines[1].startswith("rotation 45°    interpolated  0.0")
    assert len(lines[1].split()) == 5
    assert len(lines[2].split()) == 4  # nothing is interpolated
