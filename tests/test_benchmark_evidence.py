"""The benchmarks of the evidence run and go on from their log; no accuracy and no time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_runs import run_here

from benchmarks.accuracy.evidence import WIDTHS, all_runs


@pytest.mark.slow
def test_networks_are_trained_read_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.accuracy.evidence.EPOCHS", 0)
    monkeypatch.setattr("benchmarks.accuracy.evidence.WIDTHS", dict.fromkeys(WIDTHS, (2, 2, 2, 2)))
    runs = "C4 regular, turned;D4 regular, upright, evidence;torus, evidence"
    arguments = "--seeds", "1", "--images", "64", "--runs", runs, "--log", str(tmp_path / "runs.jsonl")
    first = run_here("accuracy.evidence", *arguments)
    again = run_here("accuracy.evidence", *arguments, "--picture", str(tmp_path / "evidence.png"))
    assert (tmp_path / "evidence.png").stat().st_size > 1000
    name = "C4 regular, turned, evidence: "
    assert (first.count(name), again.count(name)) == (2, 1)
    assert first.count("Δ, held out: rotation in 4") >= 2
    assert all(run.name in first for run in all_runs() if run.name.startswith("C4 regular, turned"))


@pytest.mark.slow
def test_cost_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.speed.evidence.NETWORKS", {"C4": ("C4 regular", (2, 2, 2, 2), {"rotation": 0.25})})
    line = run_here("speed.evidence", "--images", "10", "--repetitions", "1")
    assert line.startswith("C4: update of 10 images ")
    assert " of 50,000; step of 64 " in line
