"""What a layer remembers: constants that stay exact, and in evaluation its filters.

Coordinates and representation matrices are known to float64. Values that were cast to float32 and back with
``.double()`` would not be; here every cast starts from the float64 master again. The casts are plain tensors and no
buffers, so nothing averages, loads or saves them.

Filter banks are kept in evaluation on the CPU while all tensors of the state have the same values. Version counters
would miss writes through ``.data``, NumPy or fused optimisers. On an accelerator a comparison would wait, so filter
banks are made anew there; an export has them for good.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from operator import is_
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import torch_modes
from ..torch_modes import has_no_values, has_tangents, has_values, is_traced, untraced

_Result = TypeVar("_Result")
# Images of so many sizes may alternate before something is made anew.
_MOST_REMEMBERED = 16
# Filter banks are large: those of the last two sizes of image are kept.
_KEPT = 2
# Larger tensors are compared in words of eight bytes, which takes half as long as single numbers.
_LARGE = 2**12


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

    def single(self, name: str) -> Tensor:
        """Return the values of the constant ``name`` for dtypes below float64, in main memory, not to be written to."""
        return self._singles.get(name, self._masters[name])

    def constant(self, name: str) -> Tensor:
        """Return the constant ``name`` in the dtype and on the device of the module."""
        return getattr(self, name)

    def remembered(self, key: Hashable, build: Callable[[], _Result]) -> _Result:
        """Return the result of ``build``, tensors that follow from constants and a setting; the last few are kept."""
        if key not in self._remembered:
            with _as_constants():
                result = build()
            while len(self._remembered) >= _MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[key] = result
        return self._remembered[key]

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


class EvaluationMemo:
    """The last results of a module, returned again in evaluation while the values of its state are the same."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[list[Tensor], Any]] = {}
        self._places: _TensorPlaces | None = None

    def __call__(self, module: nn.Module, build: Callable[..., _Result], *setting: Hashable) -> _Result:
        """Return the result of ``build(*setting)``, which depends on the state of a module and on the setting alone."""
        if has_no_values() or has_tangents():
            return build(*setting)
        if is_traced():
            # A trace in evaluation holds the result as a constant, as a trace of R2Conv holds its filter.
            with untraced(), torch.no_grad():
                return self(module, build, *setting)
        if self._places is None or not self._places.are_those_of_now():
            self._places = _TensorPlaces(module)
        state = self._places.comparable_tensors()
        if state is None or (torch.is_grad_enabled() and any([tensor.requires_grad for tensor in state])):
            return build(*setting)
        key = torch.is_inference_mode_enabled(), *setting
        before, result = self._known.get(key, (None, None))
        words = [_words(tensor) for tensor in state]
        if before is None or len(before) != len(words) or not all(map(torch.equal, before, words)):
            result = build(*setting)
            others = [item for item in self._known.items() if item[0] != key][1 - _KEPT :]
            self._known = {**dict(others), key: ([word.clone() for word in words], result)}
        return result  # type: ignore[return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of a layer starts without results.
        return EvaluationMemo, ()


class _TensorPlaces:
    """Where the tensors are that what a module computes may depend on, so that a call need not look for them."""

    def __init__(self, module: nn.Module) -> None:
        parts = [*module.modules()]
        # What makes parametrized weights may have settings that are no tensors.
        self._is_parametrized = any(["parametrizations" in part._modules for part in parts])
        self._children = [(part._modules, name, child) for part in parts for name, child in part._modules.items()]
        # Weights may be plain tensors, which another network makes.
        self._places: list[tuple[Any, str]] = [
            (values, name)
            for part in parts
            for values in (part._parameters, part._buffers, vars(part))
            for name, value in values.items()
            if isinstance(value, Tensor) and not (isinstance(part, ExactConstants) and name in part.constants)
        ]
        self._dictionaries: list[Any] = [
            values for part in parts for values in (part._parameters, part._buffers, vars(part), part._modules)
        ]
        self._sizes = [*map(len, self._dictionaries)]
        self._compared: list[Tensor] = []

    def are_those_of_now(self) -> bool:
        """Whether the module has the same parts and attributes still."""
        return [*map(len, self._dictionaries)] == self._sizes and all(
            [values.get(name) is child for values, name, child in self._children]
        )

    def comparable_tensors(self) -> list[Tensor] | None:
        """Return the tensors; None where something else makes them anew, or reading them would wait."""
        if self._is_parametrized:
            return None
        found = [value for value in [values[name] for values, name in self._places] if value is not None]
        if len(found) != len(self._compared) or not all(map(is_, found, self._compared)):
            # The same tensors stay where they are.
            self._compared = found if has_values(*found) and torch_modes.reads_without_waiting(*found) else []
        return found if len(self._compared) == len(found) else None


def _words(tensor: Tensor) -> Tensor:
    # Slices of a vector of all parameters may begin or end within a word.
    ends = tensor.storage_offset() | tensor.numel()
    if tensor.numel() < _LARGE or not tensor.is_contiguous() or ends * tensor.element_size() % 8:
        return tensor
    return tensor.view(-1).view(torch.int64)
