"""The benchmarks of the evidence run and go on from their log; no accuracy and no time is asserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_runs import run_here

from benchmarks.accuracy.discovery import stays_soft
from benchmarks.accuracy.evidence import WIDTHS, all_runs, best, key
from benchmarks.shared.run_log import Log


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
def test_weight_of_a_way_is_chosen_on_the_first_seed_by_what_is_held_out(tmp_path: Path) -> None:
    runs = [run for run in all_runs() if run.name.startswith(("C8 regular, turned, R2Conv", "C8 regular, turned, Σ√s"))]
    log = Log(tmp_path / "runs.jsonl")
    for run, accuracy in zip(runs, (80.0, 70.0, 90.0, 85.0), strict=True):
        log.add(key(run, 0, 1000), {"held out": accuracy})
    assert [(run.way, run.weight) for run in best(runs, 1000, log)] == [("R2Conv", 0.0), ("Σ√s", 0.1)]


@pytest.mark.slow
def test_what_is_discovered_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.accuracy.discovery.VOLUME_STEPS", 12)
    arguments = "--cases", "wind", "--seeds", "1", "--images", "20", "--log", str(tmp_path / "runs.jsonl")
    first = run_here("accuracy.discovery", *arguments)
    again = run_here("accuracy.discovery", *arguments)
    for name, truth in (("wind along an axis", "broken"), ("no wind", "kept")):
        assert again.count(f"| octahedral, {name} | rotation | {truth} | ") == 1
    assert first.endswith(again)


def test_a_subgroup_counts_as_broken_where_a_layer_stays_soft() -> None:
    def result(*is_hardened: bool) -> dict[str, Any]:
        return {"trials": [{"subgroup": "rotation", "is_hardened": of} for of in is_hardened]}

    assert not stays_soft("rotation", result(True))
    assert stays_soft("rotation", result(False))
    assert stays_soft("rotation", result(False, True, False))
    assert not stays_soft("rotation", result(False, True, True))


@pytest.mark.slow
def test_cost_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.speed.evidence.NETWORKS", {"C4": ("C4 regular", (2, 2, 2, 2), {"rotation": 0.25})})
    line = run_here("speed.evidence", "--images", "10", "--repetitions", "1")
    assert line.startswith("C4: update of 10 images ")
    assert " of 50,000; step of 64 " in line
