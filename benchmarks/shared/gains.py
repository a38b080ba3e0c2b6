"""Gains of paired seeds: intervals, and marks after a correction for their number."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean, stdev
from typing import TypeVar

from scipy.stats import sem, t

LEVEL = 0.05
Key = TypeVar("Key", bound=Hashable)


def p_value(values: Sequence[float]) -> float:
    """Return the p-value of a mean of 0, by Student's t of both sides."""
    if not stdev(values):
        return float(fmean(values) == 0)
    return float(2 * t.sf(abs(fmean(values)) / sem(values), len(values) - 1))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number, by Holm's method."""
    order, found, largest = sorted(range(len(values)), key=values.__getitem__), [0.0] * len(values), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[number]))
        found[number] = largest
    return found


def marked_gains(gains: Mapping[Key, Sequence[float]]) -> dict[Key, str]:
    """Return the cells of all gains of a table: mean, half of the 95 % interval, and a mark.

    ▲ and ▼ where a gain or a loss remains after Holm's correction over all of them, otherwise ○.
    """
    known = {key: some for key, some in gains.items() if len(some) > 1}
    cells = dict.fromkeys(gains, "–")
    for (key, some), p in zip(known.items(), holm([p_value(some) for some in known.values()]), strict=True):
        half, mean = t.ppf(1 - LEVEL / 2, len(some) - 1) * sem(some), fmean(some)
        mark = "○" if p >= LEVEL else "▲" if mean > 0 else "▼"
        cells[key] = f"{mean:+.2f} ± {half:.2f} {mark}".replace("-", "−")
    return cells
