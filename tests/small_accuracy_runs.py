"""Short runs of the accuracy benchmark, and logs of runs that nobody made."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.accuracy import data, networks, training
from benchmarks.accuracy.layers import AnnealedR2Conv, Constant, FreeBias
from benchmarks.accuracy.runs import Cell
from benchmarks.shared.run_log import Log
from escnn_relaxed import RelaxedR2Conv


def few_fields(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three fields in the last layer, and rounds of one epoch."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(networks, "LAST", 3)
    monkeypatch.setattr(training, "FEWEST_STEPS", 1)
    yield
    torch.set_num_threads(threads)


def without_zeros(network: nn.Module) -> nn.Module:
    """The network with what breaks its symmetry away from 0, where training leaves it."""
    for module in network.modules():
        if isinstance(module, Constant):
            nn.init.ones_(module.value)
        if isinstance(module, FreeBias):
            nn.init.normal_(module.bias)
        if isinstance(module, networks.HEADS["soft"]):
            nn.init.normal_(module.alpha)
        if isinstance(module, RelaxedR2Conv):
            module.set_softness(0.1)
        if isinstance(module, AnnealedR2Conv):
            module.gate = 0.0
    return network.eval()


def cut(whole: data.Data) -> data.Data:
    """The data with 16 inputs to score."""
    few = {name: tuple(part[:16] for part in getattr(whole, name)) for name in ("stop", "scored", "copied")}
    return replace(whole, **few)


def logged(
    path: Path,
    scores: dict[str, tuple[float, ...]],
    task: str = "digits upright",
    images: int = 100,
    first_seed: int = 0,
) -> Log:
    """A log of runs of the test."""
    log = Log(path)
    costs: dict[str, Any] = {"parameters": 1000, "width": 6, "rate": 0.01, "penalty": 0.0, "seconds": 2.0}
    for way, values in scores.items():
        for seed, score in enumerate(values, first_seed):
            log.add(Cell(task, images, way, seed).key("test"), {"score": score, "turned": 100 - score, **costs})
    return log
