"""The options of the continuous kernel: refused values, and defaults."""

from __future__ import annotations

import pytest

from escnn_relaxed import ContinuousKernel
from escnn_relaxed.continuous import FourierKernel

NAN = float("nan")

# name: (arguments, the error, what its message must hold)
BAD = {
    "unknown coordinates": ({"rotation_coordinates": "angle"}, ValueError, ["rotation_coordinates", "'angle'", "log"]),
    "unknown kernel net": ({"net": "mlp"}, TypeError, ["net", "'mlp'", "KernelNet"]),
    "unknown support": ({"support": "square"}, ValueError, ["support", "'square'", "disk"]),
    "hidden size 0": ({"hidden_size": 0}, ValueError, ["hidden_size", "0", ">= 1"]),
    "filter frequency negative": ({"filter_frequency": -1.0}, ValueError, ["filter_frequency", "-1.0", ">= 0"]),
    "filter frequency NaN": ({"filter_frequency": NAN}, ValueError, ["filter_frequency", "nan", "finite"]),
    "filter frequency in words": ({"filter_frequency": "low"}, TypeError, ["filter_frequency", "'low'", "number"]),
    "unknown filter coordinate": ({"filter_frequency": {"scale": 1.0}}, ValueError, ["filter_frequency", "'scale'"]),
    "filter frequency True": ({"filter_frequency": True}, TypeError, ["filter_frequency", "True", "number"]),
    "no hidden size": ({"hidden_size": None}, TypeError, ["hidden_size", "None", "integer"]),
    "hidden size a float": ({"hidden_size": 8.0}, TypeError, ["hidden_size", "8.0", "integer"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_argument_raises_an_error_that_says_so(case: str) -> None:
    arguments, error, words = BAD[case]
    with pytest.raises(error) as raised:
        ContinuousKernel(**arguments)
    message = str(raised.value)
    assert all(word in message for word in words), message


def test_defaults_are_the_papers() -> None:
    kernel = ContinuousKernel()
    assert (kernel.net, kernel.hidden_size) == (FourierKernel, 32)
    assert (kernel.rotation_coordinates, kernel.support) == ("circle", "smooth")


def test_filter_frequency_that_is_not_given_follows_the_size() -> None:
    assert ContinuousKernel().frequencies(5) == {"position": pytest.approx(0.3), "rotation": 0.3, "reflection": 1.0}


def test_filter_frequency_that_is_given_is_kept() -> None:
    assert ContinuousKernel(filter_frequency=0).frequencies(5)["position"] == 0
    by_name = ContinuousKernel(filter_frequency={"reflection": 0.5}).frequencies(2)
    assert by_name == {"position": pytest.approx(0.12), "rotation": 0.3, "reflection": 0.5}
