"""The style of all pictures, and the error by angle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator

from ..measure.reports import EquivarianceReport, ErrorRow

# The width of one of two columns, in inches.
WIDTH = 3.3
FONT = 8
# Okabe and Ito's, told apart by colour-blind readers; in the order in which curves take them.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Purple and orange stay apart for all common kinds of colour blindness; 0 is white.
DIVERGING = "PuOr"


def by_label(name: str, value: Any, kind: type = object, source: str = "") -> dict[str, Any]:
    """Return the checked items to draw by label, at least one; a single item has an empty label."""
    named = dict(value) if isinstance(value, Mapping) else {"": value}
    if not named:
        raise ValueError(f"{name} must have one to draw, got none")
    for label, each in named.items():
        if not isinstance(each, kind):
            raise TypeError(f"{name}: {label!r} must be of {source}, got {each!r}")
    return named


def new_axes(axes: Axes | None, height: float, width: float = WIDTH, **arguments: Any) -> Axes:
    """Return the given axes, or those of a new figure; sizes in inches."""
    if axes is None:
        _, axes = pyplot.subplots(figsize=(width, height), layout="constrained", **arguments)
    if not isinstance(axes, Axes):
        raise TypeError(f"axes must be of matplotlib, got {axes!r}")
    axes.tick_params(labelsize=FONT)
    if not isinstance(axes, PolarAxes):
        axes.spines[["top", "right"]].set_visible(False)
    return axes


def labelled(axes: Axes, x: str, y: str) -> Axes:
    """Label the axes, add a legend if there are several items, and return the axes."""
    axes.set_xlabel(x, fontsize=FONT)
    axes.set_ylabel(y, fontsize=FONT)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize=FONT - 1, frameon=False)
    return axes


# The largest step of a sweep over angles, 30° and some rounding.
_SWEEP = 30.1
_RESAMPLING = "resampling alone"


def plot_equivariance_error(
    reports: EquivarianceReport | Mapping[str, EquivarianceReport], axes: Axes | None = None
) -> Axes:
    """Plot the error under each rotation as a distance from the centre, in the direction of its angle.

    Filled circles are exact rotations, open ones those that interpolate; a sweep in steps of 30° or less is a line.
    Dashed lines or crosses are what interpolation alone costs. A strict network is at 0 in the exact rotations. Between
    them it is above the dashed line: its kernels have pixels, and its group may not hold the angle. A reflection
    is y → −y and then a turn; its triangle stands at the angle of that turn.

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
    """Draw a line through all rotations, closed for a full turn, with circles at exact ones."""
    closed = [*rows, rows[0]] if rows[0].angle + 360 - rows[-1].angle <= _SWEEP else rows
    _draw(axes, closed, "error", "-", color=colour, linewidth=1.2, label=f"{prefix}rotations")
    _draw(axes, closed, "resampling", "--", color=colour, linewidth=0.9, label=f"{prefix}{_RESAMPLING}")
    _draw(axes, [row for row in rows if row.kind == "exact"], "error", "o", color=colour, markersize=4)


def _draw_points(axes: Axes, rows: Sequence[ErrorRow], colour: str, marker: str, label: str) -> None:
    """Draw a marker for each row, filled for exact transformations."""
    exact, others = ([row for row in rows if (row.kind == "exact") == is_exact] for is_exact in (True, False))
    name = f"{label}, interpolated"
    _draw(axes, exact, "error", marker, color=colour, markersize=4.5, label=f"{label}, exact")
    _draw(axes, others, "error", marker, color=colour, markersize=4.5, label=name, markerfacecolor="white")
    _draw(axes, others, "resampling", "x", color=colour, markersize=3, label=f"{label}, {_RESAMPLING}")


def _draw(axes: Axes, rows: Sequence[ErrorRow], key: str, form: str, **look: Any) -> None:
    if rows:
        axes.plot([math.radians(row.angle) for row in rows], [getattr(row, key) for row in rows], form, **look)
