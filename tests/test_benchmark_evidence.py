"""The benchmarks of the evidence run and go on from their log, and pages show it; no accuracy is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmark_runs import run_here

from benchmarks.accuracy import evidence_report
from benchmarks.accuracy.discovery import stays_soft
from benchmarks.accuracy.evidence import LOG, WIDTHS, Run, all_runs, best, key, rounded
from benchmarks.shared.run_log import Log

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_networks_are_trained_and_kept_with_what_the_evidence_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.accuracy.evidence.EPOCHS", 0)
    monkeypatch.setattr("benchmarks.accuracy.evidence.WIDTHS", dict.fromkeys(WIDTHS, (2, 2, 2, 2)))
    runs = "C8 regular, turned;D4 regular, upright, evidence;torus, evidence"
    arguments = "--seeds", "1", "--images", "64", "--runs", runs, "--log", str(tmp_path / "runs.jsonl")
    first, again = (run_here("accuracy.evidence", *arguments) for _ in range(2))
    assert not again
    kept = Log(tmp_path / "runs.jsonl").runs
    for run in all_runs():
        if run.name.startswith("C8 regular, turned,") or run.name == "D4 regular, upright, evidence":
            assert f"{run.name}: " in first
            result = kept[key(run, 0, 64)]
            assert len(result["softness"]) == (0 if run.way == "R2Conv" else 4)
            assert ("trials" in result) == ("rows" in result) == ("history" in result) == (run.way == "evidence")
    assert {of["subgroup"] for of in kept[key(run_of("D4 regular, upright, evidence"), 0, 64)]["trials"]} == {
        "rotation",
        "reflection",
    }


def run_of(name: str) -> Run:
    return next(run for run in all_runs() if run.name == name)


@pytest.mark.slow
def test_weight_of_a_way_is_chosen_on_the_first_seed_by_what_is_held_out(tmp_path: Path) -> None:
    runs = [run for run in all_runs() if run.name.startswith(("C8 regular, turned, R2Conv", "C8 regular, turned, Σ√s"))]
    log = Log(tmp_path / "runs.jsonl")
    for run, accuracy in zip(runs, (80.0, 70.0, 90.0, 85.0), strict=True):
        log.add(key(run, 0, 1000), {"held out": accuracy})
    assert [(run.way, run.weight) for run in best(runs, 1000, log)] == [("R2Conv", 0.0), ("Σ√s", 0.1)]


@pytest.mark.slow
def test_volumes_are_trained_once_and_what_is_found_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.accuracy.discovery.VOLUME_STEPS", 12)
    arguments = "--cases", "wind", "--seeds", "1", "--images", "20", "--log", str(tmp_path / "runs.jsonl")
    run_here("accuracy.discovery", *arguments)
    assert not run_here("accuracy.discovery", *arguments)
    kept = Log(tmp_path / "runs.jsonl").runs
    assert [json.loads(name)[0]["task"] for name in kept] == ["wind along an axis", "no wind"]
    assert all(result["trials"] and result["rows"] for result in kept.values())


@pytest.mark.parametrize("name", evidence_report.SECTIONS)
def test_tables_are_those_of_the_lines(name: str) -> None:
    folder = ROOT / LOG.parent
    found = evidence_report.SECTIONS[name](Log(folder / LOG.name))
    assert found == (folder / name).read_text(encoding="utf-8")
    assert found.count("\n") > 5


def test_cells_say_of_how_many_seeds_they_are() -> None:
    five = {seed: {"accuracy": 90.0 + seed} for seed in range(5)}
    assert evidence_report.cell([result["accuracy"] for result in five.values()]) == "92.00 ± 0.71"
    assert evidence_report.cell([90.0, 92.0]) == "91.00 ± 1.00 (2)"
    assert evidence_report.cell([]) == "–"
    assert evidence_report.difference(five, {0: {"accuracy": 90.5}, 7: {"accuracy": 0.0}}, 5) == "−0.50 (1)"
    assert evidence_report.difference(five, {1: {"accuracy": 90.5}}, 1) == "+0.50"


def test_numbers_are_kept_with_four_digits() -> None:
    assert rounded({"a": [1.23456, 7], "b": (1e-7 / 3, True)}) == {"a": [1.235, 7], "b": [3.333e-08, True]}


def test_picture_is_drawn(tmp_path: Path) -> None:
    evidence_report.draw(Log(ROOT / LOG), tmp_path / "new" / "evidence.png")
    assert (tmp_path / "new" / "evidence.png").stat().st_size > 1000


def test_a_subgroup_counts_as_broken_where_not_all_layers_become_strict() -> None:
    trials = [{"subgroup": "reflection", "is_hardened": True}, {"subgroup": "rotation", "is_hardened": False}]
    assert [stays_soft(name, {"trials": trials}) for name in ("rotation", "reflection")] == [True, False]


@pytest.mark.slow
def test_cost_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.speed.evidence.NETWORKS", {"C4": ("C4 regular", (2, 2, 2, 2), {"rotation": 0.25})})
    line = run_here("speed.evidence", "--images", "10", "--repetitions", "1")
    assert line.startswith("C4: update of 10 images ")
    assert " of 50,000; step of 64 " in line
