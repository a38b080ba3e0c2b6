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
    """Return a context that disables ``torch.autocast`` on the device of ``like``."""
    # The meta device has no autocast.
    return contextlib.nullcontext() if like.is_meta else torch.autocast(like.device.type, enabled=False)


def has_no_values() -> bool:
    """Return True while torch compiles or exports, and under the transforms of ``torch.func``."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


def has_values(*tensors: Tensor) -> bool:
    """Return whether the values of tensors can be read: not on the meta device, nor sharded over processes."""
    for tensor in tensors:
        if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) or tensor.is_meta:
            return False
    return not has_no_values()


def reads_without_waiting(*tensors: Tensor) -> bool:
    """Return whether the values of tensors can be read without synchronising, being in main memory."""
    return all([tensor.device.type == "cpu" for tensor in tensors])


def has_tangents() -> bool:
    """Return True in forward-mode differentiation, under ``torch.autograd.forward_ad``."""
    return forward_ad._current_level >= 0


def is_traced() -> bool:
    """Return True under ``torch.jit.trace``, which must see the same operations each time."""
    return torch._C._is_tracing()


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Make results computed in a ``with`` block constants for ``torch.jit.trace``."""
    state, set_state = torch._C._get_tracing_state(), torch._C._set_tracing_state  # type: ignore[attr-defined]
    set_state(None)
    try:
        yield
    finally:
        set_state(state)
