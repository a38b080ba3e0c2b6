"""Constants that a training step reads stay at their address, by which a captured CUDA graph reads them."""

from __future__ import annotations

import pytest
import torch
from escnn import gspaces
from escnn.nn import FieldType
from layers import ALL_SOFT_PARTS, options_of
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv

KEPT_IN_TRAINING = ("features of taps", "points", "features of points", "units", "weights of regions", "modulation")
SOFT = {"rotation": {"rotation": 0.25}, "translation": {"rotation": 0.25, "translation": 0.25}}


def kept_tensors(layer: RelaxedR2Conv) -> list[Tensor]:
    """Return the kept tensors, ordered by the names of the results."""
    kept = {key: entry.result for key, entry in layer._remembered._entries.items() if key[0] in KEPT_IN_TRAINING}
    results = [kept[key] for key in sorted(kept, key=str)]
    parts = [result if isinstance(result, tuple) else (result,) for result in results]
    return [part for of in parts for part in of if isinstance(part, Tensor)]


@pytest.mark.parametrize("soft_part", ALL_SOFT_PARTS)
@pytest.mark.parametrize("soft", SOFT)
def test_constants_outlive_evaluation(soft: str, soft_part: str) -> None:
    gspace = gspaces.rot2dOnR2(4)
    fields = FieldType(gspace, [gspace.regular_repr])
    layer = RelaxedR2Conv(fields, fields, 3, padding=1, relax=SOFT[soft], **options_of(soft_part))
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
