"""The bias: one value for each trivial irrep of the output, as in R2Conv."""

from __future__ import annotations

import battery
import pytest
import torch
from escnn.nn import R2Conv

from escnn_relaxed import RelaxedR2Conv


@pytest.mark.parametrize(
    ("space", "fields"),
    [("C4", "irreps + regular"), ("D4", "mixed, sheared + quotient"), ("O(2)", "band-limited + induced + trivial")],
)
def test_bias_is_that_of_r2conv(space: str, fields: str) -> None:
    in_type, out_type = battery.types(space, f"trivial -> {fields}")
    layer, convolution = RelaxedR2Conv(in_type, out_type, 3), R2Conv(in_type, out_type, 3)
    assert layer.bias.shape == convolution.bias.shape
    values = torch.randn_like(layer.bias)
    with torch.no_grad():
        layer.bias.copy_(values)
        convolution.bias.copy_(values)
        _, expected = convolution.expand_parameters()
    # escnn expands by float32 matrices of this size.
    assert torch.allclose(layer.expanded_bias(), expected, rtol=0, atol=1e-6)


def test_types_without_a_trivial_irrep_have_no_bias() -> None:
    layer = RelaxedR2Conv(*battery.types("C4", "regular -> last irrep"), 3)
    assert layer.bias is None
    assert layer.expanded_bias() is None
