"""How soft by the evidence of the data, beside strict layers, soft ones without it, and other ways to say how soft.

    python -m benchmarks.accuracy.evidence --data FOLDER [--runs RUNS] [--seeds 5] [--images 1000] [--log FILE]

Four layers (7×7, then 5×5) on 33×33 pixels, Adam with one cycle up to 1e-2, 12 epochs, or more where they have fewer
than 1,000 images. Of the test images 1,000 are held out: the weight λ of a way is chosen by them with the first seed,
and hardening is tried on them. Runs are logged as they end, and a second call goes on from the log.
``benchmarks.accuracy.evidence_report`` makes tables of it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.shared.networks import build_network
from benchmarks.shared.run_log import Log, run_missing
from benchmarks.shared.tasks import Split, image_task
from benchmarks.shared.training import FIRST_EPOCH, UPDATE, accuracy
from escnn_relaxed import SoftnessEvidence, frequency_penalty, parameter_groups
from escnn_relaxed.baselines import LAYERS, free_weight_penalty
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

LOG = Path("benchmarks/results/evidence/runs.jsonl")
EPOCHS, BATCH, RATE = 12, 32, 1e-2
HELD_OUT = 1000
# The slope of √s has no bound; softness below this has none.
TINY = 1e-12
WIDTHS = {
    "C4 regular": (7, 7, 7, 12),
    "C8 regular": (4, 4, 4, 8),
    "D4 regular": (4, 4, 4, 8),
    "SO(2) irreps, gated": (5, 5, 5, 8),
    "plain CNN on the torus": (5, 5, 5, 8),
}
# As many parameters as the soft network has; the others have 1 to 4 % fewer.
STRICT_WIDTHS = {**WIDTHS, "plain CNN on the torus": (5, 5, 6, 8)}


@dataclass(frozen=True)
class Run:
    """A way to train on a task.

    Attributes:
        network: name of the network.
        task: name of the task.
        way: name of what says how soft.
        weight: its λ, or bound.
        options: arguments of the soft layers; None for ``R2Conv``.
    """

    network: str
    task: str
    way: str
    weight: float = 0.0
    options: dict[str, Any] | None = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it goes by."""
        return f"{self.network}, {self.task}, {self.way}" + (f" {self.weight:g}" if self.weight else "")


LEARNED: dict[str, Any] = {"learn_relaxation": True}
# Name of a way → its weights, and the options of the layers.
WAYS: dict[str, tuple[tuple[float, ...], dict[str, Any] | None]] = {
    "R2Conv": ((0.0,), None),
    "soft": ((0.0,), {}),
    "evidence": ((0.0,), {}),
    "Σ√s": ((0.01, 0.1, 1.0), {}),
    "learned ω′": ((0.01, 0.1, 1.0), LEARNED),
    "residual": ((0.1, 1.0, 10.0), {}),
}
CIRCULAR = ("C4 regular", "C8 regular", "SO(2) irreps, gated")
# Ways with a weight are tried where softness is needed, and where it is not.
COMPARED = ("C8 regular", "D4 regular", "plain CNN on the torus")
PLACES = [
    *((network, task) for network in CIRCULAR for task in ("turned", "within 60°", "upright")),
    ("C8 regular", "MNIST6-180"),
    *(("D4 regular", task) for task in ("turned, half of them mirrored", "turned", "upright")),
    *(("plain CNN on the torus", task) for task in ("anywhere on the torus", "quadrant", "in a quadrant")),
]
ON_TORUS: dict[str, Any] = {"relax": {"translation": 0.5}}


def all_runs() -> list[Run]:
    """Every way on every task that it is for."""
    runs = []
    for network, task in PLACES:
        for way, (weights, options) in WAYS.items():
            is_of_shifts = network == "plain CNN on the torus"
            has_way = not is_of_shifts or way not in ("residual", "learned ω′")
            if not has_way or (weights[0] and network not in COMPARED):
                continue
            given = {**options, **ON_TORUS} if is_of_shifts and options is not None else options
            runs += [Run(network, task, way, weight, given) for weight in weights]
    return runs


def penalty_of(run: Run, network: nn.Module, images: int) -> Callable[[], Tensor]:
    """What is added to the loss."""
    if run.way == "Σ√s":
        layers = [layer for _, layer in named_relaxed_layers(network)]
        return lambda: run.weight * torch.stack([layer.softness() for layer in layers]).clamp_min(TINY).sqrt().sum()
    if run.way == "learned ω′":
        return lambda: run.weight * frequency_penalty(network)
    if run.way == "residual":
        # The prior of all observations, as a mean over them.
        return lambda: free_weight_penalty(network, 1 / run.weight) / images
    return lambda: torch.zeros(())


def train(run: Run, seed: int, images: int, root: Path | None) -> dict[str, Any]:
    """One network: its accuracy, softness by layer and CPU time; with the evidence what it says, too."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    (pixels, labels), test = image_task(run.task, images, seed, root)
    count = min(HELD_OUT, len(test[0]) // 2)
    held_out, test = (test[0][:count], test[1][:count]), (test[0][count:], test[1][count:])
    widths = STRICT_WIDTHS if run.options is None else WIDTHS
    layer = LAYERS["residual" if run.way == "residual" else "relaxed"]
    network = build_network(run.network, widths[run.network], 5, run.options, layer)
    evidence = SoftnessEvidence(network, len(pixels)) if run.way == "evidence" else None
    start = time.process_time()
    history = fit(network, (pixels, labels), evidence, penalty_of(run, network, images))
    layers = [layer for _, layer in named_relaxed_layers(network)]
    result = {
        "seconds": time.process_time() - start,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "held out": accuracy(network, held_out),
        "accuracy": accuracy(network, test),
        "softness": [layer.softness().item() for layer in layers],
    }
    if evidence is not None:
        evidence.update(pixels[torch.randperm(len(pixels))[:UPDATE]])
        result |= read(evidence, held_out) | {"hardened": accuracy(network, test)}
        # One seed is drawn.
        result |= {"history": history} if seed == 0 else {}
    return rounded(result)


def fit(
    network: nn.Module, data: Split, evidence: SoftnessEvidence | None, penalty: Callable[[], Tensor]
) -> list[list[tuple[float, float]]]:
    """Train a network; γ/n and s of each layer after each update."""
    pixels, labels = data
    epochs = max(EPOCHS, EPOCHS * 1000 // len(pixels), FIRST_EPOCH + 1)
    steps = len(pixels) // BATCH
    optimiser = torch.optim.Adam(parameter_groups(network), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=epochs * steps, pct_start=0.2)
    history = []
    for epoch in range(epochs):
        network.train()
        for batch in torch.randperm(len(pixels))[: steps * BATCH].view(-1, BATCH):
            loss = functional.cross_entropy(network(pixels[batch]), labels[batch]) + penalty()
            if evidence is not None:
                loss = loss + evidence.penalty()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        if evidence is not None and epoch >= FIRST_EPOCH:
            evidence.update(pixels[torch.randperm(len(pixels))[:UPDATE]])
            history.append([(row.share, row.softness) for row in evidence.table()])
    return history


def read(evidence: SoftnessEvidence, held_out: tuple[Any, Tensor]) -> dict[str, Any]:
    """What the evidence says of a trained network, and what it makes strict, in place."""
    rows = [
        {"subgroup": row.subgroup, "weights": row.weights, "determined": row.determined, "softness": row.softness}
        for row in evidence.table()
    ]
    trials: dict[str, dict[str, Any]] = {}
    for trial in evidence.harden(*held_out):
        # The first of a subgroup is of all layers.
        trials.setdefault(trial.subgroup, asdict(trial))
    return {"rows": rows, "trials": list(trials.values())}


def rounded(value: Any) -> Any:
    """Return a result with four digits of each number, as it is kept."""
    if isinstance(value, Mapping):
        return {name: rounded(of) for name, of in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(of) for of in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def key(run: Run, seed: int, images: int) -> str:
    """The description of a run in the log."""
    return json.dumps([asdict(run), seed, images])


def train_missing(runs: list[Run], seeds: list[int], arguments: argparse.Namespace, log: Log) -> None:
    """Train what the log does not hold, seed by seed, and print each run as it ends."""
    wanted = {key(run, seed, arguments.images): (run, seed) for seed in seeds for run in runs}
    described = {name: (*choice, arguments.images, arguments.data) for name, choice in wanted.items()}
    for count, name in run_missing(described, train, log, arguments.workers):
        result = log.runs[name]
        print(f"{count} {wanted[name][0].name}: {result['accuracy']:.2f} %, {result['seconds']:.0f} s", flush=True)


def best(runs: list[Run], images: int, log: Log) -> list[Run]:
    """Of each way on each task the run whose weight is best on what is held out, with the first seed."""
    chosen: dict[tuple[str, str, str], Run] = {}
    for run in runs:
        place = run.network, run.task, run.way
        of_run, of_best = (log.runs[key(one, 0, images)]["held out"] for one in (run, chosen.get(place, run)))
        if of_run >= of_best:
            chosen[place] = run
    return list(chosen.values())


def main() -> None:
    """Parse the command line, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--runs", default="", help="only runs whose name contains one of these, separated by ;")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of one thread each")
    arguments = parser.parse_args()
    runs = [run for run in all_runs() if any(part in run.name for part in arguments.runs.split(";"))]
    log = Log(arguments.log)
    train_missing(runs, [0], arguments, log)
    train_missing(best(runs, arguments.images, log), list(range(arguments.seeds)), arguments, log)


if __name__ == "__main__":
    main()
