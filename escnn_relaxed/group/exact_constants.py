"""Constants that stay exact: float64 masters behind non-persistent buffers.

Coordinates and representation matrices are known to float64. A buffer that was cast to float32 and
back with ``.double()`` would not be; here every cast starts from the float64 master again. So does a change between
training and evaluation where something wrote to the buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..torch_modes import has_values


class ExactConstants(nn.Module):
    """A module whose constants, which are not state, follow ``.to()`` and ``.double()`` without losing digits."""

    def __init__(self) -> None:
        super().__init__()
        self._masters: dict[str, Tensor] = {}
        self._singles: dict[str, Tensor] = {}

    def set_constant(self, name: str, value: NDArray[Any], single: NDArray[Any] | None = None) -> None:
        """Add or replace a constant; ``single`` are other values for dtypes below float64."""
        master = torch.from_numpy(np.ascontiguousarray(value))
        self._masters[name] = master
        self._singles.pop(name, None)
        if single is not None:
            self._singles[name] = torch.from_numpy(np.ascontiguousarray(single))
        present = self._buffers.get(name)
        dtype = torch.get_default_dtype() if master.is_floating_point() else master.dtype
        like = torch.empty(0, dtype=dtype) if present is None else present
        self.register_buffer(name, self._cast(name, like), persistent=False)

    def exact(self, name: str) -> Tensor:
        """Return the float64 or integer values of the constant ``name``, in main memory, not to be written to."""
        return self._masters[name]

    def _cast(self, name: str, like: Tensor, copy: bool = True) -> Tensor:
        source = self._masters[name]
        if like.dtype != torch.float64:
            source = self._singles.get(name, source)
        return source.to(device=like.device, dtype=like.dtype, copy=copy)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> ExactConstants:
        super()._apply(fn, recurse)
        for name in self._masters:
            setattr(self, name, self._cast(name, getattr(self, name)))
        return self

    def follow(self, like: Tensor) -> None:
        """Move the constants to the device and the precision of a tensor."""
        for name, master in self._masters.items():
            dtype = like.dtype if master.is_floating_point() else master.dtype
            setattr(self, name, self._cast(name, torch.empty(0, dtype=dtype, device=like.device)))

    def train(self, mode: bool = True) -> ExactConstants:
        """Set the mode; constants that were written to, as averages of models do, are set again."""
        super().train(mode)
        for name in self._masters:
            buffer: Tensor = getattr(self, name)
            if has_values(buffer) and not torch.equal(self._cast(name, buffer, copy=False), buffer):
                setattr(self, name, self._cast(name, buffer))
        return self


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
        return rows.index_select(-2, self.order)
