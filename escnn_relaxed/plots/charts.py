"""The style of all pictures, and charts of softness, of ω′, of evidence and of errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

from matplotlib import colormaps, pyplot
from matplotlib.axes import Axes
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator
from torch import nn

from ..checks import check_mapping, check_sequence
from ..learning import EvidenceRow
from ..measure.reports import EquivarianceReport, ErrorRow
from ..network.relaxed_layers import relaxed_layers

# The width of one of two columns, in inches.
WIDTH = 3.3
FONT = 8
# Okabe and Ito's, told apart by colour-blind readers; in the order in which curves take them.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Purple and orange stay apart for all common kinds of colour blindness; 0 is white.
DIVERGING = "PuOr"


def by_label(name: str, value: Any, kind: type = object, source: str = "") -> dict[str, Any]:
    """Return what is drawn by its label, at least one, of a kind; what is given alone has an empty label."""
    named = dict(value) if isinstance(value, Mapping) else {"": value}
    if not named:
        raise ValueError(f"{name} must have one to draw, got none")
    for label, each in named.items():
        if not isinstance(each, kind):
            raise TypeError(f"{name}: {label!r} must be of {source}, got {each!r}")
    return named


def new_axes(axes: Axes | None, height: float, width: float = WIDTH, **arguments: Any) -> Axes:
    """Return the axes that were given, or new ones in a figure of their own; sizes in inches."""
    if axes is None:
        _, axes = pyplot.subplots(figsize=(width, height), layout="constrained", **arguments)
    if not isinstance(axes, Axes):
        raise TypeError(f"axes must be of matplotlib, got {axes!r}")
    axes.tick_params(labelsize=FONT)
    if not isinstance(axes, PolarAxes):
        axes.spines[["top", "right"]].set_visible(False)
    return axes


def labelled(axes: Axes, x: str, y: str) -> Axes:
    """Return the axes with their labels, and a legend where there is something to tell apart."""
    axes.set_xlabel(x, fontsize=FONT)
    axes.set_ylabel(y, fontsize=FONT)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize=FONT - 1, frameon=False)
    return axes


def without_frame(axes: Axes) -> Axes:
    """Return the axes with labels, but without lines and ticks."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return axes


_TAG = "domain_frequency/"
_LINES = {"rotation": "-", "reflection": "--", "translation_x": ":", "translation_y": "-."}
# The largest step of a sweep over angles, 30° and some rounding.
_SWEEP = math.radians(30.1)
_RESAMPLING = "resampling alone"


def plot_softness(network: nn.Module, axes: Axes | None = None) -> Axes:
    """A bar of s for each relaxed layer, by depth, on a logarithmic scale.

    Args:
        network: any module with relaxed layers.
        axes: where to draw, a new figure by default.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> axes = plot_softness(RelaxedR2Conv(fields, fields, 3, initial_softness=0.05))
        >>> [round(bar.get_height(), 4) for bar in axes.patches]
        [0.05]
    """
    layers = relaxed_layers(network)
    # Wider than a column where bars would not have room.
    axes = new_axes(axes, 2.6, max(WIDTH, 0.9 + 0.4 * len(layers)))
    axes.bar(range(len(layers)), [layer.softness().item() for layer in layers.values()], color=COLOURS[0])
    axes.set_xticks(range(len(layers)), list(layers), rotation=30, ha="right")
    axes.set_yscale("symlog", linthresh=1e-6)
    axes.set_ylim(0, 1)
    return labelled(axes, "layer", "softness s")


def plot_evidence(rows: Sequence[EvidenceRow], axes: Axes | None = None) -> Axes:
    """A bar of γ/n for each layer and subgroup, by depth, in a colour for each subgroup.

    Args:
        rows: ``evidence.table()`` of a :class:`~escnn_relaxed.SoftnessEvidence`, after an update.
        axes: where to draw, a new figure by default.

    Example:
        >>> rows = [EvidenceRow("conv", "rotation", 20, 3.0, 0.002, 50.0)]
        >>> [bar.get_height() for bar in plot_evidence(rows).patches]
        [0.15]
    """
    if not all(isinstance(row, EvidenceRow) for row in check_sequence("rows", rows, "EvidenceRow")):
        raise TypeError(f"rows must be the table of SoftnessEvidence, or EvidenceRows of it, got {rows!r}")
    if not len(rows):
        raise ValueError("rows must have one or more, got none: the network is strict")
    layers, subgroups = (list(dict.fromkeys(names)) for names in ([r.layer for r in rows], [r.subgroup for r in rows]))
    axes = new_axes(axes, 2.6, max(WIDTH, 0.55 * len(rows)))
    width = 0.8 / len(subgroups)
    for number, subgroup in enumerate(subgroups):
        own = [row for row in rows if row.subgroup == subgroup]
        centres = [layers.index(row.layer) + (number - (len(subgroups) - 1) / 2) * width for row in own]
        axes.bar(
            centres, [row.gamma_per_weight for row in own], width, color=COLOURS[number % len(COLOURS)], label=subgroup
        )
    axes.set_ylim(0, 1)
    axes.set_xticks(range(len(layers)), layers, rotation=30, ha="right")
    return labelled(axes, "layer", "determined by the data, γ/n")


def plot_domain_frequency(history: Mapping[str, Sequence[tuple[int, float]]], axes: Axes | None = None) -> Axes:
    """ω′ of each layer over training: a colour a layer, dark to light with depth, a line style a subgroup.

    Args:
        history: of :func:`~escnn_relaxed.measure.relaxation_scalars` over training, tag → pairs (step, value), of which
            ``domain_frequency/<layer>/<subgroup>`` are drawn. The Lightning callback ``LogRelaxation`` keeps it.
        axes: where to draw, a new figure by default.

    Example:
        >>> history = {"domain_frequency/first/rotation": [(0, 0.25), (100, 0.1)]}
        >>> plot_domain_frequency(history).lines[0].get_ydata().tolist()
        [0.25, 0.1]
    """
    tags = check_mapping("history", history, "pairs (step, value) by tag")
    series = {tag.removeprefix(_TAG).rpartition("/"): pairs for tag, pairs in tags.items() if tag.startswith(_TAG)}
    if not series:
        raise ValueError(f"history must have tags {_TAG}<layer>/<subgroup>, got {list(history)}")
    axes = new_axes(axes, 2.4)
    layers = list(dict.fromkeys(layer for layer, _, _ in series))
    has_several = len({subgroup for _, _, subgroup in series}) > 1
    for (layer, _, subgroup), pairs in series.items():
        label = f"{layer}, {subgroup.replace('_', ' ')}" if has_several else layer
        # Told apart in grey, too.
        colour = colormaps["viridis"](0.88 * layers.index(layer) / max(1, len(layers) - 1))
        axes.plot(*zip(*pairs, strict=True), _LINES.get(subgroup, "-"), color=colour, label=label, linewidth=1.5)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    labelled(axes, "step", "domain frequency ω′")
    if len(series) > 1:
        axes.legend(
            fontsize=FONT - 1, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1), handlelength=2.5
        )
    return axes


def plot_equivariance_error(
    reports: EquivarianceReport | Mapping[str, EquivarianceReport], axes: Axes | None = None
) -> Axes:
    """The error under each rotation as a distance from the centre, in the direction of its angle.

    Filled circles are exact rotations, open ones those that interpolate; a sweep in steps of 30° or less is a line.
    Dashed lines or crosses are what interpolation alone costs. A strict network is at 0 in the exact rotations. Between
    them it is above the dashed line: its kernels have pixels, and its group may not hold the angle. Triangles are
    reflections, at the angle of the turn that follows on y → −y.

    Args:
        reports: of :func:`~escnn_relaxed.equivariance_error`, a sweep over angles for instance; several by label.
        axes: polar axes to draw in, new ones by default.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv, equivariance_error
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> report = equivariance_error(RelaxedR2Conv(fields, fields, 3, padding=1), 9)
        >>> len(plot_equivariance_error(report).lines[0].get_xdata())
        3
    """
    named = by_label("reports", reports, EquivarianceReport, "equivariance_error")
    axes = new_axes(axes, WIDTH, subplot_kw={"projection": "polar"})
    if not isinstance(axes, PolarAxes):
        raise TypeError(f"axes must be polar, from subplots(subplot_kw={{'projection': 'polar'}}), got {axes!r}")
    for (label, report), colour in zip(named.items(), cycle(COLOURS), strict=False):
        rotations = sorted((row for row in report.rows if row.subgroup == "rotation"), key=lambda row: row.angle)
        reflections = [row for row in report.rows if row.subgroup == "reflection"]
        if not rotations and not reflections:
            raise ValueError(f"reports: {label!r} has no rotation or reflection, its rows are {list(report.rows)}")
        prefix = f"{label}, " if label else ""
        if len(rotations) > 2 and all(b.angle - a.angle <= _SWEEP for a, b in pairwise(rotations)):
            _draw_sweep(axes, rotations, colour, prefix)
        else:
            _draw_points(axes, rotations, colour, "o", f"{prefix}rotations")
        _draw_points(axes, reflections, colour, "^", f"{prefix}reflections")
    axes.set_ylim(bottom=0)
    axes.set_rlabel_position(67.5)
    axes.yaxis.set_major_locator(MaxNLocator(4, prune="lower"))
    axes.tick_params(labelsize=FONT - 1)
    axes.grid(alpha=0.4)
    axes.legend(fontsize=FONT - 1, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)
    return axes


def _draw_sweep(axes: Axes, rows: Sequence[ErrorRow], colour: str, prefix: str) -> None:
    """Draw a line through all rotations, closed where they go all around; circles where nothing is interpolated."""
    closed = [*rows, rows[0]] if rows[0].angle + 2 * math.pi - rows[-1].angle <= _SWEEP else rows
    _draw(axes, closed, "error", "-", color=colour, linewidth=1.2, label=f"{prefix}rotations")
    _draw(axes, closed, "resampling", "--", color=colour, linewidth=0.9, label=f"{prefix}{_RESAMPLING}")
    _draw(axes, [row for row in rows if row.kind == "exact"], "error", "o", color=colour, markersize=4)


def _draw_points(axes: Axes, rows: Sequence[ErrorRow], colour: str, marker: str, label: str) -> None:
    """Draw a marker for each row, filled where nothing is interpolated."""
    exact, others = ([row for row in rows if (row.kind == "exact") == is_exact] for is_exact in (True, False))
    name = f"{label}, interpolated"
    _draw(axes, exact, "error", marker, color=colour, markersize=4.5, label=f"{label}, exact")
    _draw(axes, others, "error", marker, color=colour, markersize=4.5, label=name, markerfacecolor="white")
    _draw(axes, others, "resampling", "x", color=colour, markersize=3, label=f"{label}, {_RESAMPLING}")


def _draw(axes: Axes, rows: Sequence[ErrorRow], key: str, form: str, **look: Any) -> None:
    if rows:
        axes.plot([row.angle for row in rows], [getattr(row, key) for row in rows], form, **look)
