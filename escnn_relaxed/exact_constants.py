"""Constants that stay exact: float64 masters behind non-persistent buffers.

Coordinates and representation matrices are known to float64. A buffer that was cast to float32 and
back with ``.double()`` would not be; here every cast starts from the float64 master again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["ExactConstants"]


class ExactConstants(nn.Module):
    """A module whose constants follow ``.to()`` and ``.double()`` without losing digits.

    Constants are not state: they are derived from the arguments of the layer and stay out of the state dict.

    Example:
        >>> import numpy as np
        >>> constants = ExactConstants()
        >>> constants.set_constant("third", np.array([1 / 3]))
        >>> constants.double().third.item() == 1 / 3
        True
    """

    def __init__(self) -> None:
        super().__init__()
        self._masters: dict[str, Tensor] = {}

    def set_constant(self, name: str, value: NDArray[Any]) -> None:
        """Add or replace the constant ``name``; floating values take torch's default dtype.

        Args:
            name: the attribute under which the tensor is found.
            value: a float64 or integer array.
        """
        master = torch.from_numpy(np.ascontiguousarray(value))
        present = self._buffers.get(name)
        if present is not None:
            tensor = master.to(present)
        else:
            tensor = master.to(torch.get_default_dtype()) if master.is_floating_point() else master.clone()
        self._masters[name] = master
        self.register_buffer(name, tensor, persistent=False)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> ExactConstants:
        super()._apply(fn, recurse)
        for name, master in self._masters.items():
            cast = getattr(self, name)
            setattr(self, name, master.to(device=cast.device, dtype=cast.dtype))
        return self
