"""Pictures of what was measured, read from the results of runs."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from statistics import mean, stdev

from matplotlib.figure import Figure

from drawing import FONT, SOFT, STRICT, new_figure

sys.path.append(str(Path(__file__).parents[1]))
from experiments.results import Result, load_results

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


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
    frequencies = sorted(curve)
    means = [mean(curve[frequency]) for frequency in frequencies]
    errors = [
        stdev(curve[frequency]) / math.sqrt(len(curve[frequency]))
        for frequency in frequencies
    ]
    axes.errorbar(frequencies, means, errors, color=STRICT, marker="o", capsize=2.5)
    axes.set(xlabel="domain frequency ω′", ylabel="accuracy, %")
    axes.xaxis.label.set_fontsize(FONT)
    axes.yaxis.label.set_fontsize(FONT)
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
