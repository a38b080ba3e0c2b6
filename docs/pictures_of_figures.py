"""Pictures of what was measured: numbers are read from the tables of the pages, and from the results of runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from matplotlib.figure import Figure

from drawing import FONT, SOFT, STRICT, large_labels, new_figure
from escnn_relaxed.plots import plot_accuracy

sys.path.append(str(Path(__file__).parents[1]))
from experiments.results import Result, load_results

__all__ = [
    "accuracies",
    "accuracy_by_epoch",
    "accuracy_by_frequency",
    "cost_by_channels",
    "costs",
    "what_it_brings",
]

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"


def table_rows(page: str, first_cells: str) -> list[list[str]]:
    """Cells of the table of a page whose head begins so, an empty first cell filled in from above."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = (
        next(
            number for number, line in enumerate(lines) if line.startswith(first_cells)
        )
        + 2
    )
    rows: list[list[str]] = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        rows.append([cells[0] or rows[-1][0], *cells[1:]])
    return rows


def accuracies() -> dict[str, dict[str, tuple[float, float]]]:
    """Network → digits → accuracy and its standard error, in per cent; of the page of accuracies."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for digits, network, accuracy, *_ in table_rows(
        "results/accuracy.md", "| digits | network | test accuracy"
    ):
        mean, error = re.findall(r"\d+\.\d+", accuracy)
        found.setdefault(network, {})[digits] = float(mean), float(error)
    return found


def costs() -> dict[str, dict[int, float]]:
    """What is soft → channels → time of a step of training over that of the strict layer; 7×7, 32×32, batch 16."""
    found: dict[str, dict[int, float]] = {
        "soft rotation, C8": {},
        "soft translation": {},
    }
    for what, against, ratio, *_ in table_rows("results/cost.md", "| what | against |"):
        parts = re.fullmatch(
            r"soft rotation, C8, (\d+) regular, 7×7, 32×32, batch 16", what
        )
        if parts and against == "R2Conv":
            found["soft rotation, C8"][8 * int(parts[1])] = float(ratio)
    for fields, kernel, images, training, *_ in table_rows(
        "results/cost.md", "| fields, channels | kernel |"
    ):
        parts = re.fullmatch(r"trivial, (\d+)", fields)
        if parts and (kernel, images) == ("7×7", "32×32, 16"):
            found["soft translation"][int(parts[1])] = float(training.split("*")[0])
    return found


def what_it_brings() -> Figure:
    """Accuracy of strict and soft networks, by how far digits are turned."""
    figure, axes = new_figure(6, 3.4)
    styles = {
        "`R2Conv`": (STRICT, "o", "R2Conv", 0.12),
        "soft (default)": (SOFT, "s", "RelaxedR2Conv", -0.12),
    }
    measured = accuracies()
    for name, (colour, marker, label, shift) in styles.items():
        values = measured[name]
        for place, (mean, error) in enumerate(values.values()):
            axes.errorbar(
                mean,
                place + shift,
                xerr=error,
                color=colour,
                marker=marker,
                markersize=8,
                capsize=3,
            )
            axes.annotate(
                f"{mean:.1f}",
                (mean, place + shift),
                # Away from the other network's.
                (0, 8 if shift < 0 else -18),
                textcoords="offset points",
                ha="center",
            )
        axes.plot([], [], color=colour, marker=marker, linestyle="", label=label)
    axes.set_yticks(range(len(values)), list(values), fontsize=FONT)
    axes.set_ylim(len(values) - 0.35, -0.55)
    axes.set_xlabel("test accuracy, %", fontsize=FONT)
    figure.legend(frameon=False, fontsize=FONT, loc="outside upper center", ncols=2)
    axes.grid(axis="x", alpha=0.3)
    return figure


def strict_and_soft_on_cifar10(images: int) -> list[Result]:
    """Runs on CIFAR-10 of the two rows that differ in ω′ alone, with so many images to train on."""
    return [
        result
        for result in load_results(RESULTS)
        if result.row.name in ("se2-4-soft", "se2-4-strict-corrected")
        and result.configuration.task == "cifar10"
        and result.images["train"] == images
    ]


def accuracy_by_frequency() -> Figure:
    """CIFAR-10, 2,000 images: accuracy against ω′ of all layers."""
    curve: dict[float, list[float]] = {}
    for result in strict_and_soft_on_cifar10(2000):
        frequency = result.configuration.relax["rotation"]
        curve.setdefault(frequency, []).append(result.test)
    figure, axes = new_figure(5, 2.8)
    plot_accuracy(curve, axes=axes)
    large_labels(axes)
    return figure


def accuracy_by_epoch() -> Figure:
    """CIFAR-10, all images: accuracy on validation after each epoch, a line a seed."""
    figure, axes = new_figure(5, 2.8)
    styles = {
        "se2-4-soft": ("soft", SOFT, "s"),
        "se2-4-strict-corrected": ("strict", STRICT, "o"),
    }
    for result in strict_and_soft_on_cifar10(45_000):
        label, colour, marker = styles[result.row.name]
        accuracies = [
            (epoch["epoch"], 100 * epoch["validation/accuracy"])
            for epoch in result.epochs
        ]
        axes.plot(
            *zip(*accuracies, strict=True),
            color=colour,
            marker=marker,
            label=label if result.seed == 0 else None,
        )
    axes.set_xlabel("epoch", fontsize=FONT)
    axes.set_ylabel("accuracy, %", fontsize=FONT)
    axes.legend(frameon=False, fontsize=FONT)
    return figure


def cost_by_channels() -> Figure:
    """Time of a step of training, in proportion to the strict layer, against channels."""
    figure, axes = new_figure(6, 2.9)
    for (label, ratios), marker, colour in zip(
        costs().items(), "os", (STRICT, SOFT), strict=True
    ):
        against = "R2Conv" if "rotation" in label else "Conv2d"
        axes.plot(
            *zip(*sorted(ratios.items()), strict=True),
            marker=marker,
            color=colour,
            label=f"{label} / {against}",
        )
    axes.axhline(1, color="0.5", linewidth=1, linestyle="--")
    axes.set_xscale("log", base=2)
    channels = sorted({channel for ratios in costs().values() for channel in ratios})
    axes.set_xticks(channels, [str(channel) for channel in channels], fontsize=FONT)
    axes.set(ylim=(0, 2.4))
    axes.set_xlabel("channels", fontsize=FONT)
    axes.set_ylabel("time of a step, ratio", fontsize=FONT)
    axes.legend(frameon=False, fontsize=FONT, loc="lower right")
    return figure
