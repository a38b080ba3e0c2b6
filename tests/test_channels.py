"""Rows of taps in another order, forward and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from escnn_relaxed.group.channels import RowOrder

ORDER = np.array([3, 0, 4, 1, 2])


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)


def test_every_place_takes_its_row(rows: torch.Tensor) -> None:
    found = RowOrder(ORDER)(rows)
    assert torch.equal(found, torch.stack([rows[:, number] for number in ORDER], dim=1))


def test_gradients_are_those_of_finite_differences(rows: torch.Tensor) -> None:
    order = RowOrder(ORDER)
    assert gradcheck(lambda values: order(values).square(), (rows,))
    assert gradgradcheck(lambda values: order(values).square(), (rows,))


# What torch itself scripts for its decompositions.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_forward_mode_and_vmap_go_through(rows: torch.Tensor) -> None:
    order = RowOrder(ORDER)
    with forward_ad.dual_level():
        found = order(forward_ad.make_dual(rows, torch.ones_like(rows)))
        assert torch.equal(forward_ad.unpack_dual(found).tangent, torch.ones_like(rows))
    assert torch.equal(torch.vmap(order)(rows), order(rows))
