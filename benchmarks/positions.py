"""What the position may change: gains alone, or gains and directions, and of which functions (five seeds, named here).

    python -m benchmarks.positions --data DIRECTORY --output FILE

The seeds are 201 to 205. All ways of a task have the same network and learning rate, and differ in the soft weights of
translation alone. A line of the output is a run that has ended, and what is there is not run again. The default has
gains alone unless directions are ahead by more than two standard errors, seed by seed, where gains exist.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.shared.networks import GATED, build_network
from benchmarks.shared.run_log import Log
from benchmarks.shared.tasks import image_task
from benchmarks.shared.training import accuracy, fit
from escnn_relaxed.group import position_functions as plain
from escnn_relaxed.kernel import TiedKernel, modulation, position_modulation

__all__ = ["TASKS", "report", "train"]

SEEDS = (201, 202, 203, 204, 205)
IMAGES = 3000
PLAIN = "plain CNN on the torus"
# The network, the images, widths, epochs and the learning rate.
TASKS: dict[str, tuple[str, str, tuple[int, ...], int, float]] = {
    "digit and quadrant, plain": (PLAIN, "quadrant", (7, 7, 7, 7), 12, 3e-2),
    "in a quadrant, plain": (PLAIN, "in a quadrant", (7, 7, 7, 7), 12, 3e-2),
    "anywhere on the torus, plain": (PLAIN, "anywhere on the torus", (7, 7, 7, 7), 12, 3e-2),
    "digit and quadrant, SO(2) irreps": (GATED, "quadrant", (3, 3, 3, 3), 12, 1e-2),
    "digit and quadrant, C4": ("C4 regular", "quadrant", (3, 3, 3, 3), 12, 1e-2),
    "CIFAR-10, plain": ("plain CNN", "CIFAR-10", (8, 12, 16, 16), 12, 1e-2),
    "CIFAR-10, C4": ("C4 regular", "CIFAR-10", (4, 6, 8, 8), 12, 1e-2),
}
WAYS = ("gains", "directions", "strict", "gains with xy", "gains with a third degree")


@contextlib.contextmanager
def _functions(way: str) -> Iterator[None]:
    """Let the position change a layer by more functions, or give fields of irreps no directions."""

    def more(action: Tensor, frequency: Tensor, size: Any) -> Tensor:
        functions = plain.position_functions(action, frequency, size)
        positions = plain.positions_in_frames(action, size).flatten(2)
        values = (2 * torch.pi * frequency.view(-1, 1, 1) * positions).tanh()
        added = values[:1] * values[1:] if way.endswith("xy") else values**3
        return torch.cat([functions, added - added.mean(-1, keepdim=True)])

    with contextlib.ExitStack() as stack:
        if " with " in way:
            stack.enter_context(mock.patch.object(position_modulation, "position_functions", more))
        if way == "gains":
            stack.enter_context(mock.patch.object(modulation.FieldKind, "has_elements", True))
        yield


def train(task: str, way: str, seed: int, root: Path) -> dict[str, Any]:
    """Train one network; its accuracy on test images in percent, its number of weights and its seconds."""
    name, images, widths, epochs, rate = TASKS[task]
    data, test = image_task(images, IMAGES, seed, root)
    torch.manual_seed(seed)
    kernel = functools.partial(TiedKernel, all_directions=way == "directions")
    options = None if way == "strict" else {"relax": ("translation",), "kernel": kernel}
    with _functions(way):
        network = build_network(name, widths, 5, options, channels=data[0].shape[1])
        started = time.process_time()
        fit(network, data, torch.optim.Adam(network.parameters(), lr=rate), epochs)
        return {
            "accuracy": accuracy(network, test),
            "weights": sum(value.numel() for value in network.parameters()),
            "seconds": time.process_time() - started,
        }


def report(log: Log) -> str:
    """A table of accuracies, and of differences from gains seed by seed, each with its standard error."""
    lines = ["| task | gains | seeds | " + " | ".join(f"{way} − gains" for way in WAYS[1:]) + " |"]
    lines.append("|---" * (len(WAYS) + 2) + "|")
    for task in TASKS:
        found = {
            way: {seed: log.runs[key]["accuracy"] for seed in SEEDS if (key := f"{task}; {way}; {seed}") in log.runs}
            for way in WAYS
        }
        cells = [task, _mean([*found["gains"].values()]), str(len(found["gains"]))]
        for way in WAYS[1:]:
            both = found[way].keys() & found["gains"].keys()
            cells.append(_mean([found[way][seed] - found["gains"][seed] for seed in both], "+.1f"))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(values: list[float], form: str = ".1f") -> str:
    if len(values) < 2:
        return "–"
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):{form}} ± {error:.1f}"


def main() -> None:
    """Run what is missing, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--report", action="store_true", help="write the table of what is there, and run nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(arguments.output)
    # The two ways that the default is chosen by, then the others.
    wanted = [(task, way, seed) for ways in (WAYS[:2], WAYS[2:]) for seed in SEEDS for task in TASKS for way in ways]
    for task, way, seed in [] if arguments.report else wanted:
        if (run := f"{task}; {way}; {seed}") not in log.runs:
            log.add(run, train(task, way, seed, arguments.data))
            print(run, log.runs[run], flush=True)
    print(report(log))


if __name__ == "__main__":
    main()
