"""Output fields by their representation, each kind with the functions that modulate it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:  # exported layers come here too, and run without escnn
    from escnn.group import Representation

__all__ = ["FieldKind", "places_by_kind", "rows_of"]


class FieldKind(NamedTuple):
    """Output fields of one representation.

    Attributes:
        fields: their number.
        size: channels of a field.
        elements: numbers of the functions of its channels' elements.
        directions: numbers of the function and of the axis of those of the taps' directions.
    """

    fields: int
    size: int
    elements: list[int]
    directions: list[tuple[int, int]]

    @property
    def functions(self) -> int:
        """Number of functions."""
        return len(self.elements) + len(self.directions)


def places_by_kind(kinds: Sequence[Representation], fields: Sequence[Representation]) -> NDArray[np.int64]:
    """Return the row of each channel of some fields where they follow each other kind by kind."""
    numbers = np.repeat([kinds.index(field) for field in fields], [field.size for field in fields])
    return np.argsort(np.argsort(numbers, kind="stable"), kind="stable")


def rows_of(values: Tensor, numbers: Sequence[int]) -> Tensor:
    """Return some rows of values, (n, …), without a list of numbers that would be sent to the device.

    Example:
        >>> rows_of(torch.arange(5), [0, 1, 3]).tolist()
        [0, 1, 3]
    """
    runs: list[list[int]] = []
    for number in numbers:
        if not (runs and number == runs[-1][-1] + 1):
            runs.append([])
        runs[-1].append(number)
    parts = [values[run[0] : run[-1] + 1] for run in runs] or [values[:0]]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
