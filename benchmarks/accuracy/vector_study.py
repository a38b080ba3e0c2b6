"""The study of the reference vector, on validation alone: which soft network comes up to it with 100 images?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from statistics import fmean, stdev
from typing import Any

from benchmarks.accuracy.runs import Cell, Choice, Place, _trainer, parameters
from benchmarks.accuracy.tasks import STUDY_SEEDS
from benchmarks.accuracy.training import scores, train
from benchmarks.shared.run_log import Log

TASK, IMAGES, WIDTH = "digits within 60°", 100, 8
BASE = ("soft", 0.01)
# Ways and rates; the first is what all are compared with.
WAYS_AND_RATES = (
    BASE,
    ("reference vector", 0.01),
    ("soft, shared", 0.01),
    ("vector in each layer", 0.01),
)
# What is run after these.
LATER = (("soft", 0.03), ("soft", 0.003), ("soft, shared", 0.03), ("strict", 0.01))


def vector_runs() -> Iterator[tuple[Cell, float]]:
    """Yield the runs with their rates, seed by seed."""
    for ways_and_rates in (WAYS_AND_RATES, LATER):
        for seed, (way, rate) in product(STUDY_SEEDS, ways_and_rates):
            yield Cell(TASK, IMAGES, way, seed), rate


def _key(cell: Cell, rate: float) -> str:
    return cell.key("vector", width=WIDTH, rate=rate)


def vector_once(cell: Cell, rate: float, place: Place) -> None:
    """Make a run of the study where the log lacks it."""
    place.once(_key(cell, rate), partial(_scored, cell, rate, place))


def _scored(cell: Cell, rate: float, place: Place) -> dict[str, Any]:
    """Return the score on validation, after the length of the test."""
    task = place.tasks[cell.task]
    trainer = _trainer(cell, Choice(WIDTH, rate), place)
    with place.device:
        seconds = train(trainer, task.steps[cell.images])
        found = scores(trainer.network, trainer.data, task.group, False)
    return {**found, "seconds": seconds, "parameters": parameters(trainer.network)}


def vector_table(log: Log) -> str:
    """Return the scores of each way and rate, and the differences to the first between equal seeds."""
    found = {run: log.runs[_key(*run)]["score"] for run in vector_runs() if _key(*run) in log.runs}
    lines = ["| way | rate | % right | less `soft` at 0.01: mean, SD | seeds |", "| --- | --- | --- | --- | --- |"]
    for way, rate in (*WAYS_AND_RATES, *LATER):
        pairs = []
        for seed in STUDY_SEEDS:
            run, base = (Cell(TASK, IMAGES, way, seed), rate), (Cell(TASK, IMAGES, BASE[0], seed), BASE[1])
            if run in found and base in found:
                pairs.append((found[run], found[base]))
        if len(pairs) < 2:
            continue
        less = [one - other for one, other in pairs]
        gain = "" if (way, rate) == BASE else f"{fmean(less):+.2f}, {stdev(less):.2f}".replace("-", "−")
        lines.append(f"| `{way}` | {rate} | {fmean(one for one, _ in pairs):.2f} | {gain} | {len(pairs)} |")
    return "\n".join(lines)
