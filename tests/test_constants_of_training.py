"""Tensors that a training step reads beside parameters stay where they are: a CUDA graph reads them by address."""

from __future__ import annotations

import pytest
import torch
from escnn import gspaces
from escnn.nn import FieldType
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.kernel.remembered import Remembered

SOFT = {"rotation": {"rotation": 0.25}, "translation": {"rotation": 0.25, "translation": 0.25}}


def kept_tensors(layer: RelaxedR2Conv) -> list[Tensor]:
    remembered = [value for value in vars(layer.bank).values() if isinstance(value, Remembered)]
    results = [result for value in remembered for _, result in value._entries.values()]
    return [part for result in results for part in result if isinstance(part, Tensor)]


@pytest.mark.parametrize("soft", SOFT)
def test_constants_outlive_evaluation(soft: str) -> None:
    gspace = gspaces.rot2dOnR2(4)
    fields = FieldType(gspace, [gspace.regular_repr])
    layer = RelaxedR2Conv(fields, fields, 3, padding=1, relax=SOFT[soft])
    features = fields(torch.randn(1, 4, 18, 18))
    layer(features)
    captured = kept_tensors(layer)
    assert captured
    layer.eval()
    with torch.no_grad():
        layer(features)
    layer.train()
    layer(features)
    assert all(found is known for found, known in zip(kept_tensors(layer), captured, strict=True))


def test_what_changed_past_its_counter_of_versions_is_made_anew() -> None:
    remembered, angles = Remembered(), torch.zeros(2)
    first = remembered.get(lambda: (angles.cos(), 2), [angles])
    angles.data += 1
    assert remembered.get(lambda: (angles.cos(), 2), [angles]) is first
    remembered.forget()
    second = remembered.get(lambda: (angles.cos(), 2), [angles])
    assert torch.equal(second[0], angles.cos())


@pytest.mark.parametrize("new", [torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.ones(2)])
def test_other_results_take_the_place_of_the_old(new: Tensor) -> None:
    remembered = Remembered()
    remembered.get(lambda: (torch.zeros(2),), [])
    remembered.forget()
    assert remembered.get(lambda: (new,), [])[0] is new


def test_results_without_values_are_not_compared() -> None:
    remembered, new = Remembered(), torch.zeros(2, device="meta")
    remembered.get(lambda: (torch.zeros(2, device="meta"),), [])
    remembered.forget()
    assert remembered.get(lambda: (new,), [])[0] is new
