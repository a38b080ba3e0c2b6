"""The tasks, and which way is tried on which: what is planned stands here before the runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from benchmarks.accuracy.data import Data, load_digits, load_flagged_digits, load_photographs, load_smoke, varied
from benchmarks.accuracy.networks import digits_network, flagged_network, photographs_network, smoke_network
from benchmarks.accuracy.training import CHANGES, CLASSES, Objective
from benchmarks.accuracy.ways import EQUAL_WAYS, FLAG_WAYS, WAYS

Load = Callable[[str, int, int, Path | None, bool], Data]
# The seeds of the test, of the choices and of the study of variance.
TEST_SEEDS, CHOOSING_SEEDS, STUDY_SEEDS = tuple(range(1000, 1010)), (100, 101), (100, 101, 102, 103, 104)
FIVE, THREE = TEST_SEEDS[:5], TEST_SEEDS[:3]
# The rate with which the width is chosen comes first.
RATES = (0.01, 0.003, 0.03)
# λ of the penalty; the first comes with the rate.
PENALTIES = (0.1, 0.01, 1.0)


@dataclass(frozen=True)
class Task:
    """Data, networks and the length of training."""

    load: Load
    pose: str
    network: Callable[..., nn.Module]
    group: str
    # Number of training images, or of puffs → steps of a training.
    steps: dict[int, int]
    # Whose widths and rates it has: a key of CHOOSING; fields of a layer are so many times as many.
    choices: str
    objective: Objective = CLASSES
    varied: Callable[[Tensor], Tensor] | None = None
    fields: int = 1
    seeds: tuple[int, ...] = TEST_SEEDS


_digits = partial(Task, load_digits, network=digits_network, group="C8", choices="digits")
_smoke = partial(Task, network=smoke_network, choices="smoke", objective=CHANGES, steps={5: 1280})
TASKS: dict[str, Task] = {
    "digits upright": _digits("upright", steps={100: 300, 1000: 800}),
    "digits within 60°": _digits("within 60°", steps={100: 300, 300: 300, 1000: 800}),
    "digits any angle": _digits("any angle", steps={300: 300, 1000: 800}),
    "digits with a flag": Task(load_flagged_digits, "", flagged_network, "C8", {1000: 800}, "flag", seeds=FIVE),
    "smoke level 9": _smoke(partial(load_smoke, "rotation"), "level 9", group="C4"),
    "smoke level 0": _smoke(partial(load_smoke, "rotation"), "level 0", group="C4", seeds=FIVE),
    "smoke translation": _smoke(partial(load_smoke, "translation"), "level 9", group="T1", fields=2),
    "cifar10": Task(
        load_photographs,
        "upright",
        photographs_network,
        "C4",
        {3000: 1000},
        "digits",
        varied=varied,
        seeds=THREE,
    ),
}


@dataclass(frozen=True)
class Choosing:
    """On what the widths and rates of a family of tasks are chosen, in how many steps, and among which widths."""

    task: str
    images: int
    steps: int
    widths: tuple[int, ...]
    # Only these ways; without, those of the plan. A check: no run of the test has its choices.
    only: tuple[str, ...] = ()


CHOOSING = {
    "digits": Choosing("digits within 60°", 300, 150, (4, 6, 8)),
    "smoke": Choosing("smoke level 9", 5, 320, (6, 9, 13)),
    "flag": Choosing("digits with a flag", 1000, 150, (4, 6, 8)),
    "digits, 100 images": Choosing("digits within 60°", 100, 150, (4, 6, 8), ("strict", "soft")),
}

# The study of variance: task, number of images and steps of its shorter training, ways, and rules.
STUDY = (("digits upright", 100, 300), ("digits upright", 1000, 400), ("smoke level 9", 5, 640))
STUDY_WAYS, STUDY_RULES = ("strict", "soft"), ("fixed length", "early stopping", "twice as long")
# Fields of its hidden layers.
STUDY_WIDTH = 4
SIMPLE = ("strict", "free head", "free biases", "reference vector", "soft")
WITHOUT_BIASES = ("strict", "free head", "reference vector", "soft")
CONTROL, WITH_FLAG = "constant scalar", "digits with a flag"
# What is trained as a soft network and ends strict, beside what is strict from the first step: name and images.
RELAXED_TRAINING = (("digits any angle", 300), ("digits any angle", 1000), ("smoke level 0", 5))


class Row(NamedTuple):
    """Runs of the test."""

    task: str
    images: int
    ways: tuple[str, ...]
    # Without, those of the task.
    seeds: tuple[int, ...] = ()


PLAN: tuple[Row, ...] = (
    Row("digits within 60°", 100, tuple(way for way in WAYS if way != CONTROL)),
    Row("digits within 60°", 100, (CONTROL,), FIVE),
    Row("digits upright", 1000, SIMPLE),
    Row("smoke level 9", 5, SIMPLE),
    Row("digits upright", 100, WITHOUT_BIASES),
    Row("digits within 60°", 1000, WITHOUT_BIASES),
    Row("smoke translation", 5, ("strict", "free biases", "soft")),
    Row("digits any angle", 300, ("strict", "soft")),
    Row("smoke level 0", 5, ("strict", "soft")),
    Row("cifar10", 3000, WITHOUT_BIASES),
    Row("digits within 60°", 100, tuple(EQUAL_WAYS), FIVE),
    Row("digits any angle", 300, ("annealed",), FIVE),
    Row("digits any angle", 1000, ("strict", "annealed"), FIVE),
    Row("smoke level 0", 5, ("annealed",)),
    Row(WITH_FLAG, 1000, ("strict", "free head", "soft", *FLAG_WAYS)),
)
