"""What a layer is hardened in: set by names alone, the same in both modes, in its state, and in what it may be soft."""

import pytest
import small
import torch
from baseline_layers import WAYS, baseline

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.network import to_escnn


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("rotation", TypeError, "hardened must be a sequence of names of subgroups, got 'rotation'"),
        (None, TypeError, "hardened must be a sequence of names of subgroups, got None"),
        (("rotatoin",), ValueError, "subgroups must be of .*, got 'rotatoin'"),
    ],
)
def test_only_names_of_subgroups_are_taken(value: object, error: type[Exception], message: str) -> None:
    layer = RelaxedR2Conv(*small.types("C4", "regular -> regular"), 3)
    layer.harden("translation")
    with pytest.raises(error, match=message):
        layer.hardened = value
    assert layer.hardened == ("translation",)


@torch.no_grad()
def test_names_that_are_set_make_the_layer_strict_in_both_modes_and_in_its_state() -> None:
    in_type, out_type = small.types("D4", "regular -> regular")
    layer, other = (RelaxedR2Conv(in_type, out_type, 3, initial_softness=0.1) for _ in range(2))
    features = in_type(torch.randn(2, in_type.size, 5, 5))
    soft = layer(features).tensor
    layer.hardened = ["reflection", "rotation"]
    assert layer.hardened == ("rotation", "reflection")
    found = [layer.train(mode)(features).tensor for mode in (True, False)]
    assert torch.equal(*found)
    assert not torch.allclose(found[0], soft)
    assert layer.softness().item() == 0
    other.load_state_dict(layer.state_dict())
    assert other.hardened == layer.hardened
    layer.hardened = ()
    assert torch.equal(layer.train()(features).tensor, soft)


@pytest.mark.parametrize("form", ["tied", "continuous", *WAYS])
def test_a_layer_may_be_soft_in_what_it_is_not_hardened_in(form: str) -> None:
    if form in WAYS:
        layer = baseline(form, "D4", "regular -> regular")
    else:
        layer = small.build(
            *small.types("D4", "regular -> regular"), 3, soft_part=form, relax=("rotation", "reflection")
        )
    assert set(layer.relaxed_subgroups) == {"rotation", "reflection"}
    layer.harden("rotation", "translation")
    assert layer.relaxed_subgroups == ("reflection",)
    layer.harden()
    assert layer.relaxed_subgroups == ()


def test_escnn_has_a_layer_that_is_hardened_in_all_that_may_be_soft() -> None:
    layer = RelaxedR2Conv(*small.types("D4", "regular -> regular"), 3)
    layer.harden("rotation")
    with pytest.raises(ValueError, match="is not hardened"):
        to_escnn(layer)
    layer.harden("reflection")
    assert torch.allclose(to_escnn(layer).expand_parameters()[0], layer.filter_bank(), atol=1e-6)  # float32
