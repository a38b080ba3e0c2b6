"""``RelaxedLinear`` in networks: relaxed, hardened, measured, exported, given back to escnn, and in the evidence."""

from __future__ import annotations

import pytest
import torch
from errors import BROKEN, ROUNDING, SINGLE, relative_error
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType
from small import shake
from torch import Tensor, nn

from escnn_relaxed import (
    RelaxedLinear,
    RelaxedR2Conv,
    equivariance_error,
    export_network,
    harden_network,
    relax_network,
    relaxation_summary,
    softness_ablation,
)
from escnn_relaxed.network import to_escnn

SPACE = gspaces.flipRot2dOnR2(4)
IMAGE, MAPS = FieldType(SPACE, [SPACE.trivial_repr]), FieldType(SPACE, [SPACE.regular_repr] * 2)


class Classifier(nn.Module):
    """A convolution, a mean over positions, a linear map of features and a head."""

    def __init__(self) -> None:
        super().__init__()
        space = gspaces.no_base_space(SPACE.fibergroup)
        self.features = FieldType(space, MAPS.representations)
        self.body = enn.SequentialModule(enn.R2Conv(IMAGE, MAPS, 3), enn.ReLU(MAPS))
        self.middle = enn.SequentialModule(enn.Linear(self.features, self.features), enn.ReLU(self.features))
        self.head = enn.Linear(self.features, FieldType(space, [space.trivial_repr] * 3))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.body(IMAGE(images)).tensor.mean(dim=(2, 3))
        scores: Tensor = self.head(self.middle(self.features(maps))).tensor
        return scores


def trained() -> Classifier:
    network = Classifier()
    shake(network)
    return network


@torch.no_grad()
def test_network_is_relaxed_hardened_and_given_back() -> None:
    network, images = trained(), torch.randn(4, 1, 7, 7)
    expected = network(images)
    soft = relax_network(network, relax={"rotation": 0.25, "reflection": 0.25, "translation": 0.5})
    assert [type(of) for of in (soft.body[0], soft.middle[0], soft.head)] == [RelaxedR2Conv, *[RelaxedLinear] * 2]
    assert [list(of.domain_frequency) for of in (soft.middle[0], soft.head)] == [["rotation", "reflection"]] * 2
    assert relative_error(soft(images), expected) <= SINGLE
    for layer in (soft.body[0], soft.middle[0], soft.head):
        layer.kernel.start(layer.weights, 0.1)
    assert relative_error(soft(images), expected) > BROKEN
    back = to_escnn(harden_network(soft))
    assert type(back.head) is enn.Linear
    assert torch.equal(back(images), expected)
    back.load_state_dict(network.state_dict())


def test_translation_alone_leaves_linear_maps_as_they_are() -> None:
    soft = relax_network(trained(), relax=("translation",))
    assert (type(soft.body[0]), type(soft.head)) == (RelaxedR2Conv, enn.Linear)
    assert relaxation_summary(soft).strict == {"Linear": ("middle.0", "head")}
    with pytest.raises(ValueError, match="network has no"):
        relax_network(soft.head, relax=("translation",))


def test_network_is_measured() -> None:
    soft = relax_network(trained(), initial_softness=0.1).double().eval()
    images = torch.randn(8, 1, 7, 7, dtype=torch.float64)
    rows = relaxation_summary(soft, data=images, in_type=IMAGE).rows
    assert [row.name for row in rows] == ["body.0", "middle.0", "head"]
    assert all(row.own_error > 1e-3 and row.error > 1e-3 for row in rows)
    rows = relaxation_summary(harden_network(soft), data=images, in_type=IMAGE).rows
    assert all(row.own_error <= ROUNDING and row.error <= ROUNDING for row in rows)
    report = equivariance_error(harden_network(soft), layer="middle.0", data=images, in_type=IMAGE)
    assert len(report.rows) == 7
    assert max(row.error for row in report.rows) <= ROUNDING
    values = {row.part: row.value for row in softness_ablation(soft, lambda of: float(of(images).square().mean()))}
    assert values["head"] != values["nothing"]


@torch.no_grad()
def test_exported_network_computes_the_same() -> None:
    soft = relax_network(trained(), initial_softness=0.1).eval()
    images = torch.randn(4, 1, 7, 7)
    with pytest.warns(UserWarning, match="needs escnn"):
        plain = export_network(soft)
    assert relative_error(plain(images), soft(images)) <= SINGLE
    layers = enn.SequentialModule(soft.middle[0], enn.ReLU(soft.features), soft.head)
    inputs = torch.randn(3, soft.features.size)
    plain = export_network(layers)
    assert [type(part) for part in plain] == [nn.Linear, nn.ReLU, nn.Linear]
    assert relative_error(plain(inputs), layers(soft.features(inputs)).tensor) <= SINGLE
