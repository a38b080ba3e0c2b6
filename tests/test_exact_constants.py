"""Constants are exact to float64 whatever dtype a layer was built in, and stay out of its state."""

from __future__ import annotations

import copy

import battery
import numpy as np
import pytest
import torch
from layers import SOFT_PARTS, options_of
from torch import nn

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.group.exact_constants import ExactConstants, put_back

CASES = [
    ("C8", "quotient -> irreps"),
    ("D4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed"),
    ("O(2)", "irreps + quotient -> induced + band-limited"),
]


def layer_of(space: str, pair: str, soft_part: str, **arguments: object) -> RelaxedR2Conv:
    relax = battery.subgroups(space, 0.2) | {"translation": 0.3}
    return RelaxedR2Conv(*battery.types(space, pair), 3, relax=relax, **options_of(soft_part), **arguments)


def constants(module: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that are no state."""
    saved = set(module.state_dict())
    return {name: value for name, value in module.named_buffers() if name not in saved}


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize(("space", "pair"), CASES)
def test_layer_turned_to_float64_has_the_constants_of_one_built_in_float64(
    space: str, pair: str, soft_part: str, float64_default: None
) -> None:
    built = constants(layer_of(space, pair, soft_part))
    torch.set_default_dtype(torch.float32)
    turned = constants(layer_of(space, pair, soft_part).double())
    assert built.keys() == turned.keys()
    assert len(built) > 5
    for name, value in turned.items():
        assert value.dtype in (torch.float64, torch.int64), name
        # NumPy's vectorised loops round by the alignment of an array: two builds differ by 4e-16, float32 by 1e-8.
        torch.testing.assert_close(value, built[name], rtol=0, atol=1e-14)


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
def test_constants_survive_a_walk_through_other_dtypes(soft_part: str) -> None:
    layer = layer_of(*CASES[0], soft_part)
    expected = {name: value.clone() for name, value in constants(copy.deepcopy(layer).double()).items()}
    for name, value in constants(layer.half().float().to(torch.bfloat16).double()).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
def test_layer_can_be_built_with_float64_as_the_default(soft_part: str, float64_default: None) -> None:
    """escnn's R2Conv cannot."""
    in_type, out_type = battery.types(*CASES[1])
    layer = layer_of(*CASES[1], soft_part, padding=1)
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    assert layer(in_type(battery.random_input(in_type, 4, 4))).tensor.dtype == torch.float64
    assert out_type == layer.out_type


def test_constant_is_no_state_and_follows_casts() -> None:
    module = ExactConstants()
    module.set_constant("third", np.array([1 / 3]))
    module.set_constant("index", np.array([2, 0, 1]))
    assert not module.state_dict()
    assert module.third.dtype == torch.float32
    assert module.half().third.dtype == torch.float16
    assert module.double().third.item() == 1 / 3
    assert module.index.dtype == torch.int64


def test_replaced_constant_keeps_the_dtype_of_the_module() -> None:
    module = ExactConstants()
    module.set_constant("third", np.array([1 / 3]))
    module.double()
    module.set_constant("third", np.array([2 / 3, 1 / 3]))
    assert module.third.tolist() == [2 / 3, 1 / 3]
    assert module.float().double().third.tolist() == [2 / 3, 1 / 3]


def test_what_is_put_back_has_its_values_below_float64_too() -> None:
    module = ExactConstants()
    module.set_constant("value", np.array([1 / 3]), single=np.array([0.5], dtype=np.float32))
    with put_back(module):
        module.set_constant("value", np.array([2 / 3]))
    assert module.train().value.item() == 0.5


def test_constant_below_float64_may_be_another() -> None:
    module = ExactConstants()
    single = np.array([0.5], dtype=np.float32)
    module.set_constant("value", np.array([1 / 3]), single=single)
    assert module.value.item() == 0.5
    assert module.double().value.item() == 1 / 3
    assert module.float().value.item() == 0.5


def test_constants_are_not_shared_with_a_copy() -> None:
    module = ExactConstants()
    module.set_constant("value", np.array([1.0]))
    other = copy.deepcopy(module).double()
    assert module.value.dtype == torch.float32
    assert other.value.dtype == torch.float64
