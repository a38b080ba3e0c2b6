"""Constants of a layer that are not part of its state and stay exact.

Coordinates and representation matrices are known to float64. Values that were cast to float32 and back with
``.double()`` would not be; here every cast starts from the float64 master again. The casts are plain tensors and no
buffers, so nothing averages, loads or saves them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..torch_modes import untraced

_Result = TypeVar("_Result")
# A constant: a tensor, or one for each of some keys.
Constant = Tensor | dict[Hashable, Tensor]
# Images of so many sizes may alternate before something is made anew.
_MOST_REMEMBERED = 16


class ExactConstants(nn.Module):
    """Base of modules whose constants, which are not state, follow ``.to()`` and ``.double()`` without losing digits.

    A constant is an attribute, a tensor or a dict of tensors. ``exact`` has the same attributes in float64, or with
    integers, in main memory; they are not to be written to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.exact = SimpleNamespace()
        self._singles: dict[str, Constant] = {}
        self.like = torch.empty(0)  # of the dtype and on the device of the constants
        self._remembered: dict[Hashable, Any] = {}

    def set_constant(self, name: str, value: Any, single: Any = None) -> None:
        """Add or replace a constant, an array or a dict of arrays; ``single`` are other values below float64."""
        setattr(self.exact, name, _as_constant(value))
        self._singles.pop(name, None)
        if single is not None:
            self._singles[name] = _as_constant(single)
        setattr(self, name, self._cast(name))

    def is_constant(self, name: str) -> bool:
        """Return whether an attribute is a constant."""
        return name == "like" or hasattr(self.exact, name)

    @property
    def single(self) -> SimpleNamespace:
        """The constants for dtypes below float64, in main memory, not to be written to."""
        return SimpleNamespace(**{**vars(self.exact), **self._singles})

    def remembered(self, key: Hashable, build: Callable[[], _Result]) -> _Result:
        """Return the result of ``build``, tensors that follow from constants and a setting; the last few are kept."""
        if key not in self._remembered:
            with _as_constants():
                result = build()
            while len(self._remembered) >= _MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[key] = result
        return self._remembered[key]

    def _cast(self, name: str) -> Constant:
        source: Constant = getattr(self.exact, name)
        if self.like.dtype != torch.float64:
            source = self._singles.get(name, source)
        with _as_constants():
            if isinstance(source, Tensor):
                return self._cast_tensor(source)
            return {key: self._cast_tensor(value) for key, value in source.items()}

    def _cast_tensor(self, source: Tensor) -> Tensor:
        to = self.like if source.is_floating_point() else self.like.device
        return source.to(to, copy=True)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> ExactConstants:
        super()._apply(fn, recurse)
        self.like = fn(self.like)
        self._cast_all()
        return self

    def _cast_all(self) -> None:
        self._remembered = {}
        for name in vars(self.exact):
            setattr(self, name, self._cast(name))

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a file holds each constant once.
        own = {name: value for name, value in self.__dict__.items() if not hasattr(self.exact, name)}
        return {**own, "_remembered": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._cast_all()


def _as_constant(value: Any) -> Constant:
    """Return a tensor of an array, or a dict of tensors of a mapping to arrays."""
    if isinstance(value, Mapping):
        return {key: _as_tensor(part) for key, part in value.items()}
    return _as_tensor(value)


def _as_tensor(value: NDArray[Any] | Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))


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
