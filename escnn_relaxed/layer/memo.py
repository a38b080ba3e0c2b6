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

from .. import torch_modes
from ..torch_modes import has_no_values, has_tangents, has_values, is_traced, untraced

_Result = TypeVar("_Result")
_KEPT = 2  # filter banks are large: those of the last two sizes of image are kept


class EvaluationMemo:
    """The last results of a module, returned again in evaluation while the values of its state are the same."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Tensor, Any]] = {}

    def __call__(self, module: nn.Module, build: Callable[..., _Result], *setting: Hashable) -> _Result:
        """Return the result of ``build(*setting)``, which depends on the state of a module and on the setting alone."""
        if has_no_values() or has_tangents():
            return build(*setting)
        if is_traced():
            # A trace in evaluation holds the result as a constant, as a trace of R2Conv holds its filter.
            with untraced(), torch.no_grad():
                return self(module, build, *setting)
        tensors, is_learned = _state(module)
        can_compare = has_values(*tensors) and torch_modes.reads_without_waiting(*tensors)
        if not can_compare or (is_learned and torch.is_grad_enabled()):
            return build(*setting)
        values = torch.cat(tensors)
        key = torch.is_inference_mode_enabled(), *setting
        before, result = self._known.get(key, (None, None))
        if before is None or not torch.equal(before, values):
            result = build(*setting)
            others = [item for item in self._known.items() if item[0] != key][1 - _KEPT :]
            self._known = {**dict(others), key: (values, result)}
        return result  # type: ignore[return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of a layer starts without results.
        return EvaluationMemo, ()


def _state(module: nn.Module) -> tuple[list[Tensor], bool]:
    """Return the bytes of all tensors of the state dict of a module, and whether any wants a gradient."""
    tensors: list[Tensor] = []
    is_learned = False
    for part in module.modules():
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None and name not in part._non_persistent_buffers_set:
                tensors.append(tensor if tensor.is_meta else tensor.detach().reshape(-1).view(torch.uint8))
                is_learned |= tensor.requires_grad
    for tensor in vars(module).values():
        # Weights may be plain tensors, which another network makes.
        if isinstance(tensor, Tensor):
            tensors.append(tensor.detach().reshape(-1).view(torch.uint8))
            is_learned |= tensor.requires_grad
    return tensors, is_learned
