"""Single runs: of the study of variance, of the choices on validation, and of the test."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.accuracy.data import Data
from benchmarks.accuracy.tasks import (
    CHOOSING,
    CHOOSING_SEEDS,
    PENALTIES,
    PLAN,
    RATES,
    STUDY,
    STUDY_RULES,
    STUDY_SEEDS,
    STUDY_WAYS,
    STUDY_WIDTH,
    TASKS,
    Choosing,
    Task,
)
from benchmarks.accuracy.training import Trainer, gates_of, scores, train, train_to_plateau, train_with_average
from benchmarks.accuracy.ways import ALL_WAYS, EQUAL_WAYS, WAYS, Way
from benchmarks.shared.processes import once_in_time
from benchmarks.shared.run_log import Log
from benchmarks.shared.training import parameters, softness_of

# Ways of the same task and seed share their data.
_load = functools.lru_cache(maxsize=4)(lambda load, *arguments: load(*arguments))


@dataclass(frozen=True)
class Cell:
    """One run of the test or of the study."""

    task: str
    images: int
    way: str
    seed: int

    def key(self, stage: str, **more: Any) -> str:
        """Return the description of a run in the log."""
        return json.dumps({"stage": stage, **asdict(self), **more}, ensure_ascii=False)


@dataclass(frozen=True)
class Choice:
    """What validation chooses: fields of hidden layers, all or each, the first rate, and λ of a way with a penalty."""

    width: int | tuple[int, ...]
    rate: float
    penalty: float = 0.0


@dataclass(frozen=True)
class Place:
    """Where runs are made, and of what."""

    # The folder of the data; None for scikit-learn's digits.
    data: Path | None
    log: Log
    tasks: Mapping[str, Task] = field(default_factory=lambda: TASKS)
    ways: Mapping[str, Way] = field(default_factory=lambda: ALL_WAYS)
    choosing: Mapping[str, Choosing] = field(default_factory=lambda: CHOOSING)
    # The time, in seconds since the epoch, after which no run starts.
    end: float = math.inf
    # Where networks are trained. Data and first weights are drawn on the CPU, so they are the same for all devices.
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def once(self, run: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a run, from the log where it is there; raise an error where it may not start."""
        return once_in_time(self.log, self.end, run, make)


def _trainer(cell: Cell, choice: Choice, place: Place, is_test: bool = False) -> Trainer:
    """Return a new network with its data, of the test or of validation alone."""
    task, way = place.tasks[cell.task], place.ways[cell.way]
    data: Data = _load(task.load, task.pose, cell.images, cell.seed, place.data, is_test)
    torch.manual_seed(cell.seed)
    network = task.network(way, task.group, choice.width).to(place.device)
    data = data.to(place.device)
    return Trainer(network, way, data, task.objective, task.group, choice.rate, choice.penalty, task.varied)


def equal_widths(cell: Cell, place: Place) -> tuple[int, ...]:
    """Return hidden widths, each at most one from that of ``soft``, with most nearly as many parameters."""
    task, soft = place.tasks[cell.task], WAYS["soft"]
    width = choose(task.choices, "soft", place).width
    target = parameters(task.network(soft, task.group, width))

    def distance(widths: tuple[int, ...]) -> int:
        return abs(parameters(task.network(place.ways[cell.way], task.group, widths)) - target)

    near = range(max(width - 1, 1), width + 2)
    return min(product(near, near, near), key=distance)


def study(cell: Cell, rule: str, steps: int, place: Place) -> dict[str, Any]:
    """Return the score on validation of a rule of training, of a fixed length also with averaged weights."""
    task = place.tasks[cell.task]
    trainer = _trainer(cell, Choice(STUDY_WIDTH, RATES[0]), place)
    steps *= 2 if rule == "twice as long" else 1
    if rule == "early stopping":
        seconds, steps = train_to_plateau(trainer)
        return {**scores(trainer.network, trainer.data, task.group, False), "seconds": seconds, "steps": steps}
    average, seconds = train_with_average(trainer, steps)
    found = {**scores(trainer.network, trainer.data, task.group, False), "seconds": seconds, "steps": steps}
    trainer.network.train().load_state_dict(average)
    averaged = scores(trainer.network, trainer.data, task.group, False)["score"]
    return {**found, "score, averaged": averaged}


def study_once(cell: Cell, rule: str, steps: int, place: Place) -> None:
    """Make a run of the study where the log lacks it."""
    place.once(cell.key("study", rule=rule), partial(study, cell, rule, steps, place))


def study_runs() -> Iterator[tuple[Cell, str, int]]:
    """Yield the runs of the study with their rules and the steps of a shorter training, seed by seed."""
    for seed, (task, images, steps), way, rule in product(STUDY_SEEDS, STUDY, STUDY_WAYS, STUDY_RULES):
        yield Cell(task, images, way, seed), rule, steps


def planned() -> Iterator[Cell]:
    """Yield the runs of the test: all ways of a task with a seed before the next seed."""
    for row in PLAN:
        for seed, way in product(row.seeds or TASKS[row.task].seeds, row.ways):
            yield Cell(row.task, row.images, way, seed)


def families() -> Iterator[tuple[str, str]]:
    """Yield each family of tasks with each of the ways that are chosen in it."""
    for family, choosing in CHOOSING.items():
        ways = (way for row in PLAN if TASKS[row.task].choices == family for way in row.ways if way not in EQUAL_WAYS)
        yield from ((family, way) for way in choosing.only or dict.fromkeys(ways))


def _trial(family: str, way: str, choice: Choice, place: Place) -> float:
    """Return the mean score on validation of a short training with two seeds, from the log where it is there."""
    choosing, found = place.choosing[family], []
    for seed in CHOOSING_SEEDS:
        cell = Cell(choosing.task, choosing.images, way, seed)

        def make(cell: Cell = cell) -> dict[str, Any]:
            trainer = _trainer(cell, choice, place)
            with place.device:
                seconds = train(trainer, choosing.steps)
                found = scores(trainer.network, trainer.data, place.tasks[cell.task].group, False)
            return {**found, "seconds": seconds, "parameters": parameters(trainer.network)}

        name = cell.key("choose", **asdict(choice))
        found.append(place.once(name, make)["score"])
    return fmean(found)


def choose(family: str, way: str, place: Place) -> Choice:
    """Return the width and the rate of a way in a family of tasks: five trials, the rates at the best width.

    A way with a penalty has the width of ``soft``, and three trials of its λ in their place. A way of equal parameters
    has the choices of its base.
    """
    way = place.ways[way].equal or way
    # Errors are better where they are small.
    sign = 1 if place.tasks[place.choosing[family].task].objective.likelihood == "categorical" else -1

    def best(choices: Iterable[Choice]) -> Choice:
        return max(choices, key=lambda choice: sign * _trial(family, way, choice, place))

    if place.ways[way].has_penalty:
        width = choose(family, "soft", place).width
        first = best(Choice(width, RATES[0], penalty) for penalty in PENALTIES)
    else:
        first = best(Choice(width, RATES[0]) for width in place.choosing[family].widths)
    return best(replace(first, rate=rate) for rate in RATES)


def choices_of(cell: Cell, place: Place) -> list[tuple[str, str]]:
    """Return the family and the way of each choice that a run of the test needs."""
    family, equal = place.tasks[cell.task].choices, place.ways[cell.way].equal
    return [(family, cell.way)] if equal is None else [(family, equal), (family, "soft")]


def test_once(cell: Cell, place: Place) -> None:
    """Make a run of the test where the log lacks it."""
    place.once(cell.key("test"), partial(test, cell, place))


def test(cell: Cell, place: Place) -> dict[str, Any]:
    """Return the scores of one run on the test, its choice and its cost."""
    task = place.tasks[cell.task]
    choice = choose(task.choices, cell.way, place)
    is_equal = place.ways[cell.way].equal is not None
    width = equal_widths(cell, place) if is_equal else task.fields * choice.width
    trainer = _trainer(cell, replace(choice, width=width), place, is_test=True)
    with place.device:
        seconds = train(trainer, task.steps[cell.images])
        return {
            **scores(trainer.network, trainer.data, task.group),
            "parameters": parameters(trainer.network),
            "seconds": seconds,
            **asdict(replace(choice, width=width)),
            **softness_of(trainer.network),
            **gates_of(trainer.network, trainer.data),
            "device": place.device.type,
        }
