"""The results of runs in a small file: what tables and the figure need, a row for each run."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.shared.run_log import Log
from benchmarks.symmetry.tasks import CELLS, TASKS

KEY = ("task", "group", "images", "pose", "way", "seed")
NUMBERS = (
    *("accuracy", "as is", "turned", "worst", "agreement", "averaged", "error", "rollout", "change", "hardened"),
    *("accuracy, hardened", "at equal time", "validation", "parameters", "seconds", "epochs"),
    *("all epochs", "rate", "trials", "softness"),
)
WORDS = ("setting", "stays soft", "commit")
HEADS = ("R2Conv", "R2Conv, free head")
Row = dict[str, Any]


@dataclass
class Part:
    """The runs of one task, group, number of training images and pose: by way, then by seed."""

    task: str
    group: str
    images: int
    pose: str
    ways: dict[str, dict[int, Row]] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """Words for the runs of all poses."""
        return f"{self.task} with {self.group}" + ("" if self.is_forecast else f", {self.images:,} images")

    @property
    def title(self) -> str:
        """The pose in words, that cannot be taken for copies that are turned later."""
        return "any angle" if self.pose == "turned" else self.pose

    @property
    def is_forecast(self) -> bool:
        """Whether the score is an error, and not an accuracy."""
        return self.task.startswith("smoke")

    @property
    def score(self) -> str:
        """The score on the test data as they are; ``turned`` is that on turned copies."""
        return "error" if self.is_forecast else "accuracy"

    def among(self, ways: Iterable[str]) -> Part:
        """Return the runs of those of some ways that were run, of the seeds that they have in common."""
        runs = {way: self.ways[way] for way in ways if way in self.ways}
        seeds = set.intersection(*map(set, runs.values())) if runs else ()
        return replace(self, ways={way: {seed: some[seed] for seed in seeds} for way, some in runs.items()})

    def best(self, score: str, baselines: Sequence[str] = HEADS) -> str | None:
        """Return the baseline of the best mean of a score, None where one is missing."""
        # Where the outputs are fields without a group, no head is freer than another.
        known = baselines[:1] if self.task == "smoke, translation" else baselines
        if not all(self.values(way, score) for way in known):
            return None
        return (min if self.is_forecast else max)(known, key=lambda way: fmean(self.values(way, score)))

    def values(self, way: str, score: str) -> list[float]:
        """Return a score of each seed that has it."""
        return [row[score] for row in self.ways.get(way, {}).values() if score in row]

    def gains(self, way: str, score: str, baselines: Sequence[str] = HEADS) -> list[float]:
        """Return by how much a way is better than the baseline that is best in this, of each seed of both."""
        ours, theirs = self.ways.get(way, {}), self.ways.get(self.best(score, baselines) or "", {})
        both = [(row, theirs[seed]) for seed, row in ours.items() if score in row and score in theirs.get(seed, {})]
        sign = -1 if self.is_forecast else 1
        return [sign * (row[score] - other[score]) for row, other in both]


def rows_of(logs: Iterable[Log]) -> list[Row]:
    """Return a row for each run of some logs; trials of rates have none."""
    logged = [(json.loads(name), result) for log in logs for name, result in log.runs.items()]
    found = [({part: run[part] for part in KEY}, result) for run, result in logged if "rate" not in run]
    ends = defaultdict(list)
    for run, result in found:
        if run["way"] == "R2Conv":
            ends[_part_of(run)].append(result["seconds"])
    return [_row(run, result, ends.get(_part_of(run), ())) for run, result in found]


def _part_of(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(run[part] for part in KEY[:4])


def _row(run: Mapping[str, Any], result: Mapping[str, Any], ends: Sequence[float]) -> Row:
    """Return a run with its scores, settings and costs."""
    row = {**run, **{name: result[name] for name in NUMBERS if name in result and name != "softness"}}
    if result.get("softness"):
        row["softness"] = max(result["softness"])
    if ends and result.get("history"):
        row["at equal time"] = _validation_at(result["history"], median(ends))
    setting = result.get("setting", {})
    settings = {**setting.get("options", {}), "σ": setting.get("deviation")}
    row["setting"] = " ".join(f"{name}={value}" for name, value in settings.items() if value is not None)
    if "evidence" in result:
        trials = result["evidence"]
        hardened = {layer for trial in trials if trial["is_hardened"] for layer in trial["layers"]}
        layers = {layer for trial in trials for layer in trial["layers"]}
        row["stays soft"] = f"{len(layers - hardened)} of {len(layers)}"
    row["commit"] = str(result.get("commit", ""))[:8]
    return row


def _validation_at(history: Sequence[Sequence[float]], end: float) -> float:
    """Return the score at the lowest loss on validation until a time; of the first round where none has ended."""
    rounds = [some for some in history if some[0] <= end] or history[:1]
    return min(rounds, key=lambda some: some[1])[2]


def write(rows: Iterable[Row], path: Path) -> None:
    """Write rows as CSV, numbers with five digits: task by task, and in each in the order of the protocol."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = dict.fromkeys((list(TASKS).index(cell.task), cell.task, cell.group, cell.images) for cell in CELLS)
    order = [part[1:] for part in sorted(parts, key=lambda part: part[0])]
    ways = list(dict.fromkeys(cell.way for cell in CELLS))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, (*KEY, *NUMBERS, *WORDS), lineterminator="\n")
        writer.writeheader()
        for row in sorted(rows, key=lambda row: (order.index(_part_of(row)[:3]), ways.index(row["way"]))):
            writer.writerow(row | {name: f"{row[name]:.5g}" for name in NUMBERS if name in row})


def read(path: Path) -> list[Row]:
    """Return the rows of a file, none where it is not there."""
    if not path.exists():
        return []
    types = {"images": int, "seed": int} | dict.fromkeys(NUMBERS, float)
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return [{name: types.get(name, str)(text) for name, text in row.items() if text} for row in rows]


def grouped(rows: Iterable[Row]) -> dict[tuple[Any, ...], Part]:
    """Return the parts of some rows by task, group, number of images and pose."""
    found: dict[tuple[Any, ...], Part] = {}
    for row in rows:
        part = found.setdefault(_part_of(row), Part(*_part_of(row)))
        part.ways.setdefault(row["way"], {})[row["seed"]] = row
    return found
