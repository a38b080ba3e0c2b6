"""Modes of torch: tracing, compiling, casting. Runs without escnn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def full_precision(like: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which ``torch.autocast`` casts nothing on the device of ``like``."""
    # The meta device has no autocast.
    return contextlib.nullcontext() if like.is_meta else torch.autocast(like.device.type, enabled=False)


def has_no_values() -> bool:
    """True while torch compiles or exports, and under the transforms of ``torch.func``."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


def has_values(*tensors: Tensor) -> bool:
    """Whether the values of tensors can be read here: not on the meta device, nor where each process has a part."""
    for tensor in tensors:
        if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) or tensor.is_meta:
            return False
    return not has_no_values()


def reads_without_waiting(*tensors: Tensor) -> bool:
    """Whether the values of tensors can be read at once, in main memory and not in that of an accelerator."""
    return all([tensor.device.type == "cpu" for tensor in tensors])


def has_tangents() -> bool:
    """True in forward-mode differentiation, under ``torch.autograd.forward_ad``."""
    return forward_ad._current_level >= 0


def is_traced() -> bool:
    """True under ``torch.jit.trace``, which must see the same operations each time."""
    return torch._C._is_tracing()


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Make results that are computed in a ``with`` block constants to ``torch.jit.trace``."""
    state, set_state = torch._C._get_tracing_state(), torch._C._set_tracing_state  # type: ignore[attr-defined]
    set_state(None)
    try:
        yield
    finally:
        set_state(state)
