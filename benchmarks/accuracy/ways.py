"""The ways to relax, each at its best settings, on digits that are upright, lean, or are turned by any angle.

    python -m benchmarks.accuracy.ways --data DIRECTORY [--images 1000] [--seeds 3] [--log FILE] [--report]

Networks of four layers of C4 fields with as many parameters each, within a tenth. Of each way the learning rate is
chosen first, then its own settings at that rate, both by the accuracy on 1,000 images for validation with the first
seed. Runs are logged as they end, and a second call goes on from the log; ``--report`` trains nothing and shows what
the log holds, with the time of a step beside it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from escnn.nn import R2Conv
from torch import Tensor, nn

from benchmarks.shared.networks import build_network
from benchmarks.shared.run_log import Log, run_missing
from benchmarks.shared.tasks import SIDE, Split, image_task
from benchmarks.shared.timing import alternate
from benchmarks.shared.training import accuracy, fit
from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.baselines import PartialR2Conv, ResidualR2Conv, WeightedR2Conv, free_weight_penalty
from experiments.mean_and_error import mean_and_error

TASKS = ("upright", "within 60°", "turned")
RATES = (3e-3, 1e-2, 3e-2)
EPOCHS, VALIDATION = 12, 1000
KERNEL_SIZE = 5


@dataclass(frozen=True)
class Setting:
    """The settings that a way leaves to choose.

    Attributes:
        options: of the layer.
        deviation: σ of the prior on free weights.
    """

    options: dict[str, Any] = field(default_factory=dict)
    deviation: float | None = None

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value:g}" for name, value in self.options.items() if value is not True)
        deviation = "" if self.deviation is None else f"σ = {self.deviation:g}"
        return ", ".join(filter(None, (options, deviation))) or "defaults"


@dataclass(frozen=True)
class Way:
    """A way to build the layers; the rate is chosen at the first setting."""

    layer: Callable[..., nn.Module]
    widths: tuple[int, ...]
    settings: tuple[Setting, ...] = (Setting(),)


def _starts(*values: float) -> tuple[Setting, ...]:
    return tuple(Setting({"initial_softness": value}) for value in values)


WAYS = {
    "strict": Way(R2Conv, (7, 7, 7, 12)),
    "relaxed": Way(RelaxedR2Conv, (7, 7, 7, 12), _starts(0.001, 0.01, 0.1)),
    "partial": Way(PartialR2Conv, (7, 7, 7, 12), _starts(0.01, 0.1, 0.001)),
    "residual": Way(
        ResidualR2Conv, (2, 2, 3, 3), (Setting(), Setting(deviation=0.1), Setting({"initial_softness": 0.1}))
    ),
    "weighted": Way(WeightedR2Conv, (5, 5, 5, 8), _starts(0.01, 0.1, 0.001)),
}


@dataclass(frozen=True)
class Run:
    """One training."""

    task: str
    images: int
    way: str
    setting: Setting
    rate: float
    seed: int

    def __str__(self) -> str:
        way = WAYS[self.way]
        return json.dumps(
            {**vars(self), "setting": vars(self.setting), "widths": way.widths, "epochs": EPOCHS}, sort_keys=True
        )


def build(way: Way, setting: Setting) -> nn.Module:
    """The network of a way."""
    options = None if way.layer is R2Conv else setting.options
    return build_network("C4 regular", way.widths, KERNEL_SIZE, options, way.layer)


def penalty_of(network: nn.Module, setting: Setting, images: int) -> Callable[[], Tensor] | None:
    """Return the penalty that a setting adds to the mean loss of an image."""
    if setting.deviation is not None:
        return lambda: free_weight_penalty(network, setting.deviation) / images
    return None


def train(run: Run, root: Path | None) -> dict[str, Any]:
    """One network: its accuracies, parameters and CPU time."""
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    (images, labels), test = image_task(run.task, run.images + VALIDATION, run.seed, root)
    known: Split = images[: run.images], labels[: run.images]
    held_out: Split = images[run.images :], labels[run.images :]
    network = build(WAYS[run.way], run.setting)
    start = time.process_time()
    optimiser = torch.optim.Adam(network.parameters(), lr=run.rate)
    fit(network, known, optimiser, EPOCHS, penalty=penalty_of(network, run.setting, run.images))
    return {
        "validation": accuracy(network, held_out),
        "test": accuracy(network, test),
        "parameters": sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad),
        "seconds": time.process_time() - start,
    }


class Search:
    """The runs of a task and a way, each step of which waits for those before."""

    def __init__(self, task: str, images: int, way: str, log: Log) -> None:
        self._task, self._images, self._way, self._log = task, images, way, log

    def run(self, setting: Setting, rate: float, seed: int = 0) -> Run:
        """One of this search."""
        return Run(self._task, self._images, self._way, setting, rate, seed)

    def rates(self) -> list[Run]:
        """At the first setting."""
        return [self.run(WAYS[self._way].settings[0], rate) for rate in RATES]

    def settings(self) -> list[Run]:
        """At the best rate."""
        rate = self._best(self.rates()).rate
        return [self.run(setting, rate) for setting in WAYS[self._way].settings]

    def chosen(self, seeds: int) -> list[Run]:
        """At the best rate and setting, with every seed."""
        best = self._best(self.settings())
        return [self.run(best.setting, best.rate, seed) for seed in range(seeds)]

    def _best(self, runs: list[Run]) -> Run:
        return max(runs, key=lambda run: self._log.runs[str(run)]["validation"])


def train_missing(runs: list[Run], root: Path | None, log: Log, workers: int) -> None:
    """Train what the log does not hold."""
    named = {str(run): run for run in runs}
    for count, name in run_missing({name: (run, root) for name, run in named.items()}, train, log, workers):
        run, result = named[name], log.runs[name]
        print(f"{count} {run.task}, {run.way}, {run.setting}, rate {run.rate:g}: {result['test']:.2f} %", flush=True)


def step_costs(repetitions: int) -> dict[str, float]:
    """Time of a step of training, in proportion to the strict network."""
    torch.set_num_threads(1)
    images = torch.randn(32, 1, SIDE, SIDE)
    networks = {name: build(way, way.settings[0]) for name, way in WAYS.items()}
    steps = {name: lambda network=network: network(images).sum().backward() for name, network in networks.items()}
    return {name: alternate(step, steps["strict"], repetitions).median for name, step in steps.items()}


def table(images: int, seeds: int, log: Log, repetitions: int) -> str:
    """Markdown: mean test accuracy ± standard error of each way on each task, with what was chosen."""
    costs = step_costs(repetitions)
    lines = [
        "| way | " + " | ".join(f"{task}, % | chosen" for task in TASKS) + " | parameters | time of a step |",
        "|---|" + "---|" * (2 * len(TASKS) + 2),
    ]
    for way in WAYS:
        cells = []
        for task in TASKS:
            runs = Search(task, images, way, log).chosen(seeds)
            results = [log.runs[str(run)] for run in runs]
            cells += [mean_and_error([result["test"] for result in results]), f"{runs[0].setting}; {runs[0].rate:g}"]
        lines.append(f"| {way} | {' | '.join(cells)} | {results[0]['parameters']:,} | {costs[way]:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--images", type=int, default=1000, help="for training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--log", type=Path, default=Path("runs/ways.jsonl"))
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--repetitions", type=int, default=15, help="of the steps that are timed")
    parser.add_argument("--report", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    log = Log(arguments.log)
    searches = [Search(task, arguments.images, way, log) for task in TASKS for way in WAYS]
    if not arguments.report:
        for stage in (Search.rates, Search.settings, lambda search: search.chosen(arguments.seeds)):
            runs = [run for search in searches for run in stage(search)]
            train_missing(runs, arguments.data, log, arguments.workers)
    print(table(arguments.images, arguments.seeds, log, arguments.repetitions))


if __name__ == "__main__":
    main()
