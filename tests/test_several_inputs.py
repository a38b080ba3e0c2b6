"""Measuring networks with several inputs: images turn, fields beside them turn with them, the rest stays."""

from __future__ import annotations

import math

import pytest
import torch
from escnn import gspaces
from escnn import nn as enn
from layers import build
from torch import Tensor, nn

from escnn_relaxed import (
    equivariance_error,
    prediction_agreement,
    relaxation_summary,
    softness_ablation,
)
from escnn_relaxed.measure import relaxation_scalars

ROUNDING = 1e-12  # the same sums in float64, in another order
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


class TwoImages(nn.Module):
    """A convolution of two plain images side by side."""

    def __init__(self, padding_mode: str) -> None:
        super().__init__()
        fields = IMAGE + IMAGE
        layer = build(fields, SCORES, 3, padding=1, relax=None, padding_mode=padding_mode)
        self.body = enn.SequentialModule(layer, enn.ReLU(SCORES)).eval()

    def forward(self, images: Tensor, depth: Tensor) -> enn.GeometricTensor:
        return self.body(self.body.in_type(torch.cat([images, depth], dim=1)))


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def errors(network: nn.Module, data: tuple[object, ...], **options: object) -> list[float]:
    return [row.error for row in equivariance_error(network, data=data, in_type=IMAGE, **options).exact]


def test_a_field_beside_the_images_turns() -> None:
    data = drawn(3, 1, SIDE, SIDE), VECTOR(drawn(3, 2, 1, 1)), 2.0
    assert max(errors(Critic(), data)) <= ROUNDING


def test_a_plain_action_is_passed_as_it_is() -> None:
    assert min(errors(Critic(), (drawn(3, 1, SIDE, SIDE), drawn(3, 2, 1, 1)))) > 1e-3


def test_error_is_that_of_turning_both_by_hand() -> None:
    network, images, action = Critic({"rotation": 0.3}), drawn(3, 1, SIDE, SIDE), drawn(3, 2, 1, 1)
    found = errors(network, (images, VECTOR(action)))
    with torch.no_grad():
        before = network(images, action)
        for turns, error in enumerate(found, start=1):
            angle = turns * math.pi / 2
            matrix = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
            turned = torch.einsum("oc,bcij->boij", torch.tensor(matrix, dtype=torch.float64), action)
            after = network(images.rot90(turns, (2, 3)), turned)
            assert error == pytest.approx(((after - before).norm() / before.norm()).item(), rel=1e-9)
            assert error > 1e-3


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_plain_images_are_measured_as_channels_of_one(padding_mode: str) -> None:
    """Every row: exact, interpolated and shifted."""
    network, images, depth = TwoImages(padding_mode), drawn(3, 1, SIDE, SIDE + 2), drawn(3, 1, SIDE, SIDE + 2).flip(2)
    options = {"elements": None, "angles": [0.5], "shifts": [(1, -2)]}
    pair = equivariance_error(network, data=(images, depth), in_type=IMAGE, **options)
    one = equivariance_error(network.body, data=torch.cat([images, depth], dim=1), **options)
    assert pair == one
    assert [row.kind for row in pair.rows] == 3 * ["exact"] + ["interpolated", "exact"]
    assert max(row.error for row in pair.exact) <= ROUNDING


def test_an_angle_that_a_field_beside_the_images_cannot_turn_by_is_named() -> None:
    with pytest.raises(ValueError, match=r"the fields of the input are of C4_on_R2.*, which holds no rotation 45°"):
        errors(Critic(), (drawn(3, 1, SIDE, SIDE), VECTOR(drawn(3, 2, 1, 1))), angles=[math.pi / 4])


class Ahead(nn.Module):
    """Two classes: whether the bright side of an image lies ahead of an action, or behind it."""

    def forward(self, images: Tensor, action: enn.GeometricTensor | Tensor) -> Tensor:
        x, y = (action.tensor if isinstance(action, enn.GeometricTensor) else action).unbind(1)
        steps = torch.linspace(-1, 1, SIDE, dtype=images.dtype)
        ahead = (images[:, 0] * (x * steps - y * steps[:, None])).sum((1, 2))
        return torch.stack([ahead, -ahead], dim=1)


def test_agreement_turns_the_field_too() -> None:
    images, action = drawn(20, 1, SIDE, SIDE), drawn(20, 2, 1, 1)
    assert prediction_agreement(Ahead(), (images, VECTOR(action)), in_type=IMAGE).orbit == 1
    rows = prediction_agreement(Ahead(), (images, action), in_type=IMAGE).rows
    assert [row.error for row in rows if row.name == "rotation 180°"] == [1]


def test_summary_and_scalars_take_all_inputs() -> None:
    network = Critic({"rotation": 0.3})
    data = drawn(4, 1, SIDE, SIDE), VECTOR(drawn(4, 2, 1, 1)), 2.0
    (row,) = relaxation_summary(network, data=data, in_type=IMAGE).rows
    assert row.own_error is not None
    assert row.own_error > 1e-3
    scalars = relaxation_scalars(network, data, in_type=IMAGE)
    assert scalars["equivariance_error/network"] == pytest.approx(max(errors(network, data)), rel=1e-9)
    rows = softness_ablation(network, lambda net: max(errors(net, data)))
    assert rows[-1].value <= ROUNDING


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((), r"data must be a floating-point tensor or GeometricTensor, got tuple"),
        ((2.0, drawn(1, 1, SIDE, SIDE)), r"data must be a floating-point tensor or GeometricTensor, got float"),
        (
            (drawn(1, 1, SIDE, SIDE), VECTOR(drawn(1, 2, 3, 3))),
            r"data\[1\] must have \(7, 7\) pixels as data\[0\] has, or one, got \(1, 2, 3, 3\)",
        ),
    ],
)
def test_inputs_that_cannot_be_turned_are_named(data: tuple[object, ...], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        equivariance_error(Critic(), data=data, in_type=IMAGE)
