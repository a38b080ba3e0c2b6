"""What is made of constants, made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..torch_modes import has_no_values, is_traced

__all__ = ["Remembered"]


class Remembered:
    """The last result of a function of tensors, as long as these are the same and nothing was written to them.

    A result that is made anew and comes out the same is given as the old tensors: a captured CUDA graph reads these by
    their address.

    It is not state: copies and pickles of it are empty.

    Example:
        >>> remembered = Remembered()
        >>> angles = torch.zeros(2)
        >>> remembered.get(lambda: (angles.cos(),), [angles])[0] is remembered.get(
        ...     lambda: (angles.sin(),), [angles]
        ... )[0]
        True
        >>> angles += 1
        >>> round(remembered.get(lambda: (angles.cos(),), [angles])[0][0].item(), 4)
        0.5403
    """

    def __init__(self) -> None:
        # By setting: what it was made of, and the result.
        self._entries: dict[Hashable, tuple[list[tuple[Tensor, int]], tuple[Any, ...]]] = {}
        # A captured CUDA graph reads results by their address: equal ones stay where they are.
        self._forgotten: dict[Hashable, tuple[Any, ...]] = {}

    def get(
        self, build: Callable[[], tuple[Any, ...]], sources: Sequence[Tensor], setting: Hashable = None
    ) -> tuple[Any, ...]:
        """What ``build`` gives, the last time or now; always now where a gradient of the sources is wanted.

        Args:
            build: makes the result of the sources.
            sources: all tensors that it depends on.
            setting: all else that it depends on.
        """
        if has_no_values() or is_traced() or any(s.requires_grad or s.is_inference() for s in sources):
            return build()
        entry = self._entries.get(setting)
        if entry is not None and _are_unchanged(entry[0], sources):
            return entry[1]
        versions = [(source, source._version) for source in sources]
        # Normal tensors, even where inference_mode is on: they may be used outside of it later.
        with torch.inference_mode(False), torch.no_grad():
            result = build()
            forgotten = self._forgotten.pop(setting, None)
            if forgotten is not None and _are_equal(forgotten, result):
                result = forgotten
        self._entries[setting] = (versions, result)
        return result

    def forget(self) -> None:
        """Make the next results anew."""
        self._forgotten.update({setting: result for setting, (_, result) in self._entries.items()})
        self._entries = {}

    def __reduce__(self) -> tuple[type[Remembered], tuple[()]]:
        return Remembered, ()


def _are_unchanged(versions: Sequence[tuple[Tensor, int]], sources: Sequence[Tensor]) -> bool:
    return len(versions) == len(sources) and all(
        known is source and version == source._version
        for (known, version), source in zip(versions, sources, strict=True)
    )


def _are_equal(known: Sequence[object], new: Sequence[object]) -> bool:
    return len(known) == len(new) and all(map(_is_equal, known, new))


def _is_equal(known: object, new: object) -> bool:
    if isinstance(known, Tensor) and isinstance(new, Tensor):
        same_kind = (known.dtype, known.device) == (new.dtype, new.device)
        return same_kind and not known.is_meta and torch.equal(known, new)
    return known == new
