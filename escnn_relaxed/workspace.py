"""Memory that is used again and again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

__all__ = ["Workspace"]


class Workspace:
    """Memory that one tile after another uses: fresh pages would cost more than what is written to them."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def get(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """An uninitialised tensor; what was got before under this name is lost."""
        size = math.prod(shape)
        if name not in self._memory or self._memory[name].numel() < size:
            self._memory[name] = like.new_empty(size)
        return self._memory[name][:size].view(*shape)
