"""Runs in several processes at a time, each of one thread, which write to the same log."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.shared.run_log import Log

# What makes one run or more, of which the log keeps each as it ends. A place is a frozen dataclass with a log, and with
# the time, in seconds since the epoch, after which no run starts: ``log`` and ``end``.
Job = Callable[[Any], object]
# Libraries read these once, as a process starts.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class TimeIsUpError(Exception):
    """A run may not start any more."""


def once_in_time(log: Log, end: float, run: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a run, from the log where it is there; raise an error where it may not start."""
    if run not in log.runs and time.time() >= end:
        raise TimeIsUpError
    return log.once(run, make)


def do(jobs: Iterable[Job], place: Any, processes: int = 1) -> bool:
    """Do jobs one after another here, or so many at a time in as many new processes, and first what the log holds.

    Each job in a new process reads the log as it starts, so that it finds what others have made. A job that fails ends
    the call, after those that run.

    Returns:
        Whether the time sufficed for all.
    """
    known = replace(place, end=-math.inf)
    jobs = [job for job in jobs if not _finishes(job, known)]
    if processes == 1 or len(jobs) < 2:
        return all([_finishes(job, place) for job in jobs])
    os.environ.update(dict.fromkeys(THREADS, "1"))
    with ProcessPoolExecutor(min(processes, len(jobs)), get_context("spawn"), _start) as pool:
        running = [pool.submit(_finishes, job, place) for job in jobs]
        try:
            finished = [future.result() for future in as_completed(running)]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    place.log.read()
    return all(finished)


def _start() -> None:
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False


def _finishes(job: Job, place: Any) -> bool:
    """Do a job; return False where its time was up."""
    try:
        job(place)
    except TimeIsUpError:
        return False
    return True
