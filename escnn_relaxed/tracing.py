"""Whether tensors have values that Python may look at."""

from __future__ import annotations

import torch

__all__ = ["has_no_values", "is_traced"]


def has_no_values() -> bool:
    """True while torch compiles or exports, and under the transforms of ``torch.func``."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


def is_traced() -> bool:
    """True under ``torch.jit.trace``, which must see the same operations each time."""
    return torch._C._is_tracing()
