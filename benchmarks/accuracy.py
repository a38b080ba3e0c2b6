"""Does the swap cost accuracy, and what does softness bring? Trains both sides of each row and prints a table.

    python benchmarks/accuracy.py --data DIRECTORY [--rows PART] [--networks PARTS] [--seeds 3]

Each side takes the best of three learning rates, chosen with the first seed, and is then trained with every
seed at that rate. Runs are logged as they end, and a second call goes on from the log.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from digit_tasks import DigitNetwork, digit_task
from torch.nn import functional

RATES = (1e-3, 3e-3, 1e-2)
BATCH = 64
REPORTED_EPOCHS = (1, 3, 10)


@dataclass(frozen=True)
class Side:
    """One network of a row: its name and the options of its layers, None for ``R2Conv``."""

    name: str
    options: dict[str, Any] | None


@dataclass(frozen=True)
class Row:
    """What is trained on what."""

    name: str
    task: str
    sides: tuple[Side, ...]
    family: str = "C8 regular"
    kernel_size: int = 5
    widths: tuple[int, ...] = (6, 6, 6, 12)
    images: int = 3000
    epochs: int = 12


R2CONV = Side("R2Conv", None)
STRICT = Side("strict, steerable", {"relax": None})
CONTINUOUS = Side("strict, continuous", {"relax": None, "strict_kernel": "continuous"})
SOFT = Side("soft (default)", {})
SOFT_CONTINUOUS = Side("soft, continuous", {"strict_kernel": "continuous"})

ROWS = [
    *(
        Row(f"strict, C8, {k}×{k}", "turned", (R2CONV, STRICT, CONTINUOUS), kernel_size=k, images=5000)
        for k in (3, 5, 7)
    ),
    *(
        Row(f"strict, {family}", "turned", (R2CONV, STRICT, CONTINUOUS), family)
        for family in ("D4 regular", "D8 regular", "C8 regular, quotient, trivial")
    ),
    *(
        Row(f"soft, digits {task}", task, (R2CONV, SOFT, SOFT_CONTINUOUS))
        for task in ("upright", "within 60°", "turned")
    ),
    *(
        Row(
            f"translation, {task}",
            task,
            (R2CONV, Side("soft in translation", {"relax": {"translation": 0.3}})),
            family="plain CNN",
            epochs=6,
        )
        for task in ("quadrant", "in a quadrant")
    ),
    Row(
        "ω′, digits within 60°",
        "within 60°",
        tuple(Side(f"ω′ = {w:g}", {"relax": {"rotation": w}}) for w in (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0)),
    ),
]


def train(row: Row, side: Side, rate: float, seed: int, root: Path | None) -> dict[str, Any]:
    """One network: its test accuracy, training losses, parameters and CPU time."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    (images, labels), (test_images, test_labels) = digit_task(row.task, row.images, seed, root)
    network = DigitNetwork(row.family, row.widths, row.kernel_size, side.options)
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    steps = row.epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    start, losses = time.process_time(), []
    for _ in range(row.epochs):
        total = 0.0
        for batch in torch.randperm(len(images))[: len(images) // BATCH * BATCH].view(-1, BATCH):
            loss = functional.cross_entropy(network(images[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += float(loss)
        losses.append(total / (len(images) // BATCH))
    network.eval()
    with torch.no_grad():
        predictions = torch.cat([network(part).argmax(dim=1) for part in test_images.split(500)])
    return {
        "accuracy": 100 * float((predictions == test_labels).float().mean()),
        "losses": losses,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "seconds": time.process_time() - start,
    }


class Log:
    """Finished runs by their description, kept in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.runs: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self.runs[entry["run"]] = entry["result"]

    def add(self, run: str, result: dict[str, Any]) -> None:
        """Keep a result, on disk at once."""
        self.runs[run] = result
        with self._path.open("a") as file:
            file.write(json.dumps({"run": run, "result": result}) + "\n")


def describe(row: Row, side: Side, rate: float, seed: int) -> str:
    """All that determines a run."""
    parts = {**asdict(replace(row, sides=())), "options": side.options, "rate": rate, "seed": seed}
    del parts["sides"], parts["name"]
    return json.dumps(parts, sort_keys=True)


def run_all(runs: Iterable[tuple[Row, Side, float, int]], root: Path | None, log: Log, workers: int) -> None:
    """Train what the log does not hold yet, a process a core."""
    missing = {describe(*run): run for run in runs if describe(*run) not in log.runs}
    with ProcessPoolExecutor(workers) as pool:
        futures = {name: pool.submit(train, *run, root) for name, run in missing.items()}
        for number, (name, future) in enumerate(futures.items(), 1):
            log.add(name, future.result())
            row, side, rate, seed = missing[name]
            print(
                f"{number}/{len(futures)} {row.name}; {side.name}; rate {rate:g}; seed {seed}: "
                f"{log.runs[name]['accuracy']:.2f} %",
                flush=True,
            )


def best_rate(row: Row, side: Side, rates: tuple[float, ...], log: Log) -> float:
    """The rate of the highest accuracy with the first seed."""
    return max(rates, key=lambda rate: log.runs[describe(row, side, rate, 0)]["accuracy"])


def table(rows: list[Row], rates: tuple[float, ...], seeds: int, log: Log) -> str:
    """Markdown: mean accuracy and standard error, losses, parameters, for each side of each row."""
    lines = [
        "| row | network | rate | test accuracy, % | loss after "
        + ", ".join(map(str, REPORTED_EPOCHS))
        + " epochs | parameters | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for side in row.sides:
            rate = best_rate(row, side, rates, log)
            results = [log.runs[describe(row, side, rate, seed)] for seed in range(seeds)]
            accuracies = torch.tensor([result["accuracy"] for result in results])
            error = float(accuracies.std()) / math.sqrt(seeds) if seeds > 1 else float("nan")
            losses = [
                f"{sum(result['losses'][epoch - 1] for result in results) / seeds:.3f}"
                for epoch in REPORTED_EPOCHS
                if epoch <= row.epochs
            ]
            lines.append(
                f"| {row.name} | {side.name} | {rate:g} | {float(accuracies.mean()):.2f} ± {error:.2f} | "
                f"{', '.join(losses)} | {results[0]['parameters']:,} | "
                f"{sum(result['seconds'] for result in results) / seeds:.0f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument(
        "--networks", default="", help="only networks whose name contains one of these, comma-separated"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--log", type=Path, default=Path("accuracy.jsonl"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of one thread each")
    parser.add_argument("--smoke", action="store_true", help="128 images, one epoch, one seed, one rate")
    arguments = parser.parse_args()
    rows = [row for row in ROWS if arguments.rows in row.name]
    if not rows:
        parser.error(f"--rows {arguments.rows!r} matches none of {[row.name for row in ROWS]}")
    wanted = arguments.networks.split(",")
    rows = [
        replace(row, sides=tuple(side for side in row.sides if any(name in side.name for name in wanted)))
        for row in rows
    ]
    rates, seeds = RATES, arguments.seeds
    if arguments.smoke:
        rates, seeds = RATES[-1:], 1
        rows = [replace(row, images=128, epochs=1) for row in rows]
    log = Log(arguments.log)
    sides = [(row, side) for row in rows for side in row.sides]
    run_all([(row, side, rate, 0) for row, side in sides for rate in rates], arguments.data, log, arguments.workers)
    chosen = [(row, side, best_rate(row, side, rates, log)) for row, side in sides]
    run_all([(*choice, seed) for choice in chosen for seed in range(1, seeds)], arguments.data, log, arguments.workers)
    print(f"\ntorch {torch.__version__}, {platform.machine()}, one thread a run\n")
    print(table(rows, rates, seeds, log))


if __name__ == "__main__":
    main()
