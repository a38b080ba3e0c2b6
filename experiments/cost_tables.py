"""The paper's tables of parameters and of runtimes, from what benchmarks/speed/runtimes.py wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.shared.markdown import table
from benchmarks.shared.run_log import Log

from .rows import find_row

__all__ = ["cost_sections"]

KINDS = ("train", "inference")
OF_FEW_IMAGES = (
    "The kernel of soft translation is evaluated at every pixel once for a batch, whatever the number of its images: "
    "its ratio falls as batches grow."
)
# In the paper too: 100 classes in place of 10, each of 64 weights and a bias.
MORE_ON_CIFAR100 = 5850


def cost_sections(path: Path) -> list[str]:
    """Both tables with their headings, each beside the published numbers; none where nothing was measured.

    Args:
        path: of the log.

    Raises:
        ValueError: for a file that is no log.
    """
    rows = Log(path).runs
    if not rows:
        return []
    # The same for all rows of a log.
    settings = next(iter(rows.values()))["settings"]
    parameters = ["## Parameters", _parameter_table(rows)]
    return [*parameters, "## Runtimes", settings, _runtime_table(rows), OF_FEW_IMAGES]


def _parameter_table(rows: Mapping[str, Any]) -> str:
    lines = []
    for name, row in rows.items():
        ours, published = row["parameters"], find_row(name).published["parameters"]
        counts = ours, published, ours + MORE_ON_CIFAR100, published + MORE_ON_CIFAR100
        lines.append([find_row(name).title, *(f"{count:,}" for count in counts)])
    header = "row", "CIFAR-10", "CIFAR-10, published", "CIFAR-100", "CIFAR-100, published"
    return table(header, lines, align_right=True)


def _runtime_table(rows: Mapping[str, Any]) -> str:
    first, *_ = rows
    of_first = find_row(first).published["seconds"]
    lines = []
    for name, row in rows.items():
        seconds = find_row(name).published["seconds"]
        published = [f"{own / of_cnn:.1f}" for own, of_cnn in zip(seconds, of_first, strict=True)]
        ours = [f"{row[kind]['median']:.1f} ({row[kind]['low']:.1f} to {row[kind]['high']:.1f})" for kind in KINDS]
        lines.append([find_row(name).title, ours[0], published[0], ours[1], published[1]])
    return table(("row", "train", "train, published", "inference", "inference, published"), lines, align_right=True)
