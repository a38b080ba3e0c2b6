"""Training and eval mode of a network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

__all__ = ["in_eval_mode"]


@contextlib.contextmanager
def in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Eval mode for a while; every module gets its own mode back."""
    modes = {module: module.training for module in network.modules()}
    try:
        network.eval()
        yield
    finally:
        # From the outside in, as train(mode) goes on to the modules inside.
        for module, mode in modes.items():
            module.train(mode)
