"""Learned ω′: where it ends for penalties and starts, and what it is worth, on real digits.

    python -m benchmarks.accuracy.learning --data FOLDER [--parts PARTS] [--seeds 3] [--images 1000] [--pictures FOLDER]

C8 networks of four layers (7×7, then 5×5) on 33×33 pixels, Adam at 1e-2, ω′ at 3e-2, 8 or 12 epochs. Runs are logged as
they end, and a second call goes on from the log. docs/results/learning.md says what was found.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.accuracy.learning_pictures import draw, rank_correlations
from benchmarks.accuracy.learning_runs import EPOCHS, RUNS, Run
from benchmarks.shared.networks import build_network
from benchmarks.shared.run_log import Log, run_missing
from benchmarks.shared.tasks import Split, image_task
from benchmarks.shared.training import accuracy, fit
from escnn_relaxed import (
    equivariance_error,
    equivariance_penalty,
    harden_network,
    parameter_groups,
    relaxation_summary,
)
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers
from experiments.mean_and_error import mean_and_error

RATE, FREQUENCY_RATE = 1e-2, 3e-2
TEST_IMAGES = 2000


def train(run: Run, seed: int, images: int, root: Path | None) -> dict[str, Any]:
    """One network: its accuracy, as it is and hardened, and what is measured of each layer."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train_split, test_split = image_task(run.task, round(run.images * images), seed, root)
    test_split = test_split[0][:TEST_IMAGES], test_split[1][:TEST_IMAGES]
    network = build_network("C8 regular", run.widths, 5, run.options)
    optimiser = torch.optim.Adam(parameter_groups(network, FREQUENCY_RATE), lr=RATE)
    history = [_frequencies(network)]
    start, step, steps = time.process_time(), 0, len(train_split[0]) // 64

    def penalty() -> Tensor:
        return run.penalty * equivariance_penalty(network, run.kind)

    def after_step() -> None:
        nonlocal step
        step += 1
        if step % steps == 0:
            history.append(_frequencies(network))

    chosen = penalty if run.penalty else None
    losses = fit(network, train_split, optimiser, EPOCHS[run.task], penalty=chosen, after_step=after_step)
    return {
        "losses": losses,
        "history": history,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "seconds": time.process_time() - start,
        **measured(network, test_split),
    }


@torch.no_grad()
def measured(network: nn.Module, test: Split) -> dict[str, Any]:
    """Accuracies, the largest exact error of the logits over the group, and a row for each soft layer."""
    images, labels = test
    some = images[:32]
    strict = harden_network(network)
    elements = network.in_type.fibergroup.elements[2::2]
    errors = [row.error for row in equivariance_error(network, data=some, elements=elements).exact]
    rows = relaxation_summary(network, data=some).rows
    return {
        "accuracy": accuracy(network, test),
        "hardened": accuracy(strict, (images[:1000], labels[:1000])),
        "error": max(errors),
        "layers": [
            {
                "frequency": abs(row.domain_frequency["rotation"][0]),
                "softness": row.softness["all"],
                "own error": row.own_error,
                "error": row.error,
            }
            for row in rows
            if row.domain_frequency
        ],
    }


def _frequencies(network: nn.Module) -> list[float]:
    layers = named_relaxed_layers(network)
    return [float(value.detach()) for _, layer in layers for value in layer.domain_frequency.values()]


def report(run: Run, results: list[dict[str, Any]]) -> str:
    """A run as lines of text: means over the seeds, ω′ and s by layer of each seed."""
    accuracies, hardened = ([result[key] for result in results] for key in ("accuracy", "hardened"))
    errors = ", ".join(f"{result['error']:.2g}" for result in results)
    lines = [
        f"{run.part}, {run.task}, {run.name}: {mean_and_error(accuracies)} %, hardened {mean_and_error(hardened)} %, "
        f"largest error {errors}, {results[0]['parameters']:,} parameters"
    ]
    for key in ("frequency", "softness"):
        by_seed = ["[" + ", ".join(f"{layer[key]:.2g}" for layer in result["layers"]) + "]" for result in results]
        lines.append(f"    {key} by layer: {' '.join(by_seed)}")
    return "\n".join(lines[: 3 if results[0]["layers"] else 1])


def describe(run: Run, seed: int, images: int) -> str:
    """All that determines a run, without the name it goes by."""
    return json.dumps([{**asdict(replace(run, part="", name="", seeds=1))}, seed, images], sort_keys=True)


def train_missing(wanted: Iterable[tuple[Run, int]], images: int, root: Path | None, log: Log, workers: int) -> None:
    """Train what the log does not hold yet."""
    described = {describe(run, seed, images): (run, seed) for run, seed in wanted}
    arguments = {name: (*choice, images, root) for name, choice in described.items()}
    for count, name in run_missing(arguments, train, log, workers):
        print(f"{count} {report(described[name][0], [log.runs[name]])}", flush=True)


def main() -> None:
    """Parse the command line, train, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--parts", default="", help="only parts whose name contains one of these, separated by ;")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--log", type=Path, default=Path("runs/learning.jsonl"))
    parser.add_argument("--pictures", type=Path, help="folder to draw into")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of one thread each")
    arguments = parser.parse_args()
    runs = [run for run in RUNS if any(part in run.part for part in arguments.parts.split(";"))]
    if not runs:
        parser.error(f"--parts {arguments.parts!r} matches none of {sorted({run.part for run in RUNS})}")
    log = Log(arguments.log)
    wanted = [(run, seed) for run in runs for seed in range(max(arguments.seeds, run.seeds))]
    # Seed by seed, so that a log that is not complete has something of all.
    wanted.sort(key=lambda choice: choice[1])
    train_missing(wanted, arguments.images, arguments.data, log, arguments.workers)
    print()
    results = [
        (run, [log.runs[describe(run, seed, arguments.images)] for other, seed in wanted if other == run])
        for run in runs
    ]
    for run, found in results:
        print(report(run, found))
    for key, value in rank_correlations(results).items():
        print(f"rank correlation of a layer's error with its {key}: {value:.2f}")
    if arguments.pictures:
        draw(arguments.pictures, results)


if __name__ == "__main__":
    main()
