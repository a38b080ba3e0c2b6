"""Measured errors: against transformations written out, and softness known from weights."""

from __future__ import annotations

import pytest
import small
import torch
from errors import ROUNDING, SINGLE, on_grid_elements
from errors import equivariance_error as error_written_out
from small import TORUS, build
from trained_networks import convolution

from escnn_relaxed import equivariance_error


@pytest.mark.parametrize(
    ("space", "pair", "size"),
    [
        ("C4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed", (4, 6)),
        ("C8", "induced + quotient + trivial -> regular + induced", (5, 5)),
        ("D4 axis 45°", "quotient -> irreps", (5, 5)),
        ("flip axis 0", "irreps -> two regular", (5, 4)),
        ("SO(2)", "band-limited + trivial -> irreps + mixed", (5, 5)),
        ("O(2)", "quotient -> irreps", (4, 6)),
    ],
)
@pytest.mark.parametrize("kind", ["relaxed", "R2Conv"])
def test_strict_layers_have_no_exact_error(space: str, pair: str, size: tuple[int, int], kind: str) -> None:
    types = small.types(space, pair)
    layer = build(*types, relax=None, **TORUS) if kind == "relaxed" else convolution(space, pair, **TORUS).double()
    report = equivariance_error(layer, size, shifts=[(1, 2)])
    assert len(report.exact) == len(on_grid_elements(types[0].gspace)) + 1
    assert max(row.error for row in report.exact) <= (ROUNDING if kind == "relaxed" else SINGLE)


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize(
    ("space", "pair", "size"),
    [
        ("C4", "regular -> irreps", (5, 5)),
        ("D4", "mixed, sheared -> regular", (4, 6)),
        ("O(2)", "irreps -> irreps", (5, 5)),
    ],
)
def test_exact_errors_are_those_of_transformations_written_out(
    space: str, pair: str, size: tuple[int, int], mode: str
) -> None:
    in_type, out_type = small.types(space, pair)
    relax = small.subgroups(space, 0.3)
    layer = build(in_type, out_type, padding=1, padding_mode=mode, relax=relax, initial_softness=0.3)
    features = small.random_input(in_type, *size)
    elements = on_grid_elements(in_type.gspace)
    report = equivariance_error(layer, data=features, elements=elements)
    expected = [error_written_out(layer, features, element) for element in elements]
    # Where ρ is not orthogonal, ‖g f(x)‖ is not ‖f(x)‖, which is what the definition divides by.
    with torch.no_grad():
        norm = layer(in_type(features)).tensor.norm()
        turned = [layer(in_type(features)).transform(element).tensor.norm() for element in elements]
    expected = [error * float(t / norm) for error, t in zip(expected, turned, strict=True)]
    assert [row.error for row in report.exact] == pytest.approx(expected, rel=1e-6)  # escnn's transform is in float32
    assert min(expected) > 0.01
