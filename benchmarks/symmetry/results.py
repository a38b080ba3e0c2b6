"""The results of runs in a small file: what tables and the figure need, a row for each run."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.shared.run_log import Log
from benchmarks.symmetry.order import BLOCKS

__all__ = [
    "CLASSES",
    "FIELDS",
    "HEADS",
    "KEY",
    "BySeed",
    "Measure",
    "Results",
    "better_head",
    "gains",
    "grouped",
    "measure_of",
    "read",
    "regret",
    "rows_of",
    "values",
    "write",
]

KEY = ("task", "group", "images", "pose", "way", "seed")
NUMBERS = (
    *("accuracy", "as is", "turned", "worst", "agreement", "averaged", "error", "rollout", "change", "hardened"),
    *("accuracy, hardened", "turned, hardened", "at equal time", "validation", "parameters", "seconds", "epochs"),
    *("all epochs", "rate", "trials", "softness"),
)
WORDS = ("setting", "stays soft", "commit")
HEADS = ("R2Conv", "R2Conv, free head")
# The strict networks among which an oracle that knows the symmetry would choose.
STRICT = (*HEADS, "R2Conv, subgroup", "R2Conv, other group", "RestrictionModule", "Conv2d")
Row = dict[str, Any]
# Seed → the row of a run.
BySeed = Mapping[int, Row]
# Pose → way → the rows of its runs.
Results = Mapping[str, Mapping[str, BySeed]]


@dataclass(frozen=True)
class Measure:
    """The scores of a kind of task.

    Attributes:
        score: that of the test data as they are; ``turned`` is that of turned copies.
        agreement: how far outputs of turned copies are those of the data.
        sign: 1 where more is better, −1 of errors.
    """

    score: str
    agreement: str
    sign: int


CLASSES, FIELDS = Measure("accuracy", "agreement", 1), Measure("error", "change", -1)


def measure_of(by_pose: Results) -> Measure:
    """Return the scores that the runs of a task have."""
    row = next(row for ways in by_pose.values() for by_seed in ways.values() for row in by_seed.values())
    return FIELDS if "error" in row else CLASSES


def rows_of(logs: Iterable[Log]) -> list[Row]:
    """Return a row for each run of some logs; trials of rates have none."""
    found = []
    for log in logs:
        for name, result in log.runs.items():
            run = json.loads(name)
            if "rate" not in run:
                found.append(({part: run[part] for part in KEY}, result))
    ends = defaultdict(list)
    for run, result in found:
        if run["way"] == "R2Conv":
            ends[_place(run)].append(result["seconds"])
    return [_row(run, result, ends.get(_place(run), ())) for run, result in found]


def _place(run: Mapping[str, Any]) -> tuple[Any, ...]:
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
    """Write rows as CSV, numbers with five digits, in the order of the protocol."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = list(dict.fromkeys((block.task, block.group, block.images) for block in BLOCKS))

    def place(row: Row) -> int:
        block = row["task"], row["group"], row["images"]
        return blocks.index(block) if block in blocks else len(blocks)

    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*KEY, *NUMBERS, *WORDS])
        for row in sorted(rows, key=place):
            numbers = [f"{row[name]:.5g}" if name in row else "" for name in NUMBERS]
            writer.writerow([*(row[part] for part in KEY), *numbers, *(row.get(name, "") for name in WORDS)])


def read(path: Path) -> list[Row]:
    """Return the rows of a file, none where it is not there."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [_typed(row) for row in csv.DictReader(file)]


def _typed(row: Mapping[str, str]) -> Row:
    found: Row = {part: row[part] for part in KEY} | {part: int(row[part]) for part in ("images", "seed")}
    found |= {name: float(row[name]) for name in NUMBERS if row.get(name)}
    return found | {name: row[name] for name in WORDS if row.get(name)}


def grouped(rows: Iterable[Row]) -> dict[tuple[str, str, int], Results]:
    """Return rows by task, group and number of images, then by pose, way and seed."""
    found: dict[Any, Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for row in rows:
        found[row["task"], row["group"], row["images"]][row["pose"]][row["way"]][row["seed"]] = row
    return dict(found)


def values(by_seed: BySeed, score: str) -> list[float]:
    """Return a score of each seed that has it."""
    return [row[score] for row in by_seed.values() if score in row]


def better_head(ways: Mapping[str, BySeed], measure: Measure) -> str | None:
    """Return the strict head of the better mean score, None where one of the two is missing."""
    means = {head: values(ways.get(head, {}), measure.score) for head in HEADS}
    if not all(means.values()):
        return None
    return max(HEADS, key=lambda head: measure.sign * fmean(means[head]))


def gains(ways: Mapping[str, BySeed], way: str, other: str, score: str, sign: int = 1) -> list[float]:
    """Return by how much a way is better than another, seed by seed, of the seeds that both have."""
    ours, theirs = ways[way], ways[other]
    seeds = [seed for seed in ours if seed in theirs and score in ours[seed] and score in theirs[seed]]
    return [sign * (ours[seed][score] - theirs[seed][score]) for seed in seeds]


def regret(ways: Mapping[str, BySeed], way: str, measure: Measure) -> list[float]:
    """Return by how much the strict network of the best mean is better than a way, seed by seed."""
    means = {
        name: measure.sign * fmean(values(ways[name], measure.score))
        for name in STRICT
        if ways.get(name) and values(ways[name], measure.score)
    }
    if not means:
        return []
    return gains(ways, max(means, key=means.__getitem__), way, measure.score, measure.sign)
