"""Two rules say what a layer remembers.

Constants, which depend on no tensor of the state dict, are made once and are buffers outside of it
(:class:`~escnn_relaxed.group.exact_constants.ExactConstants`). In evaluation on the CPU the filter banks are kept while
all tensors of the state have the same values. Version counters would miss writes through ``.data``, NumPy or fused
optimisers. On an accelerator a comparison would wait, so filter banks are made anew; an export has them for good.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..torch_modes import has_no_values, has_tangents, has_values, is_traced, reads_without_waiting, untraced

__all__ = ["EvaluationMemo"]

_Result = TypeVar("_Result")

# Filter banks are large: those of the last two sizes of image are kept.
_KEPT = 2


class EvaluationMemo:
    """The last results of a module, returned again in evaluation while the values of its state are the same."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Tensor, Any]] = {}

    def __call__(self, module: nn.Module, build: Callable[[], _Result], *setting: Hashable) -> _Result:
        """Return the result of ``build``, which depends on the state of a module and on a setting alone."""
        if module.training or has_no_values() or has_tangents():
            return build()
        if is_traced():
            # A trace in evaluation holds the result as a constant, as a trace of R2Conv holds its filter.
            with untraced(), torch.no_grad():
                return self(module, build, *setting)
        tensors = _state(module)
        is_learned = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if is_learned or not all(has_values(tensor) and reads_without_waiting(tensor) for tensor in tensors):
            return build()
        values = torch.cat([tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors])
        key = torch.is_inference_mode_enabled(), *setting
        before, result = self._known.get(key, (None, None))
        if before is None or not torch.equal(before, values):
            result = build()
            others = [item for item in self._known.items() if item[0] != key][1 - _KEPT :]
            self._known = {**dict(others), key: (values, result)}
        return result  # type: ignore[return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of a layer starts without results.
        return EvaluationMemo, ()


def _state(module: nn.Module) -> list[Tensor]:
    """Return all tensors of the state dict of a module."""
    tensors: list[Any] = []
    for of in module.modules():
        tensors += of._parameters.values()
        tensors += [buffer for name, buffer in of._buffers.items() if name not in of._non_persistent_buffers_set]
    return [tensor for tensor in tensors if tensor is not None]
