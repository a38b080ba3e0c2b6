"""Single runs, the choice of rates and settings before them, and the log that keeps both."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.shared.run_log import Log
from benchmarks.shared.training import Split
from benchmarks.shared.turns import ELEMENTS, randomly_moved
from benchmarks.symmetry.data import Data
from benchmarks.symmetry.networks import equal_widths, parameters
from benchmarks.symmetry.tasks import TASKS, Cell, Task
from benchmarks.symmetry.training import Fit, Rule, fit
from benchmarks.symmetry.ways import WAYS, Setting, Way
from escnn_relaxed.baselines import ResidualR2Conv

# The seed of the trials by which rates and settings are chosen, which no run of a table has.
CHOOSING_SEED = 100
RATES = (0.003, 0.01, 0.03)
# How many times the rounds, and the patience, of ways whose batches are turned copies.
LONGER = 3
# Ways of the same task, pose and seed share their data.
_load = functools.lru_cache(maxsize=4)(lambda load, *arguments: load(*arguments))


@dataclass(frozen=True)
class Place:
    """Where runs are made, and of what."""

    # The folder of the data; None for scikit-learn's digits.
    data: Path | None
    log: Log
    # While this file exists, no round starts.
    pause: Path | None = None
    tasks: Mapping[str, Task] = field(default_factory=lambda: TASKS)
    ways: Mapping[str, Way] = field(default_factory=lambda: WAYS)
    rule: Rule = field(default_factory=Rule)
    rates: tuple[float, ...] = RATES


def trained(cell: Cell, setting: Setting, rate: float, rule: Rule, place: Place) -> tuple[nn.Module, Data, Fit]:
    """Return the network of a run, its data, and the course of its training."""
    task, way = place.tasks[cell.task], place.ways[cell.way]
    data: Data = _load(task.load, cell.pose, cell.images, cell.seed, place.data)
    widths = equal_widths(task.frame, cell.group, way)
    torch.manual_seed(cell.seed)
    network = task.frame.build(cell.group, way, setting, widths)

    def varied(batch: Split) -> Split:
        inputs, targets = batch if task.varied is None else (task.varied(batch[0]), batch[1])
        if not way.turned:
            return inputs, targets
        if way.turned < 1:
            is_moved = torch.rand(len(inputs), 1, 1, 1) < way.turned
            return torch.where(is_moved, randomly_moved(inputs, ELEMENTS[cell.group][1:], data.act), inputs), targets
        if targets.dim() == 1:
            return randomly_moved(inputs, ELEMENTS[cell.group], data.act), targets
        # Fields turn with the inputs.
        moved = randomly_moved(torch.cat([inputs, targets], 1), ELEMENTS[cell.group], data.act)
        return moved[:, : inputs.shape[1]], moved[:, inputs.shape[1] :]

    def prior() -> Tensor:
        squares = [of.kernel.free_weight.square().sum() for of in network.modules() if isinstance(of, ResidualR2Conv)]
        # The loss is the mean of an image, and so is the prior's part of it.
        return torch.stack(squares).sum() / (2 * setting.deviation**2) / cell.images

    if way.turned:  # each epoch draws other copies, so the loss falls slowly and with more noise
        rule = Rule(rule.factors, LONGER * rule.patience, tuple(LONGER * most for most in rule.rounds))
    penalty = None if setting.deviation is None else prior
    course = fit(network, way, data, rate, rule, task.objective, varied, penalty=penalty, pause=place.pause)
    return network, data, course


def _trial(cell: Cell, setting: Setting, rate: float, place: Place) -> float:
    """Return the lowest loss on validation of a short training, from the log where it is there."""

    def make() -> dict[str, Any]:
        rule = replace(place.rule, rounds=place.tasks[cell.task].trial)
        course = trained(cell, setting, rate, rule, place)[2]
        return {"validation": course.loss, "seconds": course.seconds}

    name = {**asdict(cell), "setting": asdict(setting), "rate": rate}
    loss: float = place.log.once(json.dumps(name, sort_keys=True, ensure_ascii=False), make)["validation"]
    return loss


def choose(cell: Cell, place: Place) -> tuple[Setting, float, int]:
    """Return the setting and the rate of a way on a task, and the number of trials that the choice took.

    Rates are tried with the first setting, the other settings at the best rate, whatever the cell's seed and images.
    """
    tried = replace(cell, images=place.tasks[cell.task].trial_images, seed=CHOOSING_SEED)
    settings = place.ways[cell.way].settings
    rate = min(place.rates, key=lambda rate: _trial(tried, settings[0], rate, place))
    setting = min(settings, key=lambda setting: _trial(tried, setting, rate, place))
    return setting, rate, len(place.rates) + len(settings) - 1


def run(cell: Cell, place: Place) -> dict[str, Any]:
    """Return the line of one run: its choices, its course, and its scores on test images."""
    task, elements = place.tasks[cell.task], ELEMENTS[cell.group]
    setting, rate, trials = choose(cell, place)
    network, data, course = trained(cell, setting, rate, place.rule, place)
    found: dict[str, Any] = {
        **task.scores(network, data, elements),
        "validation": course.loss,
        "parameters": parameters(network),
        "widths": equal_widths(task.frame, cell.group, place.ways[cell.way]),
        "seconds": course.seconds,
        "epochs": course.best_epoch,
        "all epochs": course.epochs,
        "rate": rate,
        "setting": asdict(setting),
        "trials": trials,
        "history": [[round(value, 4) for value in values] for values in course.history],
    }
    if course.evidence is not None:
        report = course.evidence.harden(*data.validation)
        found["evidence"] = [asdict(trial) for trial in report]
        found |= {f"{name}, hardened": value for name, value in task.scores(network, data, elements).items()}
    return found


def train_missing(cells: Iterable[Cell], place: Place) -> None:
    """Make the runs that the log does not hold, in order."""
    for cell in cells:
        place.log.once(str(cell), functools.partial(run, cell, place))
