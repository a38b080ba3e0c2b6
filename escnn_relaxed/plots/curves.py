"""Curves: ω′ over training, and accuracy against ω′."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from matplotlib.axes import Axes

from ..checks import check_mapping, check_number, check_sequence
from .style import COLOURS, FONT, by_depth, labelled, new_axes

__all__ = ["plot_accuracy", "plot_domain_frequency"]

History = Mapping[str, Sequence[tuple[int, float]]]

_TAG = "domain_frequency/"
_LINES = {"rotation": "-", "reflection": "--", "translation_x": ":", "translation_y": "-."}
_MARKERS = "os^Dv"


def plot_domain_frequency(history: History, axes: Axes | None = None) -> Axes:
    """ω′ of each layer over training: a colour a layer, dark to light with depth, a line style a subgroup.

    Args:
        history: that of a :class:`~escnn_relaxed.measure.RelaxationMonitor` or the Lightning callback
            ``LogRelaxation``: tag → pairs (step, value), of which ``domain_frequency/<layer>/<subgroup>`` are drawn.
        axes: where to draw, a new figure by default.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for a history without ω′.

    Example:
        >>> axes = plot_domain_frequency(
        ...     {"domain_frequency/first/rotation": [(0, 0.25), (100, 0.1)]}
        ... )
        >>> axes.lines[0].get_ydata().tolist()
        [0.25, 0.1]
    """
    for tag, pairs in check_mapping("history", history, "pairs (step, value) by tag").items():
        _check_pairs(f"history[{tag!r}]", pairs)
    series = {tag.removeprefix(_TAG).rpartition("/"): pairs for tag, pairs in history.items() if tag.startswith(_TAG)}
    if not series:
        raise ValueError(f"history must have tags {_TAG}<layer>/<subgroup>, got {list(history)}")
    axes = new_axes(axes, 2.4)
    colours = by_depth(list(dict.fromkeys(layer for layer, _, _ in series)))
    has_several = len({subgroup for _, _, subgroup in series}) > 1
    for (layer, _, subgroup), pairs in series.items():
        steps, values = zip(*pairs, strict=True)
        label = f"{layer}, {subgroup.replace('_', ' ')}" if has_several else layer
        axes.plot(steps, values, _LINES.get(subgroup, "-"), color=colours[layer], label=label, linewidth=1.5)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    labelled(axes, "step", "domain frequency ω′")
    if len(series) > 1:
        axes.legend(
            fontsize=FONT - 1, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0), handlelength=2.5
        )
    return axes


def plot_accuracy(
    results: Mapping[float, Sequence[float]],
    label: str | None = None,
    quantity: str = "accuracy, %",
    axes: Axes | None = None,
) -> Axes:
    """Accuracy against ω′, the mean over seeds with its standard error.

    Args:
        results: ω′ → the accuracy of each seed.
        label: name of the curve, where several are drawn into the same axes, each in a colour of its own.
        quantity: what the numbers are.
        axes: where to draw, a new figure by default.

    Raises:
        TypeError: for an argument of another type.
        ValueError: without results, or with an ω′ that has none.

    Example:
        >>> axes = plot_accuracy({0.0: [95.0, 97.0], 0.25: [98.0, 99.0]})
        >>> axes.containers[0].lines[0].get_ydata().tolist()
        [96.0, 98.5]
    """
    for frequency, values in check_mapping("results", results, "accuracies by ω′").items():
        check_number("results: an ω′", frequency)
        for value in check_sequence(f"results[{frequency}]", values, "numbers"):
            check_number(f"results[{frequency}]: an accuracy", value)
    if not results or not all(len(values) for values in results.values()):
        raise ValueError(f"results must have an accuracy for each ω′, got {dict(results)}")
    axes = new_axes(axes, 2.3)
    number = len(axes.containers)
    frequencies = sorted(results)
    axes.errorbar(
        frequencies,
        [mean(results[frequency]) for frequency in frequencies],
        yerr=[_standard_error(results[frequency]) for frequency in frequencies],
        color=COLOURS[number % len(COLOURS)],
        marker=_MARKERS[number % len(_MARKERS)],
        label=label,
        markersize=4,
        linewidth=1.2,
        capsize=2.5,
    )
    return labelled(axes, "domain frequency ω′", quantity)


def _check_pairs(name: str, pairs: Any) -> None:
    """Pairs of numbers, at least one."""
    if not check_sequence(name, pairs, "pairs (step, value)"):
        raise ValueError(f"{name} must have a pair (step, value), got none")
    for pair in pairs:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(f"{name} must be pairs (step, value), got {pair!r}")
        for number in pair:
            check_number(name, number)


def _standard_error(values: Sequence[float]) -> float:
    """σ/√n; 0 of one value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
