"""Two rules say what a layer remembers.

Constants, which depend on no tensor that learns, are made once and are outside of the state dict
(:class:`~escnn_relaxed.group.exact_constants.ExactConstants`). In evaluation on the CPU the filter banks are kept while
all tensors of the state have the same values. Version counters would miss writes through ``.data``, NumPy or fused
optimisers. On an accelerator a comparison would wait, so filter banks are made anew; an export has them for good.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
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
        parts = tuple(module.modules())
        state = _comparable_tensors(parts)
        if state is None or (torch.is_grad_enabled() and any([tensor.requires_grad for tensor in state])):
            return build(*setting)
        # The module itself is left out, since it would hold itself.
        key = torch.is_inference_mode_enabled(), *parts[1:], *setting
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


def _comparable_tensors(parts: Sequence[nn.Module]) -> list[Tensor] | None:
    """Return the tensors of modules; None where something else makes them anew, or reading them would wait."""
    found: list[Tensor] = []
    for part in parts:
        if "parametrizations" in part._modules:
            return None  # what makes weights may have settings that are no tensors
        constants = part.constants if isinstance(part, ExactConstants) else ()
        # Weights may be plain tensors, which another network makes.
        for values in (part._parameters, part._buffers, part.__dict__):
            for name, value in values.items():
                if isinstance(value, Tensor) and name not in constants:
                    found.append(value)
    return found if has_values(*found) and torch_modes.reads_without_waiting(*found) else None


# Larger tensors are compared in words of eight bytes, which takes half as long as single numbers.
_LARGE = 2**12


def _words(tensor: Tensor) -> Tensor:
    # Slices of a vector of all parameters may begin or end within a word.
    ends = tensor.storage_offset() | tensor.numel()
    if tensor.numel() < _LARGE or not tensor.is_contiguous() or ends * tensor.element_size() % 8:
        return tensor
    return tensor.view(-1).view(torch.int64)
