"""The paper's networks here and in its authors' own code, for whoever has a checkout of that: a step's time and memory.

    python -m benchmarks.speed.authors_code CHECKOUT --theirs MODULE:FUNCTION --row t2-soft [--arguments '{"N": 4}']

``FUNCTION(**arguments)`` gives their network of that row, images (batch, 3, 32, 32) → scores; it must have as many
parameters as ours. Nothing of theirs is copied or changed. Both take a step of training in turn, in one process, on one
thread: forward, backward and a step of Adam.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.shared.timing import alternate, peak_memory
from benchmarks.speed.runtimes import train_step
from experiments.configuration import read_row, row_names
from experiments.module import build_network

warnings.filterwarnings("ignore", message=".*py3nj.*")


def their_network(checkout: Path, factory: str, arguments: dict[str, Any]) -> nn.Module:
    """Return the network that the factory of a checkout makes."""
    module, _, function = factory.partition(":")
    sys.path.insert(0, str(checkout.resolve()))
    network: nn.Module = getattr(importlib.import_module(module), function)(**arguments)
    sys.path.pop(0)
    return network


def count_parameters(network: nn.Module) -> int:
    """Numbers that are trained."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def compare(theirs: nn.Module, row: str, batch: int, repetitions: int) -> str:
    """One line: seconds and MiB of a step, theirs and ours.

    Raises:
        ValueError: if they have not as many parameters as ours.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours = build_network(read_row(row).configuration, 10, 3)
    counts = count_parameters(theirs), count_parameters(ours)
    if counts[0] != counts[1]:
        raise ValueError(f"their network has {counts[0]:,} parameters and ours, {row}, {counts[1]:,}: not the same")
    images, labels = torch.randn(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)
    steps = [train_step(network.to(device), images, labels) for network in (theirs, ours)]
    ratio = alternate(*steps, repetitions)
    memory = [peak_memory(step) for step in steps]
    return (
        f"{row}, {counts[0]:,} parameters, batch {batch}: theirs {ratio.median * ratio.seconds:.3f} s and "
        f"{memory[0]:.0f} MiB, ours {ratio.seconds:.3f} s and {memory[1]:.0f} MiB; ratio {ratio.median:.2f} "
        f"({ratio.low:.2f}–{ratio.high:.2f})"
    )


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="folder of the authors' code")
    parser.add_argument("--theirs", required=True, metavar="PACKAGE.MODULE:FUNCTION", help="gives their network")
    parser.add_argument("--arguments", type=json.loads, default={}, help="of that function, as a JSON object")
    parser.add_argument("--row", choices=row_names(), required=True, help="our network")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    theirs = their_network(arguments.checkout, arguments.theirs, arguments.arguments)
    print(compare(theirs, arguments.row, arguments.batch, arguments.repetitions))


if __name__ == "__main__":
    main()
