"""Pictures of what the benchmark of learning found."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes
from scipy.stats import spearmanr

from benchmarks.accuracy.learning_runs import Run
from escnn_relaxed.plots.charts import COLOURS, FONT, WIDTH, labelled, new_axes

__all__ = ["draw", "rank_correlations"]

Results = list[tuple[Run, list[dict[str, Any]]]]

COLOUR_OF_TASK = dict(zip(("MNIST6-180", "within 60°", "turned"), COLOURS, strict=False))
MARKER_OF_START = {0.0: "s", 0.05: "v", 0.25: "o", 1.0: "^"}
# A logarithmic scale shows this in the place of 0.
LEAST = 1e-8
BY_DEPTH = "0.1 Σ√s"


def draw(folder: Path, results: Results) -> None:
    """Each picture for which there are runs."""
    folder.mkdir(parents=True, exist_ok=True)
    learned = [(run, found) for run, found in results if _start(run) is not None]
    pictures: list[tuple[str, Callable[[Results], pyplot.Figure], Results]] = [
        ("error_against_frequency_and_softness.png", _draw_errors, learned),
        ("softness_by_depth.png", _draw_depth, [(run, found) for run, found in learned if run.name == BY_DEPTH]),
        ("frequency_by_start.png", _draw_starts, [(run, found) for run, found in learned if run.part == "starts"]),
    ]
    for name, draw_one, chosen in pictures:
        if chosen:
            figure = draw_one(chosen)
            figure.savefig(folder / name, dpi=150)
            pyplot.close(figure)


def rank_correlations(results: Results) -> dict[str, float]:
    """Spearman's rank correlation of each layer's own error with ω′ and with s, over all layers of learned networks."""
    layers = [layer for run, found in results if _start(run) is not None for one in found for layer in one["layers"]]
    errors = [layer["own error"] for layer in layers]
    if len(layers) < 3:
        return {}
    return {key: float(spearmanr([layer[key] for layer in layers], errors)[0]) for key in ("frequency", "softness")}


def _start(run: Run) -> float | None:
    """The starting ω′ of a run that learns it."""
    return run.options["relax"]["rotation"] if run.options.get("learn_relaxation") else None


def _draw_errors(results: Results) -> pyplot.Figure:
    """Each layer's measured error against its ω′ and its s: only the second is a line."""
    figure, panels = pyplot.subplots(1, 2, figsize=(2 * WIDTH, 2.8), layout="constrained", sharey=True)
    correlations = rank_correlations(results)
    for axes, key, label in zip(panels, ("frequency", "softness"), ("ω′ of the layer", "softness s"), strict=True):
        new_axes(axes, 0)
        for run, found in results:
            layers = [layer for one in found for layer in one["layers"]]
            axes.plot(
                [max(layer[key], LEAST) for layer in layers],
                [max(layer["own error"], LEAST) for layer in layers],
                MARKER_OF_START[_start(run)],
                color=COLOUR_OF_TASK[run.task],
                markersize=3.5,
                alpha=0.6,
                markeredgewidth=0,
            )
        axes.set(xscale="log", yscale="log")
        labelled(axes, label, "measured error of the layer" if axes is panels[0] else "")
        axes.set_title(f"rank correlation {correlations[key]:.2f}", fontsize=FONT)
    left, right = LEAST, 1.0
    panels[1].plot([left, right], [math.sqrt(2 * left), math.sqrt(2 * right)], color="0.5", linewidth=1, zorder=0)
    panels[1].annotate("√(2s)", (1e-6, math.sqrt(2e-6)), (4, -12), textcoords="offset points", fontsize=FONT - 1)
    for task in dict.fromkeys(run.task for run, _ in results):
        panels[0].plot([], [], "o", color=COLOUR_OF_TASK[task], markersize=3.5, label=task)
    panels[0].legend(fontsize=FONT - 1, frameon=False)
    return figure


def _draw_depth(results: Results) -> pyplot.Figure:
    """Softness of each layer, a panel a task: bars of geometric means, dots of the seeds."""
    figure, panels = pyplot.subplots(
        1, len(results), figsize=(2.1 * len(results), 2.4), layout="constrained", sharey=True, squeeze=False
    )
    for number, (axes, (run, found)) in enumerate(zip(panels[0], results, strict=True)):
        _draw_layers(axes, [[max(layer["softness"], LEAST) for layer in one["layers"]] for one in found])
        axes.set_yscale("log")
        axes.set_ylim(LEAST, 1)
        axes.set_title(run.task, fontsize=FONT)
        labelled(axes, "layer", "softness s" if number == 0 else "")
    return figure


def _draw_layers(axes: Axes, by_seed: list[list[float]]) -> None:
    new_axes(axes, 0)
    numbers = range(1, len(by_seed[0]) + 1)
    means = [math.exp(sum(map(math.log, values)) / len(values)) for values in zip(*by_seed, strict=True)]
    axes.bar(numbers, means, color=COLOURS[0], alpha=0.5)
    for values in by_seed:
        axes.plot(numbers, values, "o", color="black", markersize=2.5)
    axes.set_xticks(list(numbers))


def _draw_starts(results: Results) -> pyplot.Figure:
    """|ω′| over training from each start, mean over layers and seeds, a panel a task."""
    tasks = list(dict.fromkeys(run.task for run, _ in results))
    figure, panels = pyplot.subplots(
        1, len(tasks), figsize=(WIDTH * len(tasks), 2.4), layout="constrained", sharey=True, squeeze=False
    )
    for axes, task in zip(panels[0], tasks, strict=True):
        new_axes(axes, 0)
        own = [(run, found) for run, found in results if run.task == task]
        for (run, found), colour in zip(own, COLOURS, strict=False):
            epochs = zip(*(one["history"] for one in found), strict=True)
            values = [[abs(value) for layers in seeds for value in layers] for seeds in epochs]
            curve = [sum(each) / len(each) for each in values]
            axes.plot(curve, color=colour, label=run.name, linewidth=1.3)
        axes.set_title(task, fontsize=FONT)
        axes.set_ylim(bottom=0)
        labelled(axes, "epoch", "|ω′|, mean of layers and seeds" if axes is panels[0][0] else "")
    return figure
