"""The units of output weights: orthonormal features at the start, the same functions."""

from __future__ import annotations

import pytest
import torch
from tolerances import DECOMPOSED
from torch import Tensor

from escnn_relaxed.continuous.units import count_directions, weight_units


def features(count: int, out_size: int = 4, in_size: int = 3, taps: int = 9) -> Tensor:
    """Random steered features (P, |A|, |B|, T); the last one constant."""
    values = torch.randn(count, out_size, in_size, taps, dtype=torch.float64)
    values[-1] = 1
    return values


def gram(values: Tensor) -> Tensor:
    """Inner products over input channels and taps, averaged over output channels."""
    return torch.einsum("paib,qaib->pq", values, values) / values.shape[1]


@pytest.mark.parametrize("count", [2, 5, 12])
def test_varying_features_become_orthonormal(count: int) -> None:
    steered = features(count)
    units = weight_units(steered, 1, None)
    assert units.shape == (count, count)
    normalised = torch.einsum("rp,paib->raib", units, steered)[:-1]
    assert torch.allclose(gram(normalised), torch.eye(count - 1, dtype=torch.float64), rtol=0, atol=DECOMPOSED)


def test_varying_features_do_not_answer_a_constant_input_and_the_constant_one_answers_by_one() -> None:
    steered = features(6)
    normalised = torch.einsum("rp,paib->raib", weight_units(steered, 1, None), steered)
    answer = normalised.sum(dim=(2, 3)).mean(dim=1)
    expected = torch.tensor([0.0] * 5 + [1.0], dtype=torch.float64)
    assert torch.allclose(answer, expected, rtol=0, atol=DECOMPOSED)


@pytest.mark.parametrize("entries", [1, 2])
def test_units_change_no_function(entries: int) -> None:
    """The map is invertible: every bank of plain weights has weights in the new units."""
    units = weight_units(features(8), entries, None)
    assert torch.linalg.matrix_rank(units) == 8


def test_features_of_several_entries_are_orthonormal_as_they_stand() -> None:
    steered = torch.randn(6, 4, 3, 9, dtype=torch.float64)
    normalised = torch.einsum("rp,paib->raib", weight_units(steered, 2, None), steered)
    assert torch.allclose(gram(normalised), torch.eye(6, dtype=torch.float64), rtol=0, atol=DECOMPOSED)


def test_rank_keeps_the_largest_directions() -> None:
    basis = torch.randn(3, 4, 3, 9, dtype=torch.float64)
    mixing, _ = torch.linalg.qr(torch.randn(10, 3, dtype=torch.float64))
    steered = torch.einsum("pq,qaib->paib", mixing, basis)  # ten features of three directions of about equal size
    assert count_directions(steered) == 3
    units = weight_units(steered, 2, 3)
    assert units.shape == (3, 10)
    normalised = torch.einsum("rp,paib->raib", units, steered)
    assert torch.allclose(gram(normalised), torch.eye(3, dtype=torch.float64), rtol=0, atol=DECOMPOSED)


def test_small_directions_are_not_blown_up() -> None:
    """Below a tenth of the largest, a direction keeps its part of the energy: noise stays small."""
    steered = torch.randn(4, 4, 3, 9, dtype=torch.float64)
    steered[2] *= 1e-4
    steered[3] *= 1e-4
    units = weight_units(steered, 2, None)
    energy = gram(torch.einsum("rp,paib->raib", units, steered)).diagonal()
    assert energy[:2].min() > 0.5
    assert energy[2:].max() < 1e-5  # (1e-4 / 0.1)², times what random directions scatter


@pytest.mark.parametrize("scale", [0.0, 1e-9])
def test_features_that_are_averaged_away_give_no_direction_and_no_infinite_unit(scale: float) -> None:
    steered = scale * torch.randn(5, 4, 3, 9, dtype=torch.float64)
    assert count_directions(steered) == 0
    units = weight_units(steered, 2, None)
    assert torch.isfinite(units).all()
    assert units.abs().max() <= 1 + DECOMPOSED  # orthogonal: rounding is not amplified
    assert weight_units(steered, 2, 0).shape == (0, 5)


@pytest.mark.parametrize("taps", [9, 9 * 64, 81 * 64])
def test_constant_that_is_averaged_away_is_divided_by_for_no_number_of_points(taps: int) -> None:
    """The rounding error that float32 leaves of it is the same at every point, and adds up."""
    steered = features(4, taps=taps)
    steered[-1] = 3e-8
    units = weight_units(steered, 1, None)
    # Features of order one at n points have units of about 1/√n; divided by 3e-8 n they would have 1e3 to 1e6.
    assert units.abs().max() <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_units_are_of_the_features_dtype(dtype: torch.dtype) -> None:
    assert weight_units(features(4).to(dtype), 1, None).dtype == dtype


def test_directions_of_equal_energy_do_not_depend_on_rounding() -> None:
    """Six directions of one energy and four of another: solvers return any basis of each space."""
    scales = torch.tensor([1.0] * 6 + [0.5] * 4, dtype=torch.float64)
    orthogonal = torch.linalg.qr(torch.randn(12, 10, dtype=torch.float64)).Q
    turned = torch.linalg.qr(torch.randn(10, 10, dtype=torch.float64)).Q
    steered = (turned @ (scales[:, None] * orthogonal.mT)).view(10, 1, 3, 4)
    noise = 1e-14 * torch.randn_like(steered)
    for rank in (None, 6):
        found, other = weight_units(steered, 2, rank), weight_units(steered + noise, 2, rank)
        assert (found - other).abs().max() <= 1e-10  # the noise, over the gap between energies


def test_directions_are_scaled_up_to_three_tenths_of_the_largest_and_no_further() -> None:
    """The energy that is left of a direction of size d beside one of size 1 is (d / 0.3)² below 0.3, 1 above."""
    directions = torch.linalg.qr(torch.randn(27, 3, dtype=torch.float64)).Q.mT
    sizes = torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64)
    steered = (sizes[:, None] * directions).view(3, 1, 3, 9)
    units = weight_units(steered, 2, None)
    energy = torch.einsum("rp,paib->raib", units, steered).square().sum((1, 2, 3))
    assert torch.allclose(energy.sort().values, torch.tensor([(0.2 / 0.3) ** 2, 1, 1], dtype=torch.float64))
