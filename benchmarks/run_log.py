"""Runs that are trained once: kept in a file as they end, a process a core, and gone on with by a second call."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

__all__ = ["Log", "mean_and_error", "run_missing"]


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


def run_missing(
    wanted: Mapping[str, tuple[Any, ...]], train: Callable[..., dict[str, Any]], log: Log, workers: int
) -> Iterator[tuple[str, str]]:
    """Train what the log does not hold yet; the count and the description of each run as it is kept.

    Args:
        wanted: description of a run → the arguments of ``train``.
        train: one run, in a process of its own.
        log: what is there, and where results go.
        workers: number of processes.
    """
    missing = {name: arguments for name, arguments in wanted.items() if name not in log.runs}
    with ProcessPoolExecutor(workers) as pool:
        futures = {name: pool.submit(train, *arguments) for name, arguments in missing.items()}
        for number, (name, future) in enumerate(futures.items(), 1):
            log.add(name, future.result())
            yield f"{number}/{len(futures)}", name


def mean_and_error(values: Sequence[float]) -> str:
    """Mean ± standard error; of one value no error."""
    tensor = torch.tensor(values)
    error = f" ± {float(tensor.std()) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{float(tensor.mean()):.2f}{error}"
