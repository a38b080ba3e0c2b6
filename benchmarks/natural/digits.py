"""How few digits suffice: accuracy by the number of training images, upright, within 60° and turned by any angle.

    python -m benchmarks.natural.digits --data DIRECTORY [--sizes 100,300] [--seeds 0,1] [--output FOLDER]

Networks of four layers of C8 fields, and one of ``Conv2d``, with as many parameters each. The images of a smaller
training set are among those of a larger one; all are tested on the same 4,000. Of each way the learning rate is chosen
by its accuracy on 1,000 images for validation, after training on 1,000 within 60° with the first seed.
Runs go one after another, small sets and the first seed first; each is kept as it ends, and a second call goes on.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.natural.networks import DIGITS, WAYS, build_digits, parameters
from benchmarks.natural.runs import add_arguments, learn_softness, train_missing, wait_while
from benchmarks.shared.run_log import Log
from benchmarks.shared.tasks import Split, image_task
from benchmarks.shared.training import accuracy, count_steps, fit
from escnn_relaxed import harden_network
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

__all__ = ["EPOCHS", "LOG", "TASKS", "Run", "best_rate"]

LOG = "digits.jsonl"
TASKS = ("upright", "within 60°", "turned")
# Number of training images → epochs: 200 steps where images are few, 750 where they are many.
EPOCHS = {100: 200, 300: 50, 1000: 14, 3000: 6, 12_000: 4}
# The task and size at which learning rates are chosen.
CHOOSING = ("within 60°", 1000)
RATES = (3e-3, 1e-2, 3e-2, 1e-1)
VALIDATION = 1000


@dataclass(frozen=True)
class Run:
    """One training."""

    task: str
    images: int
    way: str
    rate: float
    seed: int

    def __str__(self) -> str:
        settings = {"widths": DIGITS[self.way], "epochs": EPOCHS[self.images]}
        return json.dumps({**vars(self), **settings}, sort_keys=True, ensure_ascii=False)


@functools.lru_cache(maxsize=len(TASKS))
def load(task: str, seed: int, root: Path | None) -> tuple[Split, Split, Split]:
    """The largest training set, images for validation, and those for the test."""
    (images, labels), test = image_task(task, max(EPOCHS) + VALIDATION, seed, root)
    return (images[:-VALIDATION], labels[:-VALIDATION]), (images[-VALIDATION:], labels[-VALIDATION:]), test


def train(run: Run, root: Path | None, pause: Path | None) -> dict[str, Any]:
    """One network: its accuracies, softness by layer, and CPU time."""
    (images, labels), held_out, test = load(run.task, run.seed, root)
    torch.manual_seed(run.seed)
    network = build_digits(run.way)
    optimiser = torch.optim.Adam(network.parameters(), lr=run.rate)
    known = images[: run.images], labels[: run.images]
    penalty, after_step = None, lambda: wait_while(pause)
    if WAYS[run.way].is_learned:
        penalty, after_step = learn_softness(network, known[0], count_steps(run.images, 1), after_step)
    start = time.process_time()
    losses = fit(network, known, optimiser, EPOCHS[run.images], penalty=penalty, after_step=after_step)
    result: dict[str, Any] = {"seconds": time.process_time() - start, "loss": losses[-1]}
    if (run.task, run.images, run.seed) == (*CHOOSING, 0):
        result["validation"] = accuracy(network, held_out)
    result["test"] = accuracy(network, test)
    soft = [layer for _, layer in named_relaxed_layers(network)]
    if soft:
        result["softness"] = [layer.softness().item() for layer in soft]
        result["hardened"] = accuracy(harden_network(network), test)
    return {**result, "parameters": parameters(network)}


def rate_runs(way: str) -> list[Run]:
    """Runs by which the learning rate of a way is chosen."""
    return [Run(*CHOOSING, way, rate, 0) for rate in RATES]


def best_rate(way: str, log: Log) -> float:
    """The rate of the highest accuracy on validation.

    Raises:
        KeyError: if a run is missing.
    """
    return max(rate_runs(way), key=lambda run: log.runs[str(run)]["validation"]).rate


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--sizes", default=",".join(map(str, EPOCHS)), help="training images, separated by commas")
    parser.add_argument("--ways", default=";".join(DIGITS), help="separated by ;")
    add_arguments(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(arguments.output / LOG)

    def train_all(runs: list[Run]) -> None:
        wanted = {str(run): functools.partial(train, run, arguments.data, arguments.pause) for run in runs}
        train_missing(wanted, log, arguments.pause)

    ways = arguments.ways.split(";")
    train_all([run for way in ways for run in rate_runs(way)])
    rates = {way: best_rate(way, log) for way in ways}
    sizes, seeds = ([int(value) for value in text.split(",")] for text in (arguments.sizes, arguments.seeds))
    choices = ((seed, size, task, way) for seed in seeds for size in sizes for task in TASKS for way in ways)
    train_all([Run(task, size, way, rates[way], seed) for seed, size, task, way in choices])


if __name__ == "__main__":
    main()
