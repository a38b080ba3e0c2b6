"""How soft by the evidence of the data, beside strict layers, soft ones without it, and other ways to say how soft.

    python -m benchmarks.accuracy.evidence --data FOLDER [--runs RUNS] [--seeds 5] [--images 1000] [--log FILE]

Four layers (7×7, then 5×5) on 33×33 pixels, Adam with one cycle up to 1e-2, 12 epochs, or more where they have fewer
than 1,000 images. Of the test images 1,000 are held out: the weight λ of a way is chosen by them with the first seed,
and hardening is tried on them. Runs are logged as they end, and a second call goes on from the log.
docs/results/learning.md says what was found.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.shared.networks import build_network
from benchmarks.shared.run_log import Log, run_missing
from benchmarks.shared.tasks import Split, image_task
from benchmarks.shared.training import accuracy
from escnn_relaxed import SoftnessEvidence, frequency_penalty, parameter_groups
from escnn_relaxed.baselines import LAYERS, free_weight_penalty
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers
from experiments.mean_and_error import mean_and_error

EPOCHS, BATCH, RATE = 12, 32, 1e-2
# Updates begin with the third epoch, and see so many images.
FIRST_EPOCH, UPDATE = 2, 128
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
    """One network: accuracies, softness and what the data determine by layer, what hardening costs, seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    (pixels, labels), test = image_task(run.task, images, seed, root)
    count = min(HELD_OUT, len(test[0]) // 2)
    held_out, test = (test[0][:count], test[1][:count]), (test[0][count:], test[1][count:])
    widths = STRICT_WIDTHS if run.options is None else WIDTHS
    layer = LAYERS["residual" if run.way == "residual" else "relaxed"]
    network = build_network(run.network, widths[run.network], 5, run.options, layer)
    epochs = max(EPOCHS, EPOCHS * 1000 // images, FIRST_EPOCH + 1)
    steps = epochs * (len(pixels) // BATCH)
    optimiser = torch.optim.Adam(parameter_groups(network), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps, pct_start=0.2)
    evidence = None if run.options is None else SoftnessEvidence(network, len(pixels))
    penalty = penalty_of(run, network, images)
    start, history, seconds = time.process_time(), [], 0.0
    for epoch in range(epochs):
        network.train()
        for batch in torch.randperm(len(pixels))[: len(pixels) // BATCH * BATCH].view(-1, BATCH):
            loss = functional.cross_entropy(network(pixels[batch]), labels[batch]) + penalty()
            if run.way == "evidence" and evidence is not None:
                loss = loss + evidence.penalty()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        if run.way == "evidence" and evidence is not None and epoch >= FIRST_EPOCH:
            before = time.process_time()
            evidence.update(pixels[torch.randperm(len(pixels))[:UPDATE]])
            seconds += time.process_time() - before
            history.append([(row.share, row.softness) for row in evidence.table()])
    result = {
        "seconds": time.process_time() - start,
        "seconds of updates": seconds,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "held out": accuracy(network, held_out),
        "accuracy": accuracy(network, test),
        "fit": accuracy(network, (pixels, labels)),
        "history": history,
    }
    is_soft = any(layer.softness() > 0 for _, layer in named_relaxed_layers(network))
    return result | (
        read(network, evidence, (pixels, labels), held_out, test) if evidence is not None and is_soft else {}
    )


def read(
    network: nn.Module, evidence: SoftnessEvidence, train_split: Split, held_out: Split, test: Split
) -> dict[str, Any]:
    """What the table says and what hardening does, of a trained network."""
    evidence.update(train_split[0][torch.randperm(len(train_split[0]))[:UPDATE]])
    rows = [asdict(row) for row in evidence.table()]
    before = {layer: layer.hardened for _, layer in named_relaxed_layers(network)}
    found: dict[str, Any] = {}
    for name, split in (("train", train_split), ("held out", held_out)):
        trials = [asdict(trial) for trial in evidence.harden(*split)]
        found |= {f"trials, {name}": trials, f"hardened, {name}": accuracy(network, test)}
        for layer, subgroups in before.items():
            layer.hardened = subgroups
    return {"rows": rows, **found}


def report(run: Run, results: list[dict[str, Any]]) -> str:
    """A run as lines of text: means over the seeds, the softness and the trials of each seed."""
    keys = "accuracy", "held out", "fit"
    means = ", ".join(f"{key} {mean_and_error([result[key] for result in results])}" for key in keys)
    lines = [f"{run.name}: {means}, {results[0]['parameters']:,} parameters, {results[0]['seconds']:.0f} s"]
    soft = [result for result in results if "rows" in result]
    for name in ("train", "held out") if soft else ():
        lines[0] += f", hardened by {name} {mean_and_error([result[f'hardened, {name}'] for result in soft])}"
    for result in soft:
        lines.append("    γ/n (s): " + ", ".join(_row(row) for row in result["rows"]))
        lines += [
            f"    Δ, {name}: " + "; ".join(_trial(trial) for trial in result[f"trials, {name}"])
            for name in ("train", "held out")
        ]
    return "\n".join(lines)


def _row(row: dict[str, Any]) -> str:
    return f"{row['subgroup']} {row['determined'] / row['weights']:.2f} ({row['softness']:.0e})"


def _trial(trial: dict[str, Any]) -> str:
    where = f"{trial['subgroup']} in {len(trial['layers'])}"
    numbers = f"{trial['rise']:.1f} ± {trial['error']:.1f} of {trial['price']:.1f}, n {trial['weights']}"
    return f"{where}: {numbers}, {'strict' if trial['is_hardened'] else 'soft'}"


def draw(path: Path, results: dict[str, dict[str, Any]]) -> None:
    """γ/n and s of each layer over the epochs, a column for each task."""
    from matplotlib import colormaps, pyplot

    figure, panels = pyplot.subplots(
        2, len(results), figsize=(3 * len(results), 5), layout="constrained", sharex=True, sharey="row", squeeze=False
    )
    for column, (task, result) in enumerate(results.items()):
        layers = range(len(result["history"][0]))
        epochs = [FIRST_EPOCH + 1 + number for number in range(len(result["history"]))]
        for layer in layers:
            colour = colormaps["viridis"](0.88 * layer / max(1, len(layers) - 1))
            for row in range(2):
                values = [epoch[layer][row] for epoch in result["history"]]
                panels[row, column].plot(epochs, values, color=colour, label=f"layer {layer + 1}")
        panels[0, column].set(title=task, ylim=(0, 1))
        panels[1, column].set(xlabel="epoch", yscale="log")
    panels[0, 0].set_ylabel("determined by the data, γ/n")
    panels[1, 0].set_ylabel("softness s")
    panels[0, -1].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def key(run: Run, seed: int, images: int) -> str:
    """The description of a run in the log."""
    return json.dumps([asdict(run), seed, images])


def train_missing(runs: list[Run], seeds: list[int], arguments: argparse.Namespace, log: Log) -> None:
    """Train what the log does not hold, seed by seed, and print each run as it ends."""
    wanted = {key(run, seed, arguments.images): (run, seed) for seed in seeds for run in runs}
    described = {name: (*choice, arguments.images, arguments.data) for name, choice in wanted.items()}
    for _, name in run_missing(described, train, log, arguments.workers):
        print(report(wanted[name][0], [log.runs[name]]), flush=True)


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
    parser.add_argument("--log", type=Path, default=Path("runs/evidence.jsonl"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of one thread each")
    parser.add_argument("--picture", type=Path, help="where to draw γ/n and s of the first seed of evidence runs")
    arguments = parser.parse_args()
    runs = [run for run in all_runs() if any(part in run.name for part in arguments.runs.split(";"))]
    log = Log(arguments.log)
    train_missing(runs, [0], arguments, log)
    runs = best(runs, arguments.images, log)
    train_missing(runs, list(range(arguments.seeds)), arguments, log)
    print()
    for run in runs:
        print(report(run, [log.runs[key(run, seed, arguments.images)] for seed in range(arguments.seeds)]))
    if arguments.picture:
        first = {run.task: log.runs[key(run, 0, arguments.images)] for run in runs if run.way == "evidence"}
        draw(arguments.picture, first)


if __name__ == "__main__":
    main()
