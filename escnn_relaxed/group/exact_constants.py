"""Constants that stay exact: float64 masters, cast to the device and dtype of their module.

Coordinates and representation matrices are known to float64. Values that were cast to float32 and back with
``.double()`` would not be; here every cast starts from the master again. The casts are plain tensors and no buffers,
so nothing averages, loads or saves them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..torch_modes import untraced

_Result = TypeVar("_Result")
# Images of so many sizes may alternate before something is made anew.
_MOST_REMEMBERED = 16


class ExactConstants(nn.Module):
    """A module whose constants, which are not state, follow ``.to()`` and ``.double()`` without losing digits."""

    def __init__(self) -> None:
        super().__init__()
        self.constants = {"like"}  # the names of all attributes that are constants
        self._masters: dict[str, Tensor] = {}
        self._singles: dict[str, Tensor] = {}
        self.like = torch.empty(0)  # of the dtype and on the device of the constants
        self._remembered: dict[Hashable, Any] = {}

    def set_constant(self, name: str, value: NDArray[Any] | Tensor, single: NDArray[Any] | None = None) -> None:
        """Add or replace a constant; ``single`` are other values for dtypes below float64."""
        self._masters[name] = value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
        self.constants.add(name)
        self._singles.pop(name, None)
        if single is not None:
            self._singles[name] = torch.from_numpy(np.ascontiguousarray(single))
        setattr(self, name, self._cast(name))

    def exact(self, name: str) -> Tensor:
        """Return the float64 or integer values of the constant ``name``, in main memory, not to be written to."""
        return self._masters[name]

    def constant(self, name: str) -> Tensor:
        """Return the constant ``name`` in the dtype and on the device of the module."""
        value: Tensor = getattr(self, name)
        return value

    def remembered(self, key: Hashable, build: Callable[[], _Result]) -> _Result:
        """Return the result of ``build``, tensors that follow from constants and a setting; the last few are kept."""
        if key not in self._remembered:
            with _as_constants():
                result = build()
            while len(self._remembered) >= _MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[key] = result
        found: _Result = self._remembered[key]
        return found

    def _cast(self, name: str) -> Tensor:
        with _as_constants():
            source = self._masters[name]
            if not source.is_floating_point():
                return source.to(self.like.device, copy=True)
            if self.like.dtype != torch.float64:
                source = self._singles.get(name, source)
            return source.to(self.like, copy=True)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> ExactConstants:
        super()._apply(fn, recurse)
        self.like = fn(self.like)
        self._cast_all()
        return self

    def _cast_all(self) -> None:
        self._remembered = {}
        for name in self._masters:
            setattr(self, name, self._cast(name))

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a file holds each constant once.
        own = {name: value for name, value in self.__dict__.items() if name not in self._masters}
        return {**own, "_remembered": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._cast_all()


@contextlib.contextmanager
def _as_constants() -> Iterator[None]:
    """Make tensors in a ``with`` block that training can use, though it is made under inference mode or a trace."""
    with torch.inference_mode(False), torch.no_grad(), untraced():
        yield


def follow(module: nn.Module, like: Tensor) -> None:
    """Move the constants of a module and its parts to the device and the precision of a tensor."""
    for part in module.modules():
        if isinstance(part, ExactConstants):
            part.like = torch.empty(0, dtype=like.dtype, device=like.device)
            part._cast_all()
