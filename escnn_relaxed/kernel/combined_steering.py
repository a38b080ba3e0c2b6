"""Steered features that are sums over group elements: those of many pairs of blocks by one product."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..group.channels import RowOrder
from .steering import PairSteering

__all__ = ["CombinedSteering"]


class CombinedSteering(nn.Module):
    """The steered features of pairs that combine the same hidden values.

    Args:
        groups: the steerings of pairs, alike within a group. They belong to the caller, who moves them between devices.
        features: number of features, J or J + 1.
    """

    def __init__(self, groups: Sequence[Sequence[PairSteering]], features: int) -> None:
        super().__init__()
        self._groups = [list(group) for group in groups]
        self._features = features
        self.order = RowOrder(_row_order([steering for group in groups for steering in group], features))

    def forward(self, hidden: Tensor) -> list[Tensor]:
        """Return the steered features (P, pairs, F, |A|·|B|·T) of each group, given hidden values (J, M, P, R, T)."""
        positions, taps = hidden.shape[2], hidden.shape[4]
        values = self._groups[0][0].values(hidden).flatten(1)
        coefficients = torch.cat([steering.coefficients.flatten(0, 3) for group in self._groups for steering in group])
        rows = (coefficients @ values).unflatten(1, (positions, -1, taps)).transpose(0, 1).flatten(1, 2)
        shapes = [(len(group), group[0].entries * self._features, math.prod(group[0].sizes)) for group in self._groups]
        parts = self.order(rows).split([math.prod(shape) for shape in shapes], 1)
        return [
            part.reshape(positions, pairs, features, channels * taps)
            for part, (pairs, features, channels) in zip(parts, shapes, strict=True)
        ]


def _row_order(steerings: Sequence[PairSteering], features: int) -> NDArray[np.int64]:
    """Return the order that takes rows of the product, (pair, entry, a, b, j), to features, (pair, entry, j, a, b)."""
    numbers, start = [], 0
    for steering in steerings:
        shape = steering.entries, math.prod(steering.sizes), features
        numbers.append((start + np.arange(math.prod(shape)).reshape(shape)).swapaxes(1, 2).ravel())
        start += math.prod(shape)
    return np.concatenate(numbers)
