"""ω′ of the subgroups: how many values, learned or fixed, set in place."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from escnn_relaxed.kernel.domain_frequency import DomainFrequency, RegionSamples, RotationSamples, frequency_values


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rotation", 0.5, [0.5]),
        ("rotation", 1, [1.0]),
        ("rotation", [0.25], [0.25]),
        ("reflection", torch.tensor(0.5), [0.5]),
        ("reflection", torch.tensor([0.5]), [0.5]),
        ("translation", 0.5, [0.5, 0.5]),
        ("translation", (0.25, 0.5), [0.25, 0.5]),
        ("translation", torch.tensor([0.25, 0.5]), [0.25, 0.5]),
        ("rotation", -0.5, [-0.5]),
        ("rotation", np.float32(0.5), [0.5]),
        ("rotation", np.array(0.5), [0.5]),
        ("rotation", torch.nn.Parameter(torch.tensor([-0.5])), [-0.5]),
        ("rotation", Fraction(1, 4), [0.25]),
        ("translation", np.array([0.25, 0.5]), [0.25, 0.5]),
        ("translation", np.float64(0.25), [0.25, 0.25]),
        ("translation", (torch.tensor(0.25), np.float32(-0.5)), [0.25, -0.5]),
    ],
)
def test_frequency_is_a_number_or_for_translation_a_pair(name: str, value: object, expected: list[float]) -> None:
    assert frequency_values("relax", name, value) == expected


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("rotation", True, "a number, got True"),
        ("rotation", np.bool_(True), "a number, got"),
        ("rotation", torch.tensor(True), r"a number, got tensor\(True\)"),
        ("rotation", "1", "a number, got '1'"),
        ("translation", "12", r"a number or a pair \(x, y\), got '12'"),
        ("translation", (0.1, None), r"a number or a pair \(x, y\), got \(0.1, None\)"),
        ("translation", [[0.1, 0.2]], r"a number or a pair \(x, y\), got"),
    ],
)
def test_what_is_no_frequency_is_refused(name: str, value: object, right: str) -> None:
    with pytest.raises(TypeError, match=f"relax: the domain frequency of '{name}' must be {right}"):
        frequency_values("relax", name, value)


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_values_above_the_limit_are_warned_of_wherever_they_are_given() -> None:
    samples = {"rotation": RotationSamples(8, "circle", 2 / math.pi)}
    frequency = DomainFrequency({"rotation": 0.5, "translation": 5.0}, learn=False, samples=samples)
    frequency.set(rotation=-0.63, translation=7.0)  # warnings are errors
    for value in (7.0, -7.0):
        with pytest.warns(UserWarning, match=f"set_domain_frequency: the domain frequency {value:g} .*above 0.637"):
            frequency.set(rotation=value)
    with pytest.warns(UserWarning, match="relax: the domain frequency 7 .*N = 8 rotations"):
        DomainFrequency({"rotation": 7.0}, learn=True, samples=samples)


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_the_larger_of_two_values_of_translation_is_warned_of() -> None:
    samples = {"rotation": RotationSamples(8, "circle", 2 / math.pi), "translation": RegionSamples(6)}
    frequency = DomainFrequency({"rotation": 0.5, "translation": (1.5, -1.5)}, learn=False, samples=samples)
    for value in (1.6, -1.6):
        message = f"set_domain_frequency: the domain frequency {value:g} of translation is above 1.5 .*regions = 6"
        with pytest.warns(UserWarning, match=message):
            frequency.set(translation=(1.0, value))


@pytest.mark.parametrize("learn", [False, True])
def test_values_are_state_and_parameters_where_learned(learn: bool) -> None:
    frequency = DomainFrequency({"translation": (0.1, 0.2), "rotation": 0.5}, learn)
    assert set(frequency.state_dict()) == {"translation", "rotation"}
    assert len(list(frequency.parameters())) == (2 if learn else 0)


def test_set_keeps_the_dtype_and_the_digits_of_float64() -> None:
    frequency = DomainFrequency({"rotation": 0.5}, learn=False).double()
    frequency.set(rotation=1 / 3)
    assert frequency.values()["rotation"].item() == 1 / 3


def test_set_is_all_or_nothing_for_an_unknown_subgroup() -> None:
    frequency = DomainFrequency({"rotation": 0.5}, learn=False)
    with pytest.raises(ValueError, match=r"'reflection'.*rotation"):
        frequency.set(reflection=0.1)


@pytest.mark.parametrize("learn", [False, True])
def test_a_kernel_may_vary_over_what_is_not_zero_or_learned(learn: bool) -> None:
    frequency = DomainFrequency({"translation": (0.0, 0.1), "rotation": 0.0}, learn)
    assert frequency.may_vary("translation")
    assert frequency.may_vary("rotation") == learn
    assert not frequency.may_vary("reflection")
    assert frequency.may_vary()
    frequency.set(translation=0.0)
    assert frequency.may_vary() == learn
