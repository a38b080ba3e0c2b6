"""Try your own layer: its network beside the two strict heads, on digits in two poses.

    python -m benchmarks.symmetry.evaluate package.module:Layer --data FOLDER --output layer.jsonl [--head free]

The layer is called as ``Layer(in_type, out_type, kernel_size, padding=…, stride=…, bias=False)`` and gives an escnn
module between fields of these types. Its networks have as many parameters as those of ``R2Conv``, within 3 % where its
widths allow it. The log keeps runs as they end. What it holds is not run again, so another layer needs another log. In
Python, :func:`evaluate` is the same for any function that makes layers.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from benchmarks.shared.run_log import Log
from benchmarks.symmetry.report import tables
from benchmarks.symmetry.results import HEADS, grouped, rows_of
from benchmarks.symmetry.runs import Cell, Place, train_missing
from benchmarks.symmetry.ways import MAIN_WAYS, Way

OWN = "own layer"
# Task, group, pose and number of training images.
SUBSET = (("digits", "C8", "upright", 1000), ("digits", "C8", "turned", 1000))


def evaluate(
    layer: Callable[..., nn.Module],
    place: Place,
    *,
    head: str = "pooled",
    subset: Sequence[tuple[str, str, str, int]] = SUBSET,
    seeds: Sequence[int] = (0, 1),
) -> str:
    """Train what the log lacks, and return the tables of a layer beside both strict heads."""
    place = replace(place, ways={**{name: MAIN_WAYS[name] for name in HEADS}, OWN: Way(layer, head)})
    train_missing([Cell(*part, way, seed) for seed in seeds for part in subset for way in place.ways], place)
    return "\n\n".join(tables(list(grouped(rows_of([place.log])).values())).values())


def main() -> None:
    """Evaluate the layer that is named, and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer", help="package.module:Layer")
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--output", type=Path, required=True, help="the log, a file of JSON lines")
    parser.add_argument("--head", default="pooled", help="pooled, free or soft")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    module, _, name = arguments.layer.partition(":")
    layer = getattr(importlib.import_module(module), name)
    print(evaluate(layer, Place(arguments.data, Log(arguments.output)), head=arguments.head))


if __name__ == "__main__":
    main()
