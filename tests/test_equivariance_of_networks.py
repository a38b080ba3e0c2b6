"""Measuring layers inside networks, networks in plain tensors and with several inputs, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import small
import torch
from errors import ROUNDING
from escnn import gspaces
from escnn import nn as enn
from small import build, soft_regular_layer
from small_networks import left_alone
from torch import Tensor, nn
from trained_networks import network

from escnn_relaxed import equivariance_error, robustness_report


def test_a_layer_inside_is_measured_as_the_network_up_to_it() -> None:
    whole = network("D4").double()
    for name, length in (("3", 4), ("6", 7)):
        inside = equivariance_error(whole, 8, layer=name)
        up_to_it = equivariance_error(enn.SequentialModule(*list(whole)[:length]), 8)
        assert inside.layer == name
        assert inside.rows == up_to_it.rows


def test_forms_of_input() -> None:
    layer = soft_regular_layer()
    features = small.random_input(layer.in_type, 5, 5)
    expected = equivariance_error(layer, data=features).rows
    assert equivariance_error(layer, data=layer.in_type(features)).rows == expected
    assert equivariance_error(nn.Sequential(layer), data=features).rows == expected
    assert equivariance_error(layer, 5).rows == equivariance_error(layer, (5, 5)).rows


class Plain(nn.Module):
    """Maps in plain tensors."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.unused = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return self.body(self.body.in_type(images)).tensor


def test_measuring_changes_nothing() -> None:
    whole = network("C4")
    whole.train()
    whole[1].eval()
    with left_alone(whole):
        with pytest.raises(ValueError, match=r"nothing says which fields .*out_type=.*layer="):
            equivariance_error(Plain(whole), 8, angles=[0.3], shifts=[(1, 1)])
        equivariance_error(whole, 8, angles=[], shifts=[(1, 1)])


@pytest.mark.usefixtures("float64_default")
def test_noise_is_the_same_whatever_the_defaults_of_torch() -> None:
    image = small.field_type("C4", "trivial")
    layer = build(image, image, padding=1, relax={"rotation": 0.2}).float()
    transformations = {"angles": [0.3], "shifts": [(1, 0)]}
    report = equivariance_error(layer, 16, **transformations)
    with torch.device("meta"):
        assert equivariance_error(layer, 16, **transformations) == report
    torch.set_default_dtype(torch.float32)
    assert equivariance_error(layer, 16, **transformations) == report


class Pair(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, images


class Table(nn.Module):
    def forward(self, images: Tensor) -> dict[str, Any]:
        return {"images": images, "text": ""}


def test_a_tensor_is_picked_of_what_a_network_returns() -> None:
    trivial = small.field_type("C4", "trivial")
    place = {"input_size": 5, "in_type": trivial, "out_type": trivial}
    for module, pick in ((Pair(), lambda answer: answer[1]), (Table(), lambda answer: answer["images"].clone())):
        report = equivariance_error(module, **place, output=pick)
        assert [(row.kind, row.error) for row in report.rows] == [("exact", 0.0)] * 3
        inside = nn.Sequential(nn.Identity(), module)
        assert equivariance_error(inside, **place, layer="1", output=pick).rows == report.rows
    images, labels = torch.randn(4, 1, 5, 5), torch.zeros(4, dtype=torch.long)
    report = robustness_report(Pair(), images, labels, in_type=trivial, output=lambda answer: answer[0].mean((2, 3)))
    assert [row.agreement for row in report.rows] == [1, 1, 1]


# Several inputs: images turn, fields beside them turn with them, the rest stays.
SIDE = 7
GSPACE = gspaces.rot2dOnR2(4)
IMAGE, VECTOR = (enn.FieldType(GSPACE, [field]) for field in (GSPACE.trivial_repr, GSPACE.irrep(1)))
SCORES = enn.FieldType(GSPACE, [GSPACE.trivial_repr] * 2)


class Critic(nn.Module):
    """Scores of an image and an action, a vector over one pixel that is laid over all."""

    def __init__(self, relax: dict[str, float] | None = None) -> None:
        super().__init__()
        self.first = build(IMAGE + VECTOR, SCORES, 3, padding=1, relax=relax, initial_softness=0.1)
        self.last = enn.ReLU(SCORES)
        self.eval()

    def forward(self, images: Tensor, action: enn.GeometricTensor | Tensor, scale: float = 1.0) -> Tensor:
        arrows = action.tensor if isinstance(action, enn.GeometricTensor) else action
        laid = torch.cat([images, arrows.expand(-1, -1, *images.shape[2:])], dim=1)
        scores: Tensor = scale * self.last(self.first((IMAGE + VECTOR)(laid))).tensor.mean((2, 3))
        return scores


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def errors(module: nn.Module, data: tuple[object, ...], **options: object) -> list[float]:
    return [row.error for row in equivariance_error(module, data=data, in_type=IMAGE, **options).exact]


def test_a_field_beside_the_images_turns_and_a_plain_action_stays() -> None:
    images, action = drawn(3, 1, SIDE, SIDE), drawn(3, 2, 1, 1)
    assert max(errors(Critic(), (images, VECTOR(action), 2.0))) <= ROUNDING
    assert min(errors(Critic(), (images, action))) > 1e-3
    soft = Critic({"rotation": 0.3})
    found = errors(soft, (images, VECTOR(action)))
    with torch.no_grad():
        before = soft(images, action)
        for turns, error in enumerate(found, start=1):
            angle = turns * math.pi / 2
            matrix = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
            turned = torch.einsum("oc,bcij->boij", torch.tensor(matrix, dtype=torch.float64), action)
            after = soft(images.rot90(turns, (2, 3)), turned)
            assert error == pytest.approx(((after - before).norm() / before.norm()).item(), rel=1e-9)
            assert error > 1e-3
    with pytest.raises(ValueError, match=r"the fields of the input are of C4_on_R2.*, which holds no rotation 45°"):
        errors(soft, (images, VECTOR(action)), angles=[math.pi / 4])


class TwoImages(nn.Module):
    """A convolution of two plain images side by side."""

    def __init__(self, padding_mode: str) -> None:
        super().__init__()
        layer = build(IMAGE + IMAGE, SCORES, 3, padding=1, relax=None, padding_mode=padding_mode)
        self.body = enn.SequentialModule(layer, enn.ReLU(SCORES)).eval()

    def forward(self, images: Tensor, depth: Tensor) -> enn.GeometricTensor:
        return self.body(self.body.in_type(torch.cat([images, depth], dim=1)))


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_plain_images_are_measured_as_channels_of_one(padding_mode: str) -> None:
    """Every row: exact, interpolated and shifted."""
    module, images, depth = TwoImages(padding_mode), drawn(3, 1, SIDE, SIDE + 2), drawn(3, 1, SIDE, SIDE + 2).flip(2)
    options = {"elements": None, "angles": [0.5], "shifts": [(1, -2)]}
    pair = equivariance_error(module, data=(images, depth), in_type=IMAGE, **options)
    assert pair == equivariance_error(module.body, data=torch.cat([images, depth], dim=1), **options)
    assert [row.kind for row in pair.rows] == 3 * ["exact"] + ["interpolated", "exact"]
    assert max(row.error for row in pair.exact) <= ROUNDING


# Arguments beside a layer of C4, or a module in its place and a size.
OF_LAYER = small.field_type("C4", "regular")
DIFFERENT_SIZES = (drawn(1, 1, SIDE, SIDE), VECTOR(drawn(1, 2, 3, 3)))
BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "input_size or data, one of them"),
    ({"input_size": 5, "data": torch.zeros(1, 4, 5, 5)}, "one of them; got input_size=5"),
    ({"data": torch.zeros(1, 4, 5, 5).long()}, "data must be a floating-point"),
    ({"data": torch.zeros(1, 3, 5, 5)}, r"data must be \(batch, 4, H, W\)"),
    ({"input_size": 5, "layer": "body"}, "layer must be .* got 'body'; there are"),
    ({"module": Plain, "input_size": 5, "layer": "unused"}, "layer: 'unused' is not called"),
    ({"module": Plain, "input_size": 5}, "out_type: the output is a plain"),
    ({"module": Pair(), "input_size": 5, "in_type": OF_LAYER}, "'' returns a tuple: pick a tensor of it by"),
    ({"module": Table(), "input_size": 5, "in_type": OF_LAYER}, "'' returns a dict: pick a tensor of it by"),
    ({"input_size": 5, "output": lambda answer: ""}, "output: .* output gives a str$"),
    ({"input_size": 5, "elements": [small.gspace("C8").fibergroup.element(1)]}, "elements must be of C4"),
    ({"input_size": 5, "angles": [0.3]}, "fields of the input are of .* which holds no rotation 17.19°"),
    ({"input_size": 5, "shifts": [1]}, "shifts must be pairs .* got 1"),
    ({"input_size": 5, "shifts": [(0, 5)]}, r"smaller than the image, \(5, 5\)"),
    ({"input_size": 5, "elements": ()}, "nothing to measure: .* angles or shifts"),
    ({"module": Critic(), "data": (), "in_type": IMAGE}, "data must be a floating-point tensor.*, got tuple"),
    ({"module": Critic(), "data": (2.0, drawn(1, 1, 7, 7)), "in_type": IMAGE}, "data must be .*, got float"),
    (
        {"module": Critic(), "data": DIFFERENT_SIZES, "in_type": IMAGE},
        r"data\[1\] must have \(7, 7\) .* data\[0\] has, or",
    ),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_bad_arguments_are_named(given: dict[str, Any], message: str) -> None:
    module = given.get("module", nn.Identity)
    layer = soft_regular_layer()
    if "module" not in given or module is Plain:
        module = Plain(layer) if module is Plain else layer
    with pytest.raises((TypeError, ValueError), match=message):
        equivariance_error(**{**given, "module": module})
