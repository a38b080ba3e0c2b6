"""Pictures of what was measured, read from the results of runs, and of the setting to choose."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import mean, stdev

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drawing import FONT, FREE, SOFT, STRICT, new_figure

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


def tradeoff() -> Figure:
    """Upright digits: accuracy as they are against that on turned copies, a line for each kind of network."""
    scores: dict[str, list[dict[str, float]]] = {}
    for line in (RESULTS / "symmetry" / "tradeoff.jsonl").read_text().splitlines():
        run = json.loads(line)
        kind = run["run"].rpartition(", ")[0]
        for change, found in run["result"]["points"].items():
            scores.setdefault(f"{kind}, {change}", []).append(found)

    def point(name: str) -> list[tuple[float, float]]:
        """Return mean and standard error, of turned copies and of images as they are."""
        values = [
            [run[score] for run in scores[name]] for score in ("turned", "accuracy")
        ]
        return [(mean(part), stdev(part) / len(part) ** 0.5) for part in values]

    figure, axes = new_figure(6.4, 3.6)
    # The name of the network, its legend, its look, and where beside and above its points their shares stand.
    families = (
        ("strict", "strict, pooled", STRICT, "o", ((0, -16), (16, -14), (0, 9))),
        (
            "free head",
            "strict, free head",
            FREE,
            "s",
            ((22, -16), (-16, -16), (-20, -4)),
        ),
        ("soft", "soft, pooled", SOFT, "D", ((0, 9), (8, 10), (20, 0))),
    )
    for name, label, colour, marker, offsets in families:
        shares = {
            words: f"{name}{share}, trained"
            for words, share in (
                ("none", ""),
                ("10 %", ", 10 % turned"),
                ("30 %", ", 30 % turned"),
            )
            if f"{name}{share}, trained" in scores
        }
        found = {words: point(key) for words, key in shares.items()}
        turned, as_they_are = zip(*found.values(), strict=True)
        axes.errorbar(
            *([value for value, _ in part] for part in (turned, as_they_are)),
            *([error for _, error in part] for part in (as_they_are, turned)),
            color=colour,
            marker=marker,
            markersize=5,
            elinewidth=1,
            label=label,
        )
        look = {"textcoords": "offset points", "ha": "center", "color": colour}
        for (words, ((x, _), (y, _))), offset in zip(
            found.items(), offsets, strict=True
        ):
            axes.annotate(words, (x, y), offset, fontsize=FONT - 2, **look)
    for words, key in (
        ("evidence", "evidence, trained"),
        ('keep="C4"', 'soft, keep="C4", trained'),
    ):
        (x, _), (y, _) = point(key)
        axes.plot(x, y, "x", color=SOFT)
        look = {"textcoords": "offset points", "va": "center", "color": SOFT}
        axes.annotate(words, (x, y), (7, 0), fontsize=FONT - 2, **look)
    axes.set_xlabel("right on copies turned after training, %", fontsize=FONT)
    axes.set_ylabel("right as they are, %", fontsize=FONT)
    axes.set(xlim=(22, 98), ylim=(93, 98.2))
    axes.legend(frameon=False, fontsize=FONT - 1, loc="lower left")
    return figure


def which_setting() -> Figure:
    """What one knows of the data, and the setting for it."""
    figure, axes = new_figure(4.6, 7.8)
    rows = (
        ("any pose, the same label", "R2Conv(…)"),
        ("upright, but turned later", "R2Conv(…), or soft\nand turned copies"),
        ("upright, one class each", "R2Conv(…) and\na free head"),
        ("a turn changes the label", "RelaxedR2Conv(…),\nor a free head"),
        ("the output is a field", "RelaxedR2Conv(…), or\na free last layer"),
        ("mirror images differ,\nturned ones do not", 'relax="reflection"'),
        ("I do not know", "pose_test and\nwhich_softness_helps"),
    )
    icons = (
        _turned,
        _turned_later,
        _upright,
        _relabelled,
        _field,
        _mirrored,
        _unknown,
    )
    for number, ((words, code), icon) in enumerate(zip(rows, icons, strict=True)):
        y = 1.1 * (len(rows) - 1 - number)
        icon(axes, y)
        axes.text(1.05, y + 0.28, words, va="center", fontsize=FONT)
        is_strict = code.startswith("R2Conv")
        style = {"facecolor": "#d6e6f4" if is_strict else "#fbe6d6"}
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
    axes.set(xlim=(-0.1, 4.3), ylim=(-0.5, 7.1), aspect="equal")
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
    _word(axes, 0.42, y, "4", 28)


def _turned(axes: Axes, y: float) -> None:
    _frame(axes, y)
    for x, up, angle in ((0.22, 0.18, 40), (0.6, 0.14, 200), (0.36, -0.2, 120)):
        _word(axes, x, y + up, "4", 16, angle)


def _mirrored(axes: Axes, y: float) -> None:
    _frame(axes, y)
    axes.plot([0.42, 0.42], [y - 0.34, y + 0.34], "--", color="0.5", linewidth=1)
    _word(axes, 0.2, y, "b", 22)
    _word(axes, 0.64, y, "d", 22)


def _turned_later(axes: Axes, y: float) -> None:
    """An upright digit, an arrow, a turned one."""
    _becomes(axes, y, "4", 120)


def _relabelled(axes: Axes, y: float) -> None:
    """A six, an arrow, and the nine that it becomes."""
    _becomes(axes, y, "6", 180)


def _becomes(axes: Axes, y: float, word: str, turned: float) -> None:
    _frame(axes, y)
    _word(axes, 0.18, y, word, 22)
    style = {"arrowstyle": "->", "color": "0.3"}
    axes.annotate("", (0.53, y), (0.31, y), arrowprops=style)
    _word(axes, 0.66, y, word, 22, turned)


def _field(axes: Axes, y: float) -> None:
    """A field of arrows, each with its own direction."""
    _frame(axes, y)
    style = {"arrowstyle": "-|>", "color": SOFT, "linewidth": 1.5}
    for row in range(3):
        for column in range(3):
            x, up = 0.18 + 0.24 * column, y - 0.24 + 0.24 * row
            angle = 0.9 * row - 0.7 * column
            across, along = 0.11 * math.cos(angle), 0.11 * math.sin(angle)
            ends = (x + across, up + along), (x - across, up - along)
            axes.annotate("", *ends, arrowprops=style)


def _unknown(axes: Axes, y: float) -> None:
    _frame(axes, y)
    _word(axes, 0.42, y, "?", 26)
