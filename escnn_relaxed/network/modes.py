"""A context in which a network is in eval mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

__all__ = ["in_eval_mode"]


@contextlib.contextmanager
def in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network into eval mode; every module gets its own mode back afterwards."""
    modes = {module: module.training for module in network.modules()}
    try:
        network.eval()
        yield
    finally:
        # train(mode) also sets the modules inside, so outer modules come first.
        for module, mode in modes.items():
            module.train(mode)
