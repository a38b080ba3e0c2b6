"""The order of the rows of a filter bank: a gather forwards and a gather backwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..torch_modes import has_no_values
from .exact_constants import ExactConstants

__all__ = ["RowOrder"]


class RowOrder(ExactConstants):
    """A permutation of rows of taps, (…, rows, T), given the number of the row that goes to each place."""

    order: Tensor
    inverse: Tensor

    def __init__(self, order: NDArray[np.int64]) -> None:
        super().__init__()
        self.set_constant("order", order)
        self.set_constant("inverse", np.argsort(order))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows in the new order: (…, rows, T) → the same shape."""
        if has_no_values() or not (rows.requires_grad and torch.is_grad_enabled()):
            return rows.index_select(-2, self.order)
        ordered: Tensor = _Gather.apply(rows, self.order, self.inverse)
        return ordered


class _Gather(torch.autograd.Function):
    """``index_select`` by a permutation. Its gradient is another ``index_select``, which adds nothing up."""

    @staticmethod
    def forward(rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        return rows.index_select(-2, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        _, order, inverse = inputs
        ctx.save_for_backward(order, inverse)
        ctx.save_for_forward(order, inverse)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        order, inverse = ctx.saved_tensors
        return _Gather.apply(gradients[0], inverse, order), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        order, inverse = ctx.saved_tensors
        return _Gather.apply(tangents[0], order, inverse)
