"""The functions of the domain coordinates, written out; which of them depend on others, by ranks of matrices."""

from __future__ import annotations

import math

import pytest
import torch
from tolerances import FEW_TERMS

from escnn_relaxed.kernel.domain_functions import DomainFunctions, independent

CASES = {
    "rotation": (["rotation"] * 2, lambda t, r, s: [*r]),
    "axis": (["rotation"] * 3, lambda t, r, s: [*r, *(value**2 for value in r)]),
    "space": (
        ["rotation"] * 9 + ["reflection"],
        lambda t, r, s: [*r, *s, *(value**2 for value in r), *(value * s[0] for value in r)],
    ),
    "reflection": (["reflection"], lambda t, r, s: [*s]),
    "translation": (["translation"] * 2, lambda t, r, s: [*t, t[0] ** 2, t[1] ** 2]),
    "both": (["rotation"] * 2 + ["reflection"], lambda t, r, s: [*r, *s, r[0] * s[0], r[1] * s[0]]),
    "all": (
        ["translation"] * 2 + ["rotation"] * 2 + ["reflection"],
        lambda t, r, s: [*t, *r, *s, t[0] ** 2, t[1] ** 2, r[0] * s[0], r[1] * s[0]],
    ),
    "log": (["rotation", "reflection"], lambda t, r, s: [*r, *s, r[0] * s[0]]),
}


@pytest.mark.parametrize("case", CASES)
def test_functions_are_those_written_out(case: str) -> None:
    columns, written = CASES[case]
    coordinates = torch.randn(6, len(columns), dtype=torch.float64)
    found = DomainFunctions(columns)(2 * math.pi * coordinates)
    for point, values in zip(coordinates.tolist(), found.mT.tolist(), strict=True):
        of = {name: [] for name in ("translation", "rotation", "reflection")}
        for name, value in zip(columns, point, strict=True):
            of[name].append(math.tanh(2 * math.pi * value))
        assert values == pytest.approx(written(*of.values()), rel=0, abs=FEW_TERMS)


def test_functions_are_zero_at_zero_and_start_with_the_slope_of_a_wave() -> None:
    functions = DomainFunctions(["rotation", "reflection"])
    coordinates = torch.tensor([[0.3, 0.5]], dtype=torch.float64)
    assert not functions(0 * coordinates).any()
    small = functions(2 * math.pi * 1e-4 * coordinates).flatten()
    waves = (2 * math.pi * 1e-4 * coordinates).sin().flatten()
    # Both are odd: they differ in third order, (2π·5e-5)³.
    assert small[:2].tolist() == pytest.approx(waves.tolist(), rel=1e-6)


def test_functions_have_no_other_zeros_and_are_at_most_one() -> None:
    """Where sin(2π ω′ a) vanishes on all elements of C4, at ω′ = 0.5, 1 and 2, the layer would be strict."""
    functions = DomainFunctions(["rotation"])
    for frequency in (0.1, 0.5, 1.0, 2.0, 10.0):
        values = functions(torch.tensor([[frequency], [-frequency]], dtype=torch.float64))
        assert (values[0, 0] > 0) & (values[0, 0] <= 1)
        assert values[0, 0] == -values[0, 1]


def test_values_grow_with_the_frequency() -> None:
    functions = DomainFunctions(["translation"])
    values = torch.cat([functions(torch.tensor([[f * 0.4]])) for f in (0.1, 0.2, 0.5, 1.0)], 1)
    assert (values.diff(dim=1) > 0).all()


@pytest.mark.parametrize("seed", range(4))
def test_independent_functions_span_all_of_them(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(12, 3, generator=generator, dtype=torch.float64)).Q.mT
    mixed = torch.cat([basis[:2], basis[0:1] - basis[1:2], 0 * basis[:1], basis[2:], basis.sum(0, keepdim=True)])
    kept = independent(mixed)
    assert kept == [0, 1, 4]
    assert torch.linalg.matrix_rank(mixed[kept]) == torch.linalg.matrix_rank(mixed) == 3


def test_function_that_is_nearly_a_sum_of_others_or_nearly_nothing_is_left_out() -> None:
    plane = torch.eye(3, dtype=torch.float64)
    nearly_first = torch.cat([plane[:1], plane[:1] + 0.05 * plane[1:2]])
    far_enough = torch.cat([plane[:1], plane[:1] + 0.2 * plane[1:2]])
    assert independent(nearly_first) == [0]
    assert independent(far_enough) == [0, 1]
    assert independent(1e-4 * plane) == []
    assert independent(plane[:0]) == []


def test_size_of_a_function_decides_nothing_but_whether_it_is_there() -> None:
    plane = torch.eye(3, dtype=torch.float64)
    assert independent(plane * torch.tensor([[1.0], [0.01], [100.0]])) == [0, 1, 2]
