"""Try your own layer: its network beside the two strict heads, in at most half an hour on two cores.

    python -m benchmarks.symmetry.evaluate package.module:Layer --data FOLDER --output layer.json [--workers 2]

The layer is called as ``Layer(in_type, out_type, kernel_size, padding=…, stride=…, bias=False)`` and gives an escnn
module between fields of these types. Its networks have as many parameters as those of ``R2Conv``, within
3 % where its widths allow it. In Python, :func:`evaluate` is the same for any function that makes layers.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from benchmarks.shared.run_log import Log
from benchmarks.symmetry.runs import Cell, Place, choose, commit, run, versions
from benchmarks.symmetry.ways import MAIN_WAYS, Way

__all__ = ["SUBSET", "evaluate"]

OWN = "own layer"
BESIDE = ("R2Conv", "R2Conv, free head")
# Two poses of digits, one number of images and two seeds.
SUBSET = tuple(("digits", "C8", pose, 1000) for pose in ("upright", "turned"))
SEEDS = (0, 1)
SCORES = ("accuracy", "turned", "worst", "agreement", "seconds", "parameters")


def evaluate(
    layer_factory: Callable[..., nn.Module],
    data: Path | None,
    log: Path,
    *,
    head: str = "pooled",
    subset: Sequence[tuple[str, str, str, int]] = SUBSET,
    seeds: Sequence[int] = SEEDS,
    workers: int = 1,
    place: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the mean scores of a layer on each part of the subset, beside those of both strict heads.

    Args:
        layer_factory: makes a layer; with several workers it must be known by name to other processes.
        data: folder of MNIST's files, or None for scikit-learn's digits.
        log: file that keeps runs as they end. What it holds is not run again, so that another layer needs another one.
        head: ``"pooled"``, ``"free"`` or ``"soft"``.
        subset: task, group, pose and number of training images of each part.
        seeds: of the runs.
        workers: number of processes.
        place: further arguments of :class:`~benchmarks.symmetry.runs.Place`.
    """
    ways = {**{name: MAIN_WAYS[name] for name in BESIDE}, OWN: Way(layer_factory, head)}
    where = Place(data, Log(log), ways=ways, **(place or {}))
    cells = [Cell(*part, way, seed) for seed in seeds for part in subset for way in ways]
    missing = [cell for cell in cells if str(cell) not in where.log.runs]
    if workers == 1:
        for cell in missing:
            where.log.add(str(cell), run(cell, where))
    else:
        # Choices first, each once; the runs that follow find them in the log.
        first = list({(cell.task, cell.group, cell.pose, cell.way): cell for cell in missing}.values())
        with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(choose, first, [where] * len(first)))
            again = Place(data, Log(log), ways=ways, **(place or {}))
            for cell, result in zip(missing, pool.map(run, missing, [again] * len(missing)), strict=True):
                again.log.add(str(cell), result)
    return _summary(subset, seeds, list(ways), Log(log))


def _summary(
    subset: Sequence[tuple[str, str, str, int]], seeds: Sequence[int], ways: Sequence[str], log: Log
) -> dict[str, Any]:
    """Return the means of the main scores by part and way, with where they are from."""
    parts = []
    for part in subset:
        names = dict(zip(("task", "group", "pose", "images"), part, strict=True))
        for way in ways:
            lines = [log.runs[str(Cell(*part, way, seed))] for seed in seeds]
            means = {score: round(fmean(line[score] for line in lines), 3) for score in SCORES}
            parts.append({**names, "way": way, **means, "rate": lines[0]["rate"], "trials": lines[0]["trials"]})
    return {"seeds": list(seeds), "commit": commit(), "versions": versions(), "results": parts}


def _named(name: str) -> Callable[..., nn.Module]:
    """Return the class or function ``package.module:name``."""
    module, _, attribute = name.partition(":")
    found: Callable[..., nn.Module] = getattr(importlib.import_module(module), attribute)
    return found


def main() -> None:
    """Evaluate the layer that is named, write and print its scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer", help="package.module:Layer")
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--output", type=Path, required=True, help="JSON file; runs are kept beside it, in .jsonl")
    parser.add_argument("--head", default="pooled", help="pooled, free or soft")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = arguments.output.with_suffix(".jsonl")
    found = evaluate(_named(arguments.layer), arguments.data, log, head=arguments.head, workers=arguments.workers)
    text = json.dumps(found, indent=1)
    arguments.output.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
