"""Runs one after another in this process: the log keeps each as it ends, and a file makes them wait."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.shared.run_log import Log
from benchmarks.shared.training import FIRST_EPOCH, UPDATE
from escnn_relaxed import SoftnessEvidence

__all__ = ["add_arguments", "learn_softness", "train_missing", "wait_while"]

SECONDS_BETWEEN_LOOKS = 5.0
# Updates are not closer, however short an epoch is.
FEWEST_STEPS = 10


def wait_while(pause: Path | None) -> None:
    """Sleep as long as the file is there."""
    while pause is not None and pause.exists():
        time.sleep(SECONDS_BETWEEN_LOOKS)


def learn_softness(
    network: nn.Module, images: Tensor, epoch: int, after_step: Callable[[], None]
) -> tuple[Callable[[], Tensor], Callable[[], None]]:
    """Return what the evidence adds to the loss, and what is done after each step.

    Args:
        network: what learns.
        images: of training.
        epoch: the number of steps of one; that of an update is ten or more.
        after_step: what is done besides.
    """
    evidence, step, epoch = SoftnessEvidence(network, len(images)), 0, max(epoch, FEWEST_STEPS)

    def update() -> None:
        nonlocal step
        after_step()
        step += 1
        if step % epoch == 0 and step > FIRST_EPOCH * epoch:
            evidence.update(images[torch.randperm(len(images))[:UPDATE]])

    return evidence.penalty, update


def train_missing(wanted: Mapping[str, Callable[[], dict[str, Any]]], log: Log, pause: Path | None) -> None:
    """Train what the log does not hold, in order, and say of each what it reached.

    Args:
        wanted: description of a run → the function that trains it and returns what is measured.
        log: what is there, and where results go.
        pause: while this file exists, nothing starts.
    """
    missing = {name: train for name, train in wanted.items() if name not in log.runs}
    for number, (name, train) in enumerate(missing.items(), 1):
        wait_while(pause)
        start = time.time()
        result = train()
        log.add(name, result)
        reached = result.get("test", result.get("validation"))
        print(f"{number}/{len(missing)} {name}: {reached:.2f} %, {time.time() - start:.0f} s", flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that both commands have."""
    parser.add_argument("--seeds", default="0,1,2,3,4", help="separated by commas")
    parser.add_argument("--output", type=Path, default=Path("runs/natural"), help="folder of the lines of JSON")
    parser.add_argument("--pause", type=Path, help="a file while which exists training waits")
