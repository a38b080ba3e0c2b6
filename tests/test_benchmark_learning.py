"""The benchmark of learning runs, goes on from its log and draws; no accuracy is asserted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmark_runs import run_here

from benchmarks.accuracy.learning_runs import EPOCHS, NARROW, RUNS


@pytest.mark.slow
def test_learned_frequencies_are_trained_measured_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.accuracy.learning.EPOCHS", dict.fromkeys(EPOCHS, 2))
    monkeypatch.setattr("benchmarks.accuracy.learning.RUNS", [replace(run, widths=NARROW) for run in RUNS])
    arguments = "--seeds", "1", "--images", "64", "--parts", "penalties", "--log", str(tmp_path / "runs.jsonl")
    first = run_here("accuracy.learning", *arguments)
    again = run_here("accuracy.learning", *arguments, "--pictures", str(tmp_path))
    name = "penalties, within 60°, 0.1 Σ√s: "
    assert (first.count(name), again.count(name)) == (2, 1)
    assert first[first.index("\n\n") :] == again[again.index("\n") :].replace("\n", "\n\n", 1)
    assert first.count("rank correlation") == 2
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {"error_against_frequency_and_softness.png", "softness_by_depth.png"}
