"""Arguments of escnn's basis: what means something there passes, the rest is refused in words."""

from __future__ import annotations

import battery
import numpy as np
import pytest
import torch
from escnn.nn import FieldType, R2Conv
from layers import with_kernel

from escnn_relaxed import RelaxedR2Conv

C4 = battery.gspace("C4")
REGULAR = FieldType(C4, [C4.regular_repr])
TRIVIAL = FieldType(C4, [C4.trivial_repr])

# name: (arguments, the error, what its message must hold)
BAD = {
    "sigma negative": ({"sigma": -1.0}, ValueError, ["sigma", "-1.0", "> 0"]),
    "sigma 0": ({"sigma": 0.0}, ValueError, ["sigma", "0.0", "> 0"]),
    "sigma infinite": ({"sigma": float("inf")}, ValueError, ["sigma", "inf", "finite"]),
    "sigma in words": ({"sigma": "wide"}, TypeError, ["sigma", "'wide'", "number"]),
    "sigma of fewer rings": ({"sigma": [0.5]}, ValueError, ["sigma", "[0.5]", "2 rings"]),
    "sigma of more rings": ({"rings": [1.0], "sigma": [0.5, 0.6]}, ValueError, ["sigma", "[0.5, 0.6]", "1 rings"]),
    "one sigma negative": ({"sigma": [0.5, -0.5]}, ValueError, ["sigma", "-0.5", "> 0"]),
    "one sigma None": ({"sigma": [0.5, None]}, TypeError, ["sigma", "None", "number"]),
    "cutoff in words": ({"frequencies_cutoff": "x"}, TypeError, ["frequencies_cutoff", "'x'", "number", "function"]),
    "cutoff NaN": ({"frequencies_cutoff": float("nan")}, ValueError, ["frequencies_cutoff", "nan", "finite"]),
    "no rings": ({"rings": []}, ValueError, ["rings", "[]", "at least one"]),
    "a ring outside": ({"rings": [0.0, 9.0]}, ValueError, ["rings", "9.0", "1.414"]),
    "a ring negative": ({"rings": [-1.0]}, ValueError, ["rings", "-1.0", "from 0"]),
    "a ring NaN": ({"rings": [float("nan")]}, ValueError, ["rings", "nan"]),
    "rings a number": ({"rings": 1.0}, TypeError, ["rings", "1.0", "list"]),
    "rings in words": ({"rings": "all"}, TypeError, ["rings", "'all'", "list"]),
    "offset in words": ({"maximum_offset": "x"}, TypeError, ["maximum_offset", "'x'", "integer"]),
    "offset negative": ({"maximum_offset": -1}, ValueError, ["maximum_offset", "-1", ">= 0"]),
    "recompute in words": ({"recompute": "no"}, TypeError, ["recompute", "'no'", "True or False"]),
    "filter a number": ({"basis_filter": 3}, TypeError, ["basis_filter", "3", "function"]),
    "filter that keeps nothing": ({"basis_filter": lambda element: False}, ValueError, ["basis_filter", "element"]),
    "cutoff that keeps nothing": (
        {"basis_filter": None, "frequencies_cutoff": -2.5, "rings": [1.0]},
        ValueError,
        ["frequencies_cutoff=-2.5", "rings=[1.0]", "empty"],
    ),
}


@pytest.mark.parametrize("relax", [None, "default"], ids=["strict", "soft"])
@pytest.mark.parametrize("case", BAD)
def test_bad_argument_raises_an_error_that_says_so(case: str, relax: str | None) -> None:
    arguments, error, words = BAD[case]
    with pytest.raises(error) as raised:
        RelaxedR2Conv(REGULAR, REGULAR, 3, relax=relax, **with_kernel(arguments))
    message = str(raised.value)
    assert all(word in message for word in words), message


# Values in the form that R2Conv takes, and the forms that we take.
GOOD = {
    "sigma an integer": ({"sigma": 1.0}, {"sigma": 1}),
    "rings a tuple": ({"rings": [0.0, 1.0]}, {"rings": (0, 1)}),
    "rings an array": ({"rings": [0.0, 1.0]}, {"rings": np.array([0.0, 1.0])}),
    "sigma of each ring": ({"sigma": [0.5, 0.75]}, {"sigma": np.array([0.5, 0.75], dtype=np.float32)}),
    "cutoff an integer": ({"frequencies_cutoff": 2.0}, {"frequencies_cutoff": 2}),
    "cutoff of no frequency": ({"frequencies_cutoff": 0.0}, {"frequencies_cutoff": 0}),
}


@pytest.mark.parametrize("case", GOOD)
def test_numbers_and_sequences_of_any_kind_mean_the_same(case: str) -> None:
    theirs, ours = GOOD[case]
    convolution = R2Conv(REGULAR, REGULAR, 3, **theirs)
    layer = RelaxedR2Conv(REGULAR, REGULAR, 3, **ours)
    assert layer.weights.shape == convolution.weights.shape
    layer.load_state_dict(convolution.state_dict())
    with torch.no_grad():
        assert torch.allclose(layer.filter_bank(), convolution.expand_parameters()[0], atol=1e-6)


def test_rings_are_in_pixels_of_a_dilated_kernel() -> None:
    layer = RelaxedR2Conv(REGULAR, REGULAR, 3, dilation=2, rings=[0.0, 2.0])
    assert layer.weights.shape == R2Conv(REGULAR, REGULAR, 3, dilation=2, rings=[0.0, 2.0]).weights.shape


def test_filter_may_keep_what_other_field_types_lack() -> None:
    """Elements of frequency 1 lead from trivial fields to regular ones, not to trivial ones."""
    keep = {"basis_filter": lambda element: element["irrep:frequency"] == 1}
    assert len(RelaxedR2Conv(TRIVIAL, REGULAR, 3, **keep).weights) == len(R2Conv(TRIVIAL, REGULAR, 3, **keep).weights)
    with pytest.raises(ValueError, match="basis_filter"):
        RelaxedR2Conv(TRIVIAL, TRIVIAL, 3, **keep)
