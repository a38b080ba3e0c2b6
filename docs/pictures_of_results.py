"""Pictures of what was measured, read from the results of runs."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import mean, stdev

from matplotlib import pyplot
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from drawing import FONT, SOFT, STRICT, new_figure

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks.discovery import CASES, Case, name_of
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


# Of each decision in the picture below: its colour, its name.
DECISIONS = (("0.88", "right"), (SOFT, "false alarm"), (STRICT, "miss"))
WAYS = {"training on": "which_softness_helps", "at once": "evidence.harden"}


def discovery() -> Figure:
    """Decisions about mirrors, a row for each task and a cell for each seed, by the number of training images."""
    lines = (RESULTS / "discovery" / "answers.jsonl").read_text().splitlines()
    runs = {run["run"]: run["result"] for run in map(json.loads, lines)}
    cases = {
        name: case for name, case in CASES.items() if "reflection" in case.subgroups
    }
    grids = {
        way: {name: _decisions(runs, name, case, way) for name, case in cases.items()}
        for way in WAYS
    }
    wrong = {
        name: sum(map(bool, grids["at once"][name] + grids["training on"][name]))
        for name in cases
    }
    names = sorted(cases, key=lambda name: wrong[name], reverse=True)
    figure, panels = pyplot.subplots(
        1, 2, figsize=(7.4, 4.6), sharey=True, layout="constrained"
    )
    colours = ListedColormap([colour for colour, _ in DECISIONS])
    colours.set_bad("white")
    for axes, (way, title) in zip(panels, WAYS.items(), strict=True):
        axes.pcolormesh(
            [
                grids[way][name] + [math.nan] * (15 - len(grids[way][name]))
                for name in names
            ],
            cmap=colours,
            vmin=-0.5,
            vmax=2.5,
            edgecolors="white",
            linewidth=0.8,
        )
        axes.set_title(title, fontsize=FONT)
        axes.set_xticks([2.5, 7.5, 12.5], ["300", "1,000", "3,000"], fontsize=FONT - 1)
        axes.vlines([5, 10], 0, len(names), color="0.3", linewidth=1)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    labels = [name.replace("turned", "rotated") for name in names]
    labels[names.index("faces, mirrored or not")] += " (100 images)"
    panels[0].set_yticks(
        [row + 0.5 for row in range(len(names))], labels, fontsize=FONT - 1
    )
    panels[0].invert_yaxis()
    figure.supxlabel("training images, five seeds each", fontsize=FONT - 1, x=0.68)
    handles = [Patch(color=colour, label=label) for colour, label in DECISIONS]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=3,
        frameon=False,
        fontsize=FONT - 1,
    )
    return figure


def _decisions(
    runs: dict[str, dict[str, dict[str, bool]]], name: str, case: Case, way: str
) -> list[float]:
    """Return for each number of images and seed 0 where the decision is right, 1 for a false alarm, 2 for a miss."""
    is_broken = "reflection" in case.broken
    found = [
        runs[name_of(name, images, seed, "held-out")][way].get("reflection", False)
        for images in case.images
        for seed in case.seeds
    ]
    return [0.0 if each == is_broken else 2.0 if is_broken else 1.0 for each in found]
