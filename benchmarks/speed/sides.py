"""What comparisons of cost share: layers on plain tensors, and the time and the memory of a call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from benchmarks.shared.training import take_step

Call = Callable[[], object]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class OnTensors(nn.Module):
    """A layer of escnn on plain tensors, so that all sides are called alike."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        """(batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        answer: Tensor = self.layer(GeometricTensor(images, self.layer.in_type)).tensor
        return answer


def regular(gspace: Any, fields: int) -> FieldType:
    """Regular fields of a group."""
    return FieldType(gspace, [gspace.regular_repr] * fields)


def evaluation(module: nn.Module, *shape: int) -> Call:
    """Forward without gradients, in eval mode."""
    images = torch.randn(*shape, device=DEVICE)
    module.eval()
    return torch.no_grad()(lambda: module(images))


def training(network: nn.Module, images: Tensor, labels: Tensor, *penalties: Callable[[], Tensor]) -> Call:
    """Forward, backward and a step of Adam of a classifier."""
    optimiser = torch.optim.Adam(network.train().parameters())
    return lambda: take_step(network, (images, labels), functional.cross_entropy, optimiser, penalties)


@dataclass(frozen=True)
class Ratio:
    """The time of one side over that of another: median and quartiles of the ratios of calls that follow each other."""

    median: float
    low: float
    high: float
    # The median time of the other side.
    seconds: float


def alternate(ours: Call, theirs: Call, repetitions: int) -> Ratio:
    """Call both in turn, after two rounds that do not count."""
    pairs = [(_time(ours), _time(theirs)) for _ in range(repetitions + 2)][2:]
    ratios = [our / their for our, their in pairs]
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Ratio(median, low, high, statistics.median(their for _, their in pairs))


def _time(call: Call) -> float:
    if DEVICE.type == "cpu":
        # One thread is timed by its time on the processor, which other processes do not lengthen.
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        call()
        return clock() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    call()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1000


def peak_memory(call: Call) -> float:
    """MiB of tensors by which the peak grows in one call."""
    call()
    if DEVICE.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 2**20
