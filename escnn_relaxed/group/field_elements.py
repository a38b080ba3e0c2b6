"""The group elements that the channels of a field type belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .elements import GroupSample
from .fields import FieldStructure

if TYPE_CHECKING:  # exported layers come here too, and run without escnn
    from escnn.group import Representation

__all__ = ["channel_elements"]


def channel_elements(
    fields: Sequence[Representation], sample: GroupSample
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the mean over each channel's elements, (C, M), over all where it has none; and whether it has, (C,)."""
    rows, has_any = [], []
    for field in fields:
        blocks = FieldStructure([field], sample).blocks
        has_elements = len(blocks) == 1 and blocks[0].is_permutation
        of_all = np.full((field.size, len(sample)), 1 / len(sample))
        rows.append(blocks[0].element_means() if has_elements else of_all)
        has_any += [has_elements] * field.size
    return np.concatenate(rows), np.array(has_any)
