"""The measurements of speed run, on a CPU and tiny. No time is asserted."""

from __future__ import annotations

import pytest
from benchmark_runs import run_here

from benchmarks.speed.performance import SETTINGS


@pytest.mark.slow
def test_layers_and_the_evidence_are_measured() -> None:
    parts = ("soft rotation, C4", "peak memory, C4, 8 channels", "penalty, C4", "volumes, construction, octahedral")
    table = run_here("speed.performance", "--rows", ";".join(parts), "--repetitions", "1")
    assert [sum(part in line for line in table.splitlines()) for part in parts] == [1, 1, 1, 2]
    assert "failed" not in table


@pytest.mark.slow
def test_layers_are_measured_in_every_setting_of_a_gpu() -> None:
    table = run_here("speed.performance", "--rows", "C4, 8 channels", "--settings", "all", "--repetitions", "1")
    # Training in translation and in both, evaluation and memory.
    assert table.count("C4, 8 channels") == 4 * len(SETTINGS)
    assert "failed" not in table
