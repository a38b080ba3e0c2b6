"""The ω′ of a kernel by itself: what is raised for a while, and whether the kernel may vary."""

from __future__ import annotations

import pytest
import torch
from soft_networks import soft_regular_layer

from escnn_relaxed.kernel.domain_frequency import DomainFrequency


def values(frequency: DomainFrequency) -> dict[str, list[float]]:
    return {name: value.tolist() for name, value in frequency.values().items()}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("start", "raised"),
    [
        (
            {"rotation": 0.0, "reflection": -0.125, "translation": (0.0, 1.0)},
            {"rotation": [0.0], "reflection": [0.25], "translation": [0.0, 1.0]},
        ),
        ({"rotation": 0.0, "translation": 0.0}, {"rotation": [0.25], "translation": [0.25, 0.25]}),
    ],
    ids=["some are 0", "all are 0"],
)
def test_frequencies_are_raised_within_a_block_but_those_of_0(start: dict, raised: dict[str, list[float]]) -> None:
    frequency = DomainFrequency(start)
    before = values(frequency)
    with frequency.at_least(0.25):
        assert values(frequency) == raised
    assert values(frequency) == before


def test_kernel_may_vary_where_a_frequency_is_learned_or_not_0() -> None:
    fixed, learned = (DomainFrequency({"rotation": 0.0, "reflection": 0.5}, learn) for learn in (False, True))
    assert not fixed.may_vary("rotation")
    assert fixed.may_vary("reflection")
    assert fixed.may_vary("rotation", "reflection")
    assert fixed.may_vary()
    assert learned.may_vary("rotation")
    assert not learned.may_vary("translation")


def test_frequency_is_known_to_be_0_where_it_is_missing_or_0_and_not_learned() -> None:
    fixed, learned = (DomainFrequency({"rotation": 0.0, "reflection": 0.5}, learn) for learn in (False, True))
    assert [fixed.is_zero(name) for name in ("rotation", "reflection", "translation")] == [True, False, True]
    assert [learned.is_zero(name) for name in ("rotation", "reflection", "translation")] == [False, False, True]


def test_each_coordinate_of_the_domain_has_the_frequency_of_its_axis() -> None:
    frequency = DomainFrequency({"translation": (0.5, 0.75), "rotation": 0.25})
    like = torch.zeros(0, dtype=torch.float64)
    columns = ("translation", "translation", "rotation", "rotation")
    assert frequency.scale(columns, like).tolist() == [0.5, 0.75, 0.25, 0.25]
    assert frequency.scale(("rotation", "rotation"), like).tolist() == [0.25] * 2
    assert frequency.scale((), like).tolist() == []


def test_frequency_of_0_that_is_learned_has_a_gradient_in_evaluation_mode_too() -> None:
    layer = soft_regular_layer(relax={"rotation": 0.0}, learn_relaxation=True).eval()
    layer(layer.in_type(torch.randn(2, 4, 5, 5, dtype=torch.float64))).tensor.square().sum().backward()
    assert layer.domain_frequency["rotation"].grad.abs().item() > 1e-3
