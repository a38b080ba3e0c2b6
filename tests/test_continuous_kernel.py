"""The options of a continuous kernel: which are refused, and the defaults of those that are not given."""

from __future__ import annotations

import pytest

from escnn_relaxed import ContinuousKernel

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
    "unknown frame": ({"frame": "world"}, ValueError, ["frame", "'world'", "group", "image"]),
    "hidden size a float": ({"hidden_size": 8.0}, TypeError, ["hidden_size", "8.0", "integer"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_argument_raises_an_error_that_says_so(case: str) -> None:
    arguments, error, words = BAD[case]
    with pytest.raises(error) as raised:
        ContinuousKernel(**arguments)
    message = str(raised.value)
    assert all(word in message for word in words), message


def test_what_is_not_given_follows_the_size_and_the_strict_kernel() -> None:
    beside = ContinuousKernel().completed(5, "steerable")
    alone = ContinuousKernel().completed(5, "continuous")
    assert (beside.hidden_size, alone.hidden_size) == (8, 32)
    assert beside.filter_frequency == {"position": pytest.approx(0.125), "rotation": 0.3, "reflection": 1.0}
    assert alone.filter_frequency == {"position": pytest.approx(0.3), "rotation": 0.3, "reflection": 1.0}


def test_what_is_given_is_kept() -> None:
    one_number = ContinuousKernel(hidden_size=3, filter_frequency=0).completed(5, "steerable")
    assert (one_number.hidden_size, one_number.filter_frequency["position"]) == (3, 0)
    by_name = ContinuousKernel(filter_frequency={"reflection": 0.5}).completed(2, "steerable")
    assert by_name.filter_frequency == {"position": pytest.approx(0.05), "rotation": 0.3, "reflection": 0.5}
