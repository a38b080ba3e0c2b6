"""Two rules say what a layer remembers.

Constants, which depend on no tensor that learns, are made once and are outside of the state dict
(:class:`~escnn_relaxed.group.exact_constants.ExactConstants`). In evaluation on the CPU the filter banks are kept while
all tensors of the state have the same values. Version counters would miss writes through ``.data``, NumPy or fused
optimisers. On an accelerator a comparison would wait, so filter banks are made anew; an export has them for good.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .. import torch_modes
from ..group.exact_constants import ExactConstants
from ..torch_modes import has_no_values, has_tangents, has_values, is_traced, untraced

_Result = TypeVar("_Result")
_KEPT = 2  # filter banks are large: those of the last two sizes of image are kept


class EvaluationMemo:
    """The last results of a module, returned again in evaluation while the values of its state are the same."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[list[Tensor], Any]] = {}

    def __call__(self, module: nn.Module, build: Callable[..., _Result], *setting: Hashable) -> _Result:
        """Return the result of ``build(*setting)``, which depends on the state of a module and on the setting alone."""
        if has_no_values() or has_tangents():
            return build(*setting)
        if is_traced():
            # A trace in evaluation holds the result as a constant, as a trace of R2Conv holds its filter.
            with untraced(), torch.no_grad():
                return self(module, build, *setting)
        state = _state(module)
        if state is None or not has_values(*state) or not torch_modes.reads_without_waiting(*state):
            return build(*setting)
        if torch.is_grad_enabled() and any([tensor.requires_grad for tensor in state]):
            return build(*setting)
        key = torch.is_inference_mode_enabled(), *setting
        before, result = self._known.get(key, (None, None))
        if before is None or not _are_equal(before, state):
            result = build(*setting)
            others = [item for item in self._known.items() if item[0] != key][1 - _KEPT :]
            self._known = {**dict(others), key: ([tensor.detach().clone() for tensor in state], result)}
        return result  # type: ignore[return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of a layer starts without results.
        return EvaluationMemo, ()


def _state(module: nn.Module) -> list[Tensor] | None:
    """Return all tensors that what a module computes may depend on; None where something else may make them anew."""
    tensors: list[Tensor] = []
    for part in module.modules():
        if "parametrizations" in part._modules:
            # What makes the weights may have settings that are no tensors.
            return None
        constants = part._masters if isinstance(part, ExactConstants) else ()
        tensors += [tensor for tensor in part._parameters.values() if tensor is not None]
        tensors += [tensor for tensor in part._buffers.values() if tensor is not None]
        # Weights may be plain tensors, which another network makes.
        tensors += [
            value for name, value in part.__dict__.items() if isinstance(value, Tensor) and name not in constants
        ]
    return tensors


# Whole words are compared about seven times faster than bytes.
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _are_equal(before: list[Tensor], now: list[Tensor]) -> bool:
    """Whether tensors have the same bits, NaN and the sign of 0 too."""
    return len(before) == len(now) and all(
        [
            first.dtype == second.dtype and torch.equal(_words(first), _words(second))
            for first, second in zip(before, now, strict=True)
        ]
    )


def _words(tensor: Tensor) -> Tensor:
    return tensor if not tensor.is_floating_point() else tensor.detach().view(_WORDS[tensor.element_size()])
