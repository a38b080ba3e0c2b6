"""Memo of a layer's filters in eval mode, valid while no tensor of its state changes.

Version counters would miss writes through ``.data``, NumPy or fused optimisers, so values are compared. On an
accelerator a comparison would wait, so filter banks are made anew there; an export has them for good.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import is_
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .. import torch_modes
from ..torch_modes import has_no_values, has_tangents, has_values, is_traced, untraced
from .exact_constants import ExactConstants

_Result = TypeVar("_Result")
# Filter banks are large: those of the last two sizes of image are kept.
_KEPT = 2
# Larger tensors are compared in words of eight bytes, which takes half as long as single numbers.
_LARGE = 2**12


class EvaluationMemo:
    """Memo of the last results of a module in eval mode, valid while no value of its state changes."""

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
    """Locations of all tensors that the result of a module may depend on, found once."""

    def __init__(self, module: nn.Module) -> None:
        modules = [*module.modules()]
        # What makes parametrized weights may have settings that are no tensors.
        self._is_parametrized = any(["parametrizations" in part._modules for part in modules])
        self._children: list[tuple[Any, str, Any]] = [
            (part._modules, name, child) for part in modules for name, child in part._modules.items()
        ]
        # Weights may be plain tensors, which another network makes.
        self._places: list[tuple[Any, Any]] = [
            (values, name)
            for part in modules
            for values in (part._parameters, part._buffers, vars(part))
            for name, value in values.items()
            if isinstance(value, Tensor) and not (isinstance(part, ExactConstants) and part.is_constant(name))
        ]
        self._dictionaries: list[Any] = [
            values for part in modules for values in (part._parameters, part._buffers, vars(part), part._modules)
        ]
        # Tensors in a Python list are in no state, but a kernel may compute with them.
        for part in modules:
            for name, value in vars(part).items():
                if isinstance(value, (list, tuple)):
                    for number, entry in enumerate(value):
                        if isinstance(entry, Tensor):
                            self._places.append((value, number))
                            self._children.append((vars(part), name, value))
                            self._dictionaries.append(value)
        self._sizes = [*map(len, self._dictionaries)]
        self._compared: list[Tensor] = []

    def are_those_of_now(self) -> bool:
        """Return whether the module still has the same submodules and attributes."""
        return [*map(len, self._dictionaries)] == self._sizes and all(
            [values.get(name) is child for values, name, child in self._children]
        )

    def comparable_tensors(self) -> list[Tensor] | None:
        """Return the tensors; None if a parametrization computes them, or reading them would synchronise the device."""
        if self._is_parametrized:
            return None
        tensors = [value for value in [values[name] for values, name in self._places] if value is not None]
        if len(tensors) != len(self._compared) or not all(map(is_, tensors, self._compared)):
            # The same tensors stay where they are.
            self._compared = tensors if has_values(*tensors) and torch_modes.reads_without_waiting(*tensors) else []
        return tensors if len(self._compared) == len(tensors) else None


def _words(tensor: Tensor) -> Tensor:
    if (numel := tensor.numel()) < _LARGE or not tensor.is_contiguous():
        return tensor
    # Slices of a vector of all parameters may begin or end within a word.
    is_whole = (tensor.storage_offset() | numel) * tensor.element_size() % 8 == 0
    return tensor.view(-1).view(torch.int64) if is_whole else tensor
