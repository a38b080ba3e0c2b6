"""Does the swap cost accuracy, and what does softness bring? Trains both sides of each row and prints a table.

    python -m benchmarks.accuracy.swap --data DIRECTORY [--rows PARTS] [--networks PARTS] [--images 2000] [--seeds 3]

Each side takes the best of three learning rates, chosen with the first seed, and is then trained with every
seed at that rate. Runs are logged as they end, and a second call goes on from the log.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.shared.networks import build_network
from benchmarks.shared.run_log import Log, run_missing
from benchmarks.shared.tasks import image_task
from benchmarks.shared.training import accuracy, build_optimiser, change_under_quarter_turn, fit
from escnn_relaxed import ContinuousKernel, equivariance_penalty
from experiments.mean_and_error import mean_and_error

RATES = {"Adam": (1e-3, 3e-3, 1e-2), "SGD": (1e-2, 3e-2, 1e-1)}
Rates = dict[str, tuple[float, ...]]
REPORTED_EPOCHS = (1, 3, 10)


@dataclass(frozen=True)
class Side:
    """One network of a row: name, options of its layers (None: ``R2Conv``), precision, widths if its own, λ of Σ√s."""

    name: str
    options: dict[str, Any] | None
    autocast: bool = False
    widths: tuple[int, ...] | None = None
    penalty: float | None = None


@dataclass(frozen=True)
class Row:
    """Networks to train, and the task to train them on."""

    name: str
    task: str
    sides: tuple[Side, ...]
    network: str = "C8 regular"
    kernel_size: int = 5
    widths: tuple[int, ...] = (6, 6, 6, 12)
    images: int = 3000
    epochs: int = 12
    optimiser: str = "Adam"
    weight_decay: float = 0.0


R2CONV = Side("R2Conv", None)
# Widths that give as many parameters as the soft network of the same row, or 2 % more.
WIDER = Side("wider R2Conv", None, widths=(7, 7, 7, 12))
STRICT = Side("strict, steerable", {"relax": None})
CONTINUOUS = Side("strict, continuous", {"relax": None, "strict_kernel": "continuous"})
SOFT = Side("soft (default)", {})
SOFT_CONTINUOUS = Side("soft, continuous", {"strict_kernel": "continuous"})
# A kernel for every pixel takes some twenty times as long: --networks regions leaves it out.
TRANSLATION = tuple(
    Side(f"soft in translation, {name}", {"relax": {"translation": 0.25}, "regions": regions})
    for name, regions in (("every pixel", None), ("8×8 regions", 8), ("4×4 regions", 4), ("2×2 regions", 2))
)


def _bandwidth(per_pixel: float, kernel_size: int) -> tuple[Side, Side]:
    """Continuous strict and default soft layers at some ω per pixel of the radius."""
    omega = {"kernel": ContinuousKernel(filter_frequency=per_pixel * kernel_size / 2)}
    return (
        Side(f"strict, continuous, ω = {per_pixel:g} per pixel", {**(CONTINUOUS.options or {}), **omega}),
        Side(f"soft, ω = {per_pixel:g} per pixel", omega),
    )


ROWS = [
    *(Row(f"strict, C8, {k}×{k}", "turned", (R2CONV, STRICT, CONTINUOUS), kernel_size=k) for k in (3, 5, 7)),
    *(
        Row(f"strict, {network}", "turned", (R2CONV, STRICT, CONTINUOUS), network, widths=widths)
        for network, widths in (
            ("D4 regular", (6, 6, 6, 12)),
            ("D8 regular", (3, 3, 3, 6)),
            ("C8 regular, quotient, trivial", (6, 6, 6, 12)),
            ("SO(2) irreps, gated", (6, 6, 6, 12)),
            ("O(2) irreps, gated", (6, 6, 6, 12)),
        )
    ),
    Row(
        "strict, CIFAR-10, C4 Wide-ResNet",
        "CIFAR-10",
        (R2CONV, STRICT, CONTINUOUS, SOFT),
        "C4 Wide-ResNet",
        widths=(4, 8, 16),
        images=10_000,
        epochs=6,
    ),
    *(
        Row(f"soft, digits {task}", task, (R2CONV, WIDER, SOFT, SOFT_CONTINUOUS))
        for task in ("upright", "within 60°", "turned")
    ),
    *(
        Row(f"translation, {task}, {border}", task, (R2CONV, *TRANSLATION), network, epochs=6)
        for task in ("quadrant", "in a quadrant")
        for border, network in (("zeros", "plain CNN"), ("torus", "plain CNN on the torus"))
    ),
    Row(
        "translation, CIFAR-10",
        "CIFAR-10",
        (R2CONV, *TRANSLATION),
        "plain Wide-ResNet",
        widths=(8, 16, 32),
        images=5000,
        epochs=6,
    ),
    Row(
        "ω′, digits within 60°",
        "within 60°",
        tuple(Side(f"ω′ = {w:g}", {"relax": {"rotation": w}}) for w in (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0)),
    ),
    *(
        Row(
            f"ω, {k}×{k}, digits within 60°",
            "within 60°",
            tuple(side for w in (0.03, 0.05, 0.08, 0.12, 0.2) for side in _bandwidth(w, k)),
            kernel_size=k,
        )
        for k in (3, 5, 7)
    ),
    *(
        Row(
            f"{optimiser}, weight decay {decay:g}",
            "within 60°",
            (R2CONV, STRICT, SOFT),
            optimiser=optimiser,
            weight_decay=decay,
        )
        for optimiser, decay in (("Adam", 1e-4), ("SGD", 0.0), ("SGD", 1e-4))
    ),
    *(
        Row(
            f"softness that is not needed, {images:,} images",
            "turned",
            (
                R2CONV,
                SOFT,
                Side("soft from s = 0.0001", {"initial_softness": 1e-4}),
                *(Side(f"soft, {weight:g} Σ√s", {}, penalty=weight) for weight in (0.01, 0.1)),
            ),
            images=images,
        )
        for images in (1000, 3000, 12_000)
    ),
    Row("bf16 autocast", "within 60°", (SOFT, replace(SOFT, name="soft, bf16", autocast=True))),
]


def train(row: Row, side: Side, rate: float, seed: int, root: Path | None) -> dict[str, Any]:
    """One network: its test accuracy, training losses, change under a quarter turn, parameters and CPU time."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train_split, test_split = image_task(row.task, row.images, seed, root)
    network = build_network(row.network, side.widths or row.widths, row.kernel_size, side.options)
    optimiser = build_optimiser(row.optimiser, network, rate, row.weight_decay)
    start = time.process_time()
    penalty = None if side.penalty is None else lambda: side.penalty * equivariance_penalty(network)
    losses = fit(network, train_split, optimiser, row.epochs, autocast=side.autocast, penalty=penalty)
    return {
        "accuracy": accuracy(network, test_split),
        "losses": losses,
        "change": change_under_quarter_turn(network, test_split[0][:500]),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "seconds": time.process_time() - start,
    }


def describe(row: Row, side: Side, rate: float, seed: int) -> str:
    """All that determines a run."""
    own = {key: value for key, value in asdict(side).items() if key not in ("widths", "penalty") or value is not None}
    parts = {**asdict(replace(row, sides=())), **own, "rate": rate, "seed": seed}
    del parts["sides"], parts["name"]
    return json.dumps(parts, sort_keys=True)


def run_all(runs: Iterable[tuple[Row, Side, float, int]], root: Path | None, log: Log, workers: int) -> None:
    """Train what the log does not hold yet, a process a core."""
    described = {describe(*run): run for run in runs}
    for count, name in run_missing({name: (*run, root) for name, run in described.items()}, train, log, workers):
        row, side, rate, seed = described[name]
        print(
            f"{count} {row.name}; {side.name}; rate {rate:g}; seed {seed}: {log.runs[name]['accuracy']:.2f} %",
            flush=True,
        )


def best_rate(row: Row, side: Side, rates: Rates, log: Log) -> float:
    """The rate of the highest accuracy with the first seed."""
    return max(rates[row.optimiser], key=lambda rate: log.runs[describe(row, side, rate, 0)]["accuracy"])


def table(rows: list[Row], rates: Rates, seeds: int, log: Log) -> str:
    """Markdown: mean accuracy and standard error, losses, parameters, for each side of each row."""
    lines = [
        "| row | network | rate | test accuracy, % | loss after "
        + ", ".join(map(str, REPORTED_EPOCHS))
        + " epochs | change at 90° | parameters | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for side in row.sides:
            rate = best_rate(row, side, rates, log)
            results = [log.runs[describe(row, side, rate, seed)] for seed in range(seeds)]
            accuracies = [result["accuracy"] for result in results]
            losses = [
                f"{sum(result['losses'][epoch - 1] for result in results) / seeds:.3f}"
                for epoch in REPORTED_EPOCHS
                if epoch <= row.epochs
            ]
            lines.append(
                f"| {row.name} | {side.name} | {rate:g} | {mean_and_error(accuracies)} | "
                f"{', '.join(losses)} | {_mean(results, 'change'):.2g} | {results[0]['parameters']:,} | "
                f"{_mean(results, 'seconds'):.0f} |"
            )
    return "\n".join(lines)


def _mean(results: list[dict[str, Any]], key: str) -> float:
    return float(sum(result[key] for result in results) / len(results))


def _chosen_rows(names: list[str], networks: list[str]) -> list[Row]:
    rows = [row for row in ROWS if any(name in row.name for name in names)]
    return [
        replace(row, sides=tuple(side for side in row.sides if any(name in side.name for name in networks)))
        for row in rows
    ]


def main() -> None:
    """Parse the command line, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--rows", default="", help="only rows whose name contains one of these, separated by ;")
    parser.add_argument("--networks", default="", help="only networks whose name contains one of these, by ;")
    parser.add_argument("--images", type=int, help="training images, instead of each row's own number")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates, instead of each optimiser's own")
    parser.add_argument("--log", type=Path, default=Path("runs/swap.jsonl"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of one thread each")
    parser.add_argument("--smoke", action="store_true", help="64 images, one epoch, one seed, one rate")
    arguments = parser.parse_args()
    rows = _chosen_rows(arguments.rows.split(";"), arguments.networks.split(";"))
    if not rows:
        parser.error(f"--rows {arguments.rows!r} matches none of {[row.name for row in ROWS]}")
    rates, seeds = {name: tuple(arguments.rates or usual) for name, usual in RATES.items()}, arguments.seeds
    if arguments.images:
        rows = [replace(row, images=arguments.images) for row in rows]
    if arguments.smoke:
        rates, seeds = {name: usual[-1:] for name, usual in RATES.items()}, 1
        rows = [replace(row, images=64, epochs=1) for row in rows]
    log = Log(arguments.log)
    sides = [(row, side) for row in rows for side in row.sides]
    first = [(row, side, rate, 0) for row, side in sides for rate in rates[row.optimiser]]
    run_all(first, arguments.data, log, arguments.workers)
    chosen = [(row, side, best_rate(row, side, rates, log)) for row, side in sides]
    run_all([(*choice, seed) for choice in chosen for seed in range(1, seeds)], arguments.data, log, arguments.workers)
    print(f"\ntorch {torch.__version__}, {platform.machine()}, one thread a run\n")
    print(table(rows, rates, seeds, log))


if __name__ == "__main__":
    main()
