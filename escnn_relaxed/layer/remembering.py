"""A module with a store of results, which are dropped whenever the module changes as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..group.remembered import Remembered, StateTensors
from ..torch_modes import has_no_values, is_traced, untraced

__all__ = ["RememberingModule"]

Result = TypeVar("Result")


class RememberingModule(nn.Module):
    """A module that keeps results for evaluation. It drops them when it changes mode, device or dtype, or loads."""

    def __init__(self) -> None:
        super().__init__()
        self._remembered = Remembered()
        # Filter banks are large: those of the last two sizes of image.
        self._banks = Remembered(size=2)
        self._state = StateTensors()

    def _remember(self, build: Callable[[], Result], *setting: object) -> Result:
        """The result of ``build``; in eval mode the last one, unless a gradient is wanted or a value changed.

        A trace of a module in eval mode holds the result as a constant, as a trace of ``R2Conv`` holds its filter.

        Args:
            build: makes the result, a tensor or a tuple, of the tensors of the module.
            *setting: all that it depends on beside these.
        """
        if self.training or has_no_values():
            return build()
        if is_traced():
            with untraced(), torch.no_grad():
                return self._remember(build, *setting)
        return self._banks.get(setting, build, self._state(self), may_wait=True)

    def _forget(self) -> None:
        self._banks.clear()
        self._remembered.drop()

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and drop the results."""
        self._forget()
        return super().train(mode)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        self._forget()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._forget()
        super()._load_from_state_dict(*arguments)
