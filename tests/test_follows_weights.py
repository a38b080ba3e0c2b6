"""What escnn's layers store and ours compute: code that stores it again may, and no other value is taken."""

import pytest
import small
import torch
from errors import SINGLE_REORDERED
from escnn import gspaces
from escnn.nn import FieldType, R2Conv

from escnn_relaxed import RelaxedLinear, RelaxedR2Conv, relax_network


def refresh(layer: torch.nn.Module) -> None:
    """As code of R2Conv's users does in eval mode, after a state was loaded."""
    filter_bank, bias = layer.expand_parameters()
    layer.filter = filter_bank
    layer.expanded_bias = bias


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_code_that_stores_filters_and_biases_again_runs(training: bool, bias: bool) -> None:
    in_type, out_type = small.types("D4", "regular -> regular")
    layer = relax_network(R2Conv(in_type, out_type, 3, bias=bias)).train(training)
    features = in_type(torch.randn(2, in_type.size, 5, 5))
    before, keys = layer(features).tensor, set(layer.state_dict())
    refresh(layer)
    if bias:
        layer.expanded_bias = stored = layer.expanded_bias.detach().double()
        with torch.no_grad():
            layer.bias += 1  # still followed
        assert (layer.expanded_bias - stored).min() > 0.1
        before = before + (layer.expanded_bias - stored).view(-1, 1, 1)
    assert torch.allclose(layer(features).tensor, before.to(features.tensor), atol=SINGLE_REORDERED)
    assert set(layer.state_dict()) == keys


def test_no_other_value_is_taken() -> None:
    layer = RelaxedR2Conv(*small.types("C4", "regular -> regular"), 3)
    for name, value in (
        ("expanded_bias", layer.expanded_bias + 1),
        ("expanded_bias", None),
        ("filter", layer.filter[0]),
    ):
        with pytest.raises(ValueError, match=f"{name} is computed from .* and cannot be another"):
            setattr(layer, name, value)
    with pytest.raises(TypeError, match="filter must be a tensor or None, got str: 'mine'"):
        layer.filter = "mine"
    space = gspaces.no_base_space(small.gspace("C4").fibergroup)
    fields = FieldType(space, [space.regular_repr])
    linear = RelaxedLinear(fields, fields)
    linear.matrix = linear.matrix
    with pytest.raises(ValueError, match="matrix is computed from `weights`"):
        linear.matrix = linear.matrix * 2


@pytest.mark.parametrize("name", ["bias", "initialize", "recompute"])
def test_arguments_of_escnn_take_1_and_0(name: str) -> None:
    types = small.types("C4", "regular -> regular")
    for value in (0, 1):
        layer = RelaxedR2Conv(*types, 3, **{name: value})
        if name == "bias":
            assert (layer.bias is None) == (value == 0) == ("bias=False" in repr(layer))
        if name == "initialize":
            assert bool(layer.weights.any()) == bool(value)
    for wrong in (2, 1.0, "no", None):
        with pytest.raises(TypeError, match=f"{name} must be True or False, or 1 or 0, got {wrong!r}"):
            RelaxedR2Conv(*types, 3, **{name: wrong})
    with pytest.raises(TypeError, match="learn_relaxation must be True or False, got 1"):
        RelaxedR2Conv(*types, 3, learn_relaxation=1)
