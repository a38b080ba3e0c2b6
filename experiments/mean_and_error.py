"""The form in which accuracies of several seeds are written."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["mean_and_error"]


def mean_and_error(values: Sequence[float]) -> str:
    """Return mean ± standard error of the mean, with two digits; of one value no error.

    Example:
        >>> mean_and_error([1.0, 2.0, 3.0])
        '2.00 ± 0.58'
    """
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{error}"
