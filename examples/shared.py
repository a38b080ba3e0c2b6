"""The functions of ``experiments/`` and ``benchmarks/``, folders beside this one, that the examples use.

A part of mnist6_180.py and sweep.py, which are the files to run.
"""

from __future__ import annotations

import sys
from pathlib import Path

# At the end, so that an installed escnn_relaxed goes before the one of the repository.
sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.shared.markdown import mean_and_error
from experiments.data_files import DataError
from experiments.digits import SIX_CLASSES, both_ways_up, bundled_digits, half_turned, mnist_digits, only_sixes

__all__ = [
    "SIX_CLASSES",
    "DataError",
    "both_ways_up",
    "bundled_digits",
    "half_turned",
    "mean_and_error",
    "mnist_digits",
    "only_sixes",
]
