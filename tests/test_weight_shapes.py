"""A layer has weights of the same shapes wherever it is built: else its state would load in some places alone."""

from __future__ import annotations

import battery
import pytest
import torch
from layers import SOFT_PARTS, options_of, uncalibrated
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.kernel import domain_functions, weight_units

# All other fields fall into the same blocks; where a pair sees the relative element, the kernel net has more inputs.
PAIRS = {
    "irreps alone": "irreps -> irreps",
    "beside regular fields": "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed",
}
FINITE = tuple(space for space in battery.GSPACES if space not in battery.CONTINUOUS)


def layer(space: str, pair: str, kernel_size: int, soft_part: str) -> RelaxedR2Conv:
    with uncalibrated():
        return RelaxedR2Conv(*battery.types(space, pair), kernel_size, **options_of(soft_part))


def shapes(space: str, kernel_size: int) -> list[list[torch.Size]]:
    """Shapes of the state of a layer of each form."""
    built = (layer(space, PAIRS["irreps alone"], kernel_size, form) for form in SOFT_PARTS)
    return [[value.shape for value in of.state_dict().values()] for of in built]


@pytest.mark.parametrize(
    ("soft_part", "kernel_size"),
    [
        pytest.param(soft_part, k, marks=[] if (soft_part, k) == ("continuous", 3) else pytest.mark.slow)
        for soft_part in ("continuous", "centred")
        for k in range(1, 6)
    ],
)
def test_no_direction_lies_so_near_the_threshold_that_rounding_decides(
    soft_part: str, kernel_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another order of sums changes 1e-15; the nearest direction is 6e-5 away, one of C8 with 5×5 taps."""
    distances: list[float] = []
    svdvals = torch.linalg.svdvals

    def recorded(features: Tensor) -> Tensor:
        assert features.dtype == torch.float64
        size = svdvals(features)
        threshold = max(weight_units._SMALLEST * float(size[0]), weight_units._ROUNDING)
        distances.append(float((size / threshold - 1).abs().min()))
        return size

    monkeypatch.setattr(torch.linalg, "svdvals", recorded)
    # How large each direction is drawn takes most of the time, and does not decide which there are.
    monkeypatch.setattr(weight_units, "_whitened", lambda _, combination, size, rank, least: combination[:rank])
    for space in battery.GSPACES:
        for pair in PAIRS.values() if space in FINITE else (PAIRS["irreps alone"],):
            layer(space, pair, kernel_size, soft_part)
    assert len(distances) > 100
    assert min(distances) > 1e-6


def test_no_function_of_a_modulation_lies_so_near_a_threshold_that_rounding_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thresholds may be a thousandth larger or smaller; rounding is 1e-15."""
    counts = []
    least, nothing = domain_functions._LEAST, domain_functions._NOTHING
    for factor in (0.999, 1.001):
        monkeypatch.setattr(domain_functions, "_LEAST", factor * least)
        monkeypatch.setattr(domain_functions, "_NOTHING", factor * nothing)
        counts.append([])
        for space in battery.GSPACES:
            relax = {"translation": 0.25, **battery.subgroups(space, 0.25)}
            for pair in PAIRS.values() if space in FINITE else (PAIRS["irreps alone"],):
                built = RelaxedR2Conv(*battery.types(space, pair), 3, relax=relax)
                counts[-1].append([built.bank.maps.sides, *(kind.functions for kind in built.bank.maps.kinds)])
    assert counts[0] == counts[1]


@pytest.mark.usefixtures("float64_default")
@pytest.mark.parametrize("space", ["C4", "SO(2)"])
def test_shapes_do_not_depend_on_the_default_dtype(space: str) -> None:
    in_double = shapes(space, 3)
    torch.set_default_dtype(torch.float32)
    assert in_double == shapes(space, 3)


@pytest.mark.slow
@pytest.mark.parametrize("space", ["D4", "SO(2)"])
def test_shapes_do_not_depend_on_the_number_of_threads(space: str) -> None:
    expected, threads = shapes(space, 5), torch.get_num_threads()
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        assert shapes(space, 5) == expected
    finally:
        torch.set_num_threads(threads)
