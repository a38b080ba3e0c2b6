"""Single runs: of the choices on validation, and of the test."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.nbody.networks import WAYS, build
from benchmarks.nbody.particles import Scenes, random_rotations, scenes
from benchmarks.shared.processes import once_in_time
from benchmarks.shared.run_log import Log
from benchmarks.shared.training import parameters, softness_of, take_step

TRAINING, HELD_OUT = 300, 2000
TEST_SEEDS, CHOOSING_SEEDS = (1000, 1001, 1002, 1003, 1004), (100, 101)
# Scenes of a batch, and of one while networks are scored.
BATCH, SCORED = 50, 500
# Of a training; a step without symmetry takes a fifth of the time. Trials of the choices are half as long.
STEPS, PLAIN_STEPS = 150, 750
# The first of each is taken while the other is chosen.
WIDTHS, PLAIN_WIDTHS, RATES = (8, 16), (32, 64), (0.01, 0.02, 0.04)
# Errors are told in these units.
UNIT = 1e-3
STRICT, TOLD, SOFT, KEPT, PLAIN = WAYS
PLAN = {"gravity": tuple(WAYS), "none": (STRICT, SOFT, PLAIN), "wall": (STRICT, TOLD, SOFT, PLAIN)}


class Cell(NamedTuple):
    """One run of the test."""

    field: str
    way: str
    seed: int

    def key(self, stage: str, **more: Any) -> str:
        """Return the description of a run in the log."""
        return json.dumps({"stage": stage, "trajectories": TRAINING, **self._asdict(), **more})


class Choice(NamedTuple):
    """What validation chooses: the fields of each kind in hidden layers, and the first rate."""

    width: int
    rate: float


@dataclass(frozen=True)
class Place:
    """Where runs are logged, and until when they start, in seconds since the epoch."""

    log: Log
    end: float = math.inf

    def once(self, run: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a run, from the log where it is there; raise an error where it may not start."""
        return once_in_time(self.log, self.end, run, make)


def planned() -> Iterator[Cell]:
    """Yield the runs of the test: all ways of a field with a seed before the next seed."""
    for field, ways in PLAN.items():
        yield from (Cell(field, way, seed) for seed, way in product(TEST_SEEDS, ways))


def unit_of(training: Scenes) -> Tensor:
    """Return the root mean square of the targets, in whose units networks predict."""
    return training.moved.square().mean().sqrt()


def steps_of(way: str) -> int:
    """Return the steps of a training."""
    return PLAIN_STEPS if way == PLAIN else STEPS


def trained(cell: Cell, choice: Choice, steps: int) -> tuple[nn.Module, Tensor, float]:
    """Return a network after so many steps, the units of its outputs, and the process time in seconds.

    Adam, with a rate that falls to 0 along half a cosine.
    """
    training = scenes(cell.field, "train", TRAINING, cell.seed)
    unit = unit_of(training)
    torch.manual_seed(cell.seed)
    network = build(WAYS[cell.way], cell.field, choice.width)
    start = time.process_time()
    fit(network.train(), training, unit, steps, choice.rate)
    return network.eval(), unit, time.process_time() - start


def fit(network: nn.Module, training: Scenes, unit: Tensor, steps: int, rate: float) -> None:
    """Train a network in place."""
    optimiser = torch.optim.Adam(network.parameters(), rate)
    drawn: list[Tensor] = []
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
        if not drawn:
            drawn = list(torch.randperm(len(training)).split(BATCH))
        batch = training[drawn.pop()]
        take_step(network, (batch, batch.moved / unit), nn.functional.mse_loss, optimiser)  # type: ignore[arg-type]


@torch.no_grad()
def squares_of(network: nn.Module, held_out: Scenes, unit: Tensor) -> Tensor:
    """Return the mean square error of the positions of each scene, in units of UNIT."""
    parts = [held_out[start : start + SCORED] for start in range(0, len(held_out), SCORED)]
    errors = torch.cat([unit * network(part) - part.moved for part in parts])
    return errors.square().mean((1, 2)) / UNIT


def _trial(cell: Cell, choice: Choice) -> dict[str, Any]:
    network, unit, seconds = trained(cell, choice, steps_of(cell.way) // 2)
    score = squares_of(network, scenes(cell.field, "validation", HELD_OUT, 0), unit).mean().item()
    return {"score": score, "seconds": seconds, "parameters": parameters(network)}


def field_of_choice(way: str) -> str:
    """Return the field on which a way is chosen: strict layers learn nothing of gravity."""
    return "none" if way == STRICT else "gravity"


def choose(way: str, place: Place) -> Choice:
    """Return the width of a way at the first rate, and the rate at that width, by the mean of two seeds."""

    def score(choice: Choice) -> float:
        found = []
        for seed in CHOOSING_SEEDS:
            cell = Cell(field_of_choice(way), way, seed)
            make = partial(_trial, cell, choice)
            found.append(place.once(cell.key("choose", **choice._asdict()), make)["score"])
        return fmean(found)

    def best(choices: Iterable[Choice]) -> Choice:
        return min(choices, key=score)

    first = best(Choice(width, RATES[0]) for width in (PLAIN_WIDTHS if way == PLAIN else WIDTHS))
    return best(first._replace(rate=rate) for rate in RATES)


@functools.lru_cache(maxsize=2)
def _turned(field: str, count: int) -> Scenes:
    """Return the scenes of the test, each turned by a rotation of its own."""
    return scenes(field, "test", count, 0).turned(random_rotations(count))


def test_once(cell: Cell, place: Place) -> None:
    """Make a run of the test where the log lacks it."""
    place.once(cell.key("test"), partial(_test, cell, place))


def _test(cell: Cell, place: Place) -> dict[str, Any]:
    """Return the errors of one run on the test, as it is and turned, its choice and its cost."""
    choice = choose(cell.way, place)
    network, unit, seconds = trained(cell, choice, steps_of(cell.way))
    return {
        "score": squares_of(network, scenes(cell.field, "test", HELD_OUT, 0), unit).mean().item(),
        "turned": squares_of(network, _turned(cell.field, HELD_OUT), unit).mean().item(),
        "parameters": parameters(network),
        "seconds": seconds,
        **choice._asdict(),
        **softness_of(network),
    }
