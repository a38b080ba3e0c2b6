"""Rows of taps in another order, forward and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from escnn_relaxed.group.channels import RowOrder, take_rows

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


# torch itself scripts its decompositions.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_forward_mode_and_vmap_go_through(rows: torch.Tensor) -> None:
    order = RowOrder(ORDER)
    with forward_ad.dual_level():
        found = order(forward_ad.make_dual(rows, torch.ones_like(rows)))
        assert torch.equal(forward_ad.unpack_dual(found).tangent, torch.ones_like(rows))
    assert torch.equal(torch.vmap(order)(rows), order(rows))


def test_places_of_any_row_between_change_no_gradient() -> None:
    """Nothing may depend on their values: here they are cut away again."""
    order, inverse = torch.tensor([1, 0, 0, 2]), torch.tensor([1, 0, 3])
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    kept = torch.tensor([[1.0], [1.0], [0.0], [1.0]], dtype=torch.float64)

    def squares(rows: torch.Tensor) -> torch.Tensor:
        return (take_rows(rows, order, inverse) * kept).square()

    assert gradcheck(squares, (values,))
    assert gradgradcheck(squares, (values,))
