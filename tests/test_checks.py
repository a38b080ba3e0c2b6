"""Checks of single values; warnings that point at the user's line."""

from __future__ import annotations

import re
import warnings
from fractions import Fraction
from pathlib import Path

import battery
import numpy as np
import pytest
import torch
from escnn.nn import R2Conv

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, relax_network
from escnn_relaxed.checks import check_bool, check_module, check_number, warn_once


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.int64(2), Fraction(1, 2)])
def test_numbers_of_any_kind_are_floats_then(value: object) -> None:
    found = check_number("rate", value)
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize("value", [True, np.bool_(False), "1", None, 1j, [1.0]])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=f"rate must be a number, got {re.escape(repr(value))}"):
        check_number("rate", value)


@pytest.mark.parametrize("value", [0, 1, "no", None, 0.1, np.bool_(True)])
def test_what_only_counts_as_a_bool_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=f"bias must be True or False, got {re.escape(repr(value))}"):
        check_bool("bias", value)
    assert check_bool("bias", True)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"network must be a torch\.nn\.Module, got int: 3"):
        check_module("network", 3)
    module = torch.nn.ReLU()
    assert check_module("network", module) is module


ALIASED = {"rotation": 3.0}
TYPES = battery.types("C8", "trivial -> regular")
WAVES = {"kernel": ContinuousKernel()}
LAYER = RelaxedR2Conv(*TYPES, 1, relax={"rotation": 0.5}, **WAVES)
WARN = {
    "layer": lambda: RelaxedR2Conv(*TYPES, 1, relax=ALIASED, **WAVES),
    "setting": lambda: LAYER.set_domain_frequency(**ALIASED),
    "network": lambda: relax_network(R2Conv(*TYPES, 1), relax=ALIASED, **WAVES),
}


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize("name", WARN)
def test_warning_points_at_the_line_outside_the_package(name: str) -> None:
    with pytest.warns(UserWarning, match="aliases") as caught:
        WARN[name]()
    assert len(caught) == 1
    assert Path(caught[0].filename) == Path(__file__)
    assert caught[0].lineno == WARN[name].__code__.co_firstlineno


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_the_same_warning_is_given_once() -> None:
    with pytest.warns(UserWarning, match="one"):
        warn_once("one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_once("one")
