"""Train and inference time a batch of the paper's networks, as ratios to its CNN: the rows of its table of runtimes.

    python -m benchmarks.speed.runtimes --output benchmarks/results/runtimes.jsonl

Each network and the CNN are called in turn in one process, one thread. A second call goes on from the log.
"""

from __future__ import annotations

import argparse
import platform
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.shared.run_log import Log
from benchmarks.speed.sides import DEVICE, alternate, evaluation, training
from experiments.module import build_network
from experiments.rows import ROWS, find_row

CNN, BATCH, REPETITIONS = "t2-strict", 4, 3


def measure(name: str, settings: str) -> dict[str, Any]:
    """Ratios to the CNN of one row, its number of parameters, and what was set, in words."""
    images, labels = torch.randn(BATCH, 3, 32, 32, device=DEVICE), torch.randint(10, (BATCH,), device=DEVICE)
    networks = [build_network(find_row(row).configuration, 10, 3).to(DEVICE) for row in (name, CNN)]
    steps = (training(network, images, labels) for network in networks)
    of_training = alternate(*steps, REPETITIONS)
    calls = (evaluation(network, *images.shape) for network in networks)
    return {
        "train": asdict(of_training),
        "inference": asdict(alternate(*calls, REPETITIONS)),
        "parameters": sum(parameter.numel() for parameter in networks[0].parameters()),
        "settings": settings,
    }


def main() -> None:
    """Measure what the log does not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/runtimes.jsonl"))
    parser.add_argument("--rows", nargs="+", help="names of rows; by default those of the paper's table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings = (
        f"Ratios to the time of the first row in the same process, medians of {REPETITIONS} (lowest to "
        f"highest quartile); batches of {BATCH} images in float32 on one "
        f"{'thread of a CPU' if DEVICE.type == 'cpu' else torch.cuda.get_device_name()}, {platform.machine()}, torch "
        f"{torch.__version__}. The paper: batches of 64 on an RTX 3090."
    )
    log = Log(arguments.output)
    for others in {run["settings"] for run in log.runs.values()} - {settings}:
        parser.error(f"{arguments.output} was measured with other settings: {others}")
    for name in arguments.rows or [name for name, row in ROWS.items() if "seconds" in row.published]:
        log.once(name, partial(measure, name, settings))


if __name__ == "__main__":
    main()
