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
from benchmarks.shared.markdown import signed, table
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
    """Return the score of each way and rate, and its differences to the first between equal seeds; "" without runs."""
    found: dict[tuple[str, float], dict[int, float]] = {}
    for cell, rate in vector_runs():
        if (key := _key(cell, rate)) in log.runs:
            found.setdefault((cell.way, rate), {})[cell.seed] = log.runs[key]["score"]
    rows = []
    for (way, rate), scores_of in found.items():
        base = found.get(BASE, {})
        less = [score - base[seed] for seed, score in scores_of.items() if seed in base]
        gain = "" if (way, rate) == BASE or len(less) < 2 else signed(f"{fmean(less):.2f}") + f", {stdev(less):.2f}"
        rows.append([f"`{way}`", f"{rate:g}", f"{fmean(scores_of.values()):.2f}", gain, str(len(scores_of))])
    header = ("way", "rate", "% right on validation", f"less `{BASE[0]}` at {BASE[1]:g}: mean, SD", "seeds")
    return table(header, rows) if rows else ""
