"""The tables, from the log."""

from __future__ import annotations

import json
from collections import defaultdict
from statistics import fmean
from typing import Any

from benchmarks.nbody.networks import WAYS
from benchmarks.nbody.particles import scenes
from benchmarks.nbody.runs import HELD_OUT, PLAN, SOFT, TEST_SEEDS, UNIT
from benchmarks.shared.gains import marked_gains
from benchmarks.shared.markdown import cell, table
from benchmarks.shared.run_log import Log

# Field → way → seed → result.
Runs = dict[str, dict[str, dict[int, dict[str, Any]]]]


def runs_of(log: Log) -> Runs:
    """Return the runs of the test, fields in the order of the plan."""
    found: Any = {field: defaultdict(dict) for field in PLAN}
    for name, result in log.runs.items():
        run = json.loads(name)
        if run["stage"] == "test":
            found[run["field"]][run["way"]][run["seed"]] = result
    return {field: ways for field, ways in found.items() if ways}


def still(field: str) -> float:
    """Return the error of particles that keep their first velocities."""
    return scenes(field, "test", HELD_OUT, 0).moved.square().mean().item() / UNIT


def score_table(runs: Runs) -> str:
    """Return the errors of each way, mean ± standard error, and what its networks have."""
    rows = []
    for field, ways in runs.items():
        rows.append([field, "no network: x + vt", *[f"{still(field):.2f}"] * 2, "", "", "", ""])
        for way in [way for way in WAYS if way in ways]:
            results = list(ways[way].values())
            scores = (cell([run[score] for run in results], len(TEST_SEEDS)) for score in ("score", "turned"))
            first = results[0]
            counts = f"{first['parameters']:,}", str(first["width"]), f"{first['rate']:g}"
            rows.append([field, way, *scores, *counts, f"{fmean(run['seconds'] for run in results):.0f}"])
    header = "field", "way", "error, 10⁻³", "turned", "parameters", "width", "rate", "seconds"
    return table(header, rows)


def gain_table(runs: Runs) -> str:
    """Return by how much the error of soft networks is lower than that of each other way: mean, 95 % interval, mark."""
    rows = [[*key, text] for key, text in marked_gains(_gains(runs)).items()]
    return table(("field", "over", f"gain of {SOFT}, 10⁻³"), rows)


def _gains(runs: Runs) -> dict[tuple[str, str], list[float]]:
    """Return the differences of equal seeds, by field and way."""
    gains: dict[tuple[str, str], list[float]] = {}
    for field, ways in runs.items():
        ours = ways.get(SOFT, {})
        for way in [way for way in WAYS if way in ways and way != SOFT]:
            theirs = ways[way]
            gains[field, way] = [theirs[seed]["score"] - ours[seed]["score"] for seed in ours if seed in theirs]
    return gains


def page_table(runs: Runs) -> str:
    """Return the errors of each way, as scenes are and turned, with the marks of the gains of soft networks."""
    marks = {key: text.rpartition(" ")[2] for key, text in marked_gains(_gains(runs)).items()}
    rows = []
    for field, ways in runs.items():
        for score, title in (("score", field), ("turned", f"{field}, scenes turned")):
            cells = []
            for way in WAYS:
                values = [run[score] for run in ways.get(way, {}).values()]
                mark = marks.get((field, way), "") if score == "score" else ""
                cells.append(f"{fmean(values):.2f} {mark}".strip() if values else "–")
            rows.append([title, *cells])
    return table(("field", *WAYS), rows)


def choice_table(log: Log) -> str:
    """Return the error on validation of each trial, means of two seeds."""
    found: dict[tuple[str, str, int, float], list[float]] = defaultdict(list)
    for name, result in log.runs.items():
        run = json.loads(name)
        if run["stage"] == "choose":
            found[run["field"], run["way"], run["width"], run["rate"]].append(result["score"])
    rows = [[*map(str, key), f"{fmean(some):.2f}"] for key, some in found.items()]
    return table(("field", "way", "width", "rate", "on validation, 10⁻³"), rows)
