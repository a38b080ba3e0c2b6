"""Ratios of medians: several sides of a comparison, called in turn in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], object]


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
    ratios, seconds = [], []
    for number in range(repetitions + 2):
        pair = _time(ours), _time(theirs)
        if number >= 2:
            ratios.append(pair[0] / pair[1])
            seconds.append(pair[1])
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Ratio(median, low, high, statistics.median(seconds))


def _time(call: Call) -> float:
    if not torch.cuda.is_available():
        # One thread is timed by its time on the processor, which other processes do not lengthen.
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        call()
        return clock() - start
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start_event.record()
    call()
    end_event.record()
    torch.cuda.synchronize()
    return start_event.elapsed_time(end_event) / 1000


def captured(call: Call) -> Call:
    """Return a function that replays the call as a CUDA graph; without a GPU the call."""
    if not torch.cuda.is_available():
        return call
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def peak_memory(call: Call) -> float:
    """MiB of tensors by which the peak grows in one call."""
    call()
    if torch.cuda.is_available():
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
