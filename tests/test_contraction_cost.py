"""The cheaper order of contraction and the cheaper layout of pixels, where the difference is clear."""

from __future__ import annotations

from typing import Any

import battery
import pytest
import torch
from escnn.nn import FieldType

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.bank_first import BankFirst
from escnn_relaxed.basis_first import BasisFirst
from escnn_relaxed.contraction import KernelContraction
from escnn_relaxed.patches import Patches
from escnn_relaxed.soft_translation import choose_contraction
from escnn_relaxed.windows import Windows


def chosen(fields: int, batch: int, space: str = "trivial", **options: Any) -> KernelContraction:
    one = battery.field_type(space, "regular" if space != "trivial" else "trivial")
    types = FieldType(one.gspace, one.representations[:1] * fields)
    layer = RelaxedR2Conv(types, types, 7, **{"relax": {"translation": 0.3}, **options})
    return choose_contraction(layer._positional_kernel(), torch.empty(batch, types.size, 32, 32))


def test_many_channels_go_basis_first_and_many_images_bank_first() -> None:
    assert isinstance(chosen(64, 16), BasisFirst)
    assert isinstance(chosen(4, 256), BankFirst)


@pytest.mark.parametrize(
    ("fields", "batch", "options", "layout"),
    [
        (32, 16, {}, Windows),
        (4, 256, {}, Windows),
        # The k² - T further taps are multiplied by every one of many features.
        (32, 16, {"hidden_size": 64}, Patches),
        (8, 16, {"space": "C8", "relax": {"translation": 0.3, "rotation": 0.3}}, Patches),
        # Neighbouring outputs do not read neighbouring columns.
        (32, 16, {"stride": 2}, Patches),
        (32, 16, {"dilation": 2}, Patches),
    ],
)
def test_windows_overlap_where_few_features_meet_many_pixels(
    fields: int, batch: int, options: dict[str, Any], layout: type
) -> None:
    assert type(chosen(fields, batch, **options).pixels) is layout
