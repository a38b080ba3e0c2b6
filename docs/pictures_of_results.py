"""Pictures of what was measured, read from the results of runs, and of the setting to choose."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
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


def which_setting() -> Figure:
    """What one knows of the data, and the setting for it."""
    figure, axes = new_figure(4.6, 6.8)
    rows = (
        ("upright: a 6 is no 9", "RelaxedR2Conv(…)"),
        ("turned by any angle", "R2Conv(…)"),
        ("mirror images differ", 'relax=("reflection",)'),
        ("the place matters", 'relax=("translation",)'),
        ("volumes with an axis", "RelaxedR3Conv(…)"),
        ("I do not know", "RelaxedR2Conv(…) and\nSoftnessEvidence"),
    )
    icons = (_upright, _turned, _mirrored, _placed, _axis, _unknown)
    for number, ((words, code), icon) in enumerate(zip(rows, icons, strict=True)):
        y = 1.1 * (len(rows) - 1 - number)
        icon(axes, y)
        axes.text(1.05, y + 0.28, words, va="center", fontsize=FONT)
        style = {"facecolor": "#d6e6f4" if code == "R2Conv(…)" else "#fbe6d6"}
        frame = {"boxstyle": "round,pad=0.4", "edgecolor": "0.4", **style}
        axes.text(
            1.5,
            y - 0.2,
            code,
            va="center",
            fontsize=FONT,
            family="monospace",
            bbox=frame,
        )
        style = {"arrowstyle": "->", "color": "0.3"}
        axes.annotate("", (1.36, y - 0.2), (1.05, y - 0.2), arrowprops=style)
    axes.set(xlim=(-0.1, 4.3), ylim=(-0.5, 6.0), aspect="equal")
    axes.axis("off")
    return figure


def _frame(axes: Axes, y: float) -> None:
    corner = 0.0, y - 0.42
    axes.add_patch(
        pyplot.Rectangle(corner, 0.84, 0.84, facecolor="0.96", edgecolor="0.4")
    )


def _word(
    axes: Axes, x: float, y: float, word: str, size: int, turned: float = 0.0
) -> None:
    axes.text(x, y, word, ha="center", va="center", fontsize=size, rotation=turned)


def _upright(axes: Axes, y: float) -> None:
    _frame(axes, y)
    _word(axes, 0.42, y, "6", 28)


def _turned(axes: Axes, y: float) -> None:
    _frame(axes, y)
    for x, up, angle in ((0.22, 0.18, 40), (0.6, 0.14, 200), (0.36, -0.2, 120)):
        _word(axes, x, y + up, "6", 16, angle)


def _mirrored(axes: Axes, y: float) -> None:
    _frame(axes, y)
    axes.plot([0.42, 0.42], [y - 0.34, y + 0.34], "--", color="0.5", linewidth=1)
    _word(axes, 0.2, y, "b", 22)
    _word(axes, 0.64, y, "d", 22)


def _placed(axes: Axes, y: float) -> None:
    """The sky above, the ground below."""
    _frame(axes, y)
    axes.fill_between([0.0, 0.84], y - 0.42, y - 0.12, color="0.75", linewidth=0)
    axes.add_patch(pyplot.Circle((0.6, y + 0.18), 0.12, color=SOFT))


def _axis(axes: Axes, y: float) -> None:
    """A cube, and an arrow up."""
    front = np.array(
        [[0.08, -0.36], [0.56, -0.36], [0.56, 0.12], [0.08, 0.12], [0.08, -0.36]]
    )
    for shift in (0.0, 0.2):
        axes.plot(
            front[:, 0] + shift, front[:, 1] + shift + y, color="0.5", linewidth=1
        )
    for x, up in front[:4]:
        axes.plot([x, x + 0.2], [up + y, up + y + 0.2], color="0.5", linewidth=1)
    style = {"arrowstyle": "-|>", "color": SOFT, "linewidth": 2}
    axes.annotate("", (0.42, y + 0.44), (0.42, y - 0.4), arrowprops=style)


def _unknown(axes: Axes, y: float) -> None:
    _frame(axes, y)
    _word(axes, 0.42, y, "?", 26)
