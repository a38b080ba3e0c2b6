"""The form in which accuracies of several seeds are written."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["mean_and_error", "values_or_mean"]


def mean_and_error(values: Sequence[float]) -> str:
    """Return mean ± standard error of the mean, with two digits; of one value no error.

    Example:
        >>> mean_and_error([1.0, 2.0, 3.0])
        '2.00 ± 0.58'
    """
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{error}"


def values_or_mean(values: Sequence[float]) -> str:
    """Return two values as they are, because their error says little, and of other numbers :func:`mean_and_error`.

    Example:
        >>> values_or_mean([61.2, 61.2])
        '61.20 and 61.20'
        >>> values_or_mean([1.0, 2.0, 3.0])
        '2.00 ± 0.58'
    """
    return " and ".join(f"{value:.2f}" for value in values) if len(values) == 2 else mean_and_error(values)
