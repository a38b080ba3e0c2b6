"""The measurements of speed run, on a CPU and tiny. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_runs import run_here

from benchmarks.speed import gpu


@pytest.mark.slow
def test_layers_and_the_evidence_are_measured() -> None:
    parts = ("soft rotation, C4", "peak memory, C4, 8 channels", "penalty, C4", "volumes, construction, octahedral")
    table = run_here("speed.performance", "--rows", ";".join(parts), "--repetitions", "1").splitlines()
    assert [sum(part in line for line in table) for part in parts] == [1, 1, 1, 2]


@pytest.mark.slow
def test_every_side_is_measured_in_every_setting_on_a_gpu(tmp_path: Path) -> None:
    run_here("speed.gpu", "--smoke", "--output", str(tmp_path))
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    settings, sides = gpu.settings("cpu", smoke=True), list(gpu.sides(smoke=True))[1:]
    for setting in settings:
        for side in sides:
            assert (f"| {setting} | {side} | " in page) == gpu.is_measured(side, setting)
    assert "failed" not in page


def test_what_there_was_no_time_for_is_said(tmp_path: Path) -> None:
    run_here("speed.gpu", "--smoke", "--minutes", "0", "--output", str(tmp_path))
    lines = (tmp_path / "gpu.md").read_text(encoding="utf-8").splitlines()
    assert "| float32 | R2Conv | no time was left |  |  |" in lines
