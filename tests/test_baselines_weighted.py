"""Relaxed group convolution: the weight of each group element on each strict kernel, entry by entry."""

from __future__ import annotations

import battery
import pytest
import torch
from baseline_layers import baseline, set_group_weights, strict_banks
from reference_fields import coset
from tolerances import ROUNDING
from torch import Tensor
from transformations import relative_error

from escnn_relaxed.baselines import WeightedR2Conv


def weights_of(field, weights: Tensor, elements: list) -> list[Tensor]:
    """The weight of each channel of a field: of its element, the mean over those of its coset."""
    channels = []
    for channel in range(field.size):
        members = [number for number, g in enumerate(elements) if coset(field, g) == channel]
        channels.append(weights[members].mean())
    return channels


def looped(layer: WeightedR2Conv, weighs_input: bool) -> Tensor:
    """Σ_l w_l(g′) k_l(g′⁻¹d, g′⁻¹g), or with w_l(g)."""
    elements = list(layer.space.fibergroup.elements)
    fields = layer.kernel_types[0].representations if weighs_input else layer.out_type.representations
    total = torch.zeros_like(layer.filter_bank())
    for number, kernel in enumerate(strict_banks(layer)):
        weights = [w for field in fields for w in weights_of(field, layer.group_weights[number], elements)]
        for channel, weight in enumerate(weights):
            entries = (slice(None), channel) if weighs_input else (channel,)
            total[entries] += weight * kernel[entries]
    return total


@pytest.mark.parametrize(
    ("space", "pair", "weighs_input", "arguments"),
    [
        ("C8", "regular -> regular", True, {"banks": 1}),
        ("C8", "trivial -> regular", False, {"banks": 3}),
        ("C4", "regular -> irreps", True, {}),
        ("C4", "irreps -> regular", False, {}),
        ("D4", "quotient -> two regular", True, {}),
        ("D6", "trivial -> quotient", False, {}),
        ("D3", "reordered regular -> regular", True, {}),
        ("C4", "two regular -> two regular", True, {"groups": 2}),
        ("D4", "regular -> trivial", True, {}),
    ],
)
@torch.no_grad()
def test_bank_is_that_of_the_loop(space: str, pair: str, weighs_input: bool, arguments: dict) -> None:
    layer = baseline("weighted", space, pair, **arguments)
    assert layer.group_weights.shape == (arguments.get("banks", 2), layer.space.fibergroup.order())
    assert relative_error(layer.filter_bank(), looped(layer, weighs_input)) <= ROUNDING


@torch.no_grad()
def test_fields_without_elements_beside_others_are_weighed_by_the_output() -> None:
    mixed, apart = (baseline("weighted", "C4", f"{fields} -> regular") for fields in ("trivial + regular", "trivial"))
    bank = mixed.filter_bank()
    set_group_weights(mixed, mixed.group_weights + torch.tensor([0.0, 1.0, 0.0, 0.0]))
    changed = (mixed.filter_bank() - bank).abs() > ROUNDING
    # The trivial field comes first: weighed at the output element 1; the regular one at the input element 1.
    assert changed[:, 0].flatten(1).any(dim=1).tolist() == [False, True, False, False]
    assert changed[:, 1:].transpose(0, 1).flatten(1).any(dim=1).tolist() == [False, True, False, False]
    assert apart.filter_bank().shape == (4, 1, 3, 3)


def test_trivial_group_is_weighed_as_a_whole() -> None:
    layer = WeightedR2Conv(*battery.types("trivial", "trivial -> trivial"), 3, banks=2)
    assert layer.group_weights.shape == (2, 1)
    assert torch.allclose(layer.group_weights, torch.tensor(0.5).sqrt())


@pytest.mark.parametrize(
    ("space", "pair"), [("C4", "irreps -> irreps"), ("C4", "trivial -> trivial"), ("SO(2)", "irreps -> irreps")]
)
def test_fields_that_are_not_on_the_group_are_named(space: str, pair: str) -> None:
    types = battery.types(space, pair)
    with pytest.raises(ValueError, match=r"in_type or out_type must be of regular and quotient fields.*irrep"):
        WeightedR2Conv(*types, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"banks": 0}, ValueError, "banks must be >= 1, got 0"),
        ({"banks": 1.5}, TypeError, "banks must be an integer, got 1.5"),
        ({"relax": {"rotation": 0.3}}, TypeError, "WeightedR2Conv has no argument 'relax'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        WeightedR2Conv(*battery.types("C4", "regular -> regular"), 3, **arguments)
