"""The equivariance error against the angle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise

from matplotlib.axes import Axes
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator

from ..checks import check_mapping
from ..measure.reports import EquivarianceReport, ErrorRow
from .style import COLOURS, FONT, WIDTH, new_axes

__all__ = ["plot_equivariance_error"]

# The largest step of a sweep over angles, 30° and some rounding.
_SWEEP = math.radians(30.1)
_RESAMPLING = "resampling alone"


def plot_equivariance_error(
    reports: EquivarianceReport | Mapping[str, EquivarianceReport], axes: Axes | None = None
) -> Axes:
    """The error under each rotation as a distance from the centre, in the direction of its angle.

    Filled circles are exact rotations, open ones those that interpolate between pixels; a sweep in steps of 30° or less
    is a line. Dashed, or as crosses, what interpolation alone costs. A strict network is at 0 in the exact rotations,
    but outside of the dashed line between them: its kernels have pixels, and its group may not hold the angle.
    Triangles are reflections, at the angle of the turn that follows on y → −y.

    Args:
        reports: of :func:`~escnn_relaxed.equivariance_error`, a sweep over angles for instance; several by label.
        axes: polar axes to draw in, new ones by default.

    Raises:
        TypeError: for axes that are not polar, or values that are no reports.
        ValueError: for a report without rotations and reflections.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv, equivariance_error
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> report = equivariance_error(RelaxedR2Conv(fields, fields, 3, padding=1), 9)
        >>> axes = plot_equivariance_error(report)
        >>> len(axes.lines[0].get_xdata())
        3
    """
    named = {"": reports} if isinstance(reports, EquivarianceReport) else check_mapping("reports", reports, "reports")
    for label, report in named.items():
        if not isinstance(report, EquivarianceReport):
            raise TypeError(f"reports: {label!r} must be a report of equivariance_error, got {report!r}")
    axes = new_axes(axes, WIDTH, subplot_kw={"projection": "polar"})
    if not isinstance(axes, PolarAxes):
        raise TypeError(f"axes must be polar, from subplots(subplot_kw={{'projection': 'polar'}}), got {axes!r}")
    for (label, report), colour in zip(named.items(), cycle(COLOURS), strict=False):
        rotations = sorted((row for row in report.rows if row.subgroup == "rotation"), key=lambda row: row.angle)
        reflections = [row for row in report.rows if row.subgroup == "reflection"]
        if not rotations and not reflections:
            raise ValueError(f"reports: {label!r} has no rotation or reflection, its rows are {list(report.rows)}")
        prefix = f"{label}, " if label else ""
        if _is_sweep(rotations):
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
    """A line through all rotations, closed where they go all around; circles where nothing is interpolated."""
    closed = [*rows, rows[0]] if rows[0].angle + 2 * math.pi - rows[-1].angle <= _SWEEP else rows
    angles = [row.angle for row in closed]
    axes.plot(angles, [row.error for row in closed], color=colour, linewidth=1.2, label=f"{prefix}rotations")
    axes.plot(
        angles, [row.resampling for row in closed], "--", color=colour, linewidth=0.9, label=f"{prefix}{_RESAMPLING}"
    )
    exact = [row for row in rows if row.kind == "exact"]
    axes.plot([row.angle for row in exact], [row.error for row in exact], "o", color=colour, markersize=4)


def _draw_points(axes: Axes, rows: Sequence[ErrorRow], colour: str, marker: str, label: str) -> None:
    """A marker for each row, filled where nothing is interpolated."""
    for is_exact, face in ((True, colour), (False, "white")):
        some = [row for row in rows if (row.kind == "exact") == is_exact]
        if not some:
            continue
        angles, errors = [row.angle for row in some], [row.error for row in some]
        name = f"{label}, {'exact' if is_exact else 'interpolated'}"
        axes.plot(angles, errors, marker, color=colour, markerfacecolor=face, markersize=4.5, label=name)
        if not is_exact:
            resampling = [row.resampling for row in some]
            axes.plot(angles, resampling, "x", color=colour, markersize=3, label=f"{label}, {_RESAMPLING}")


def _is_sweep(rows: Sequence[ErrorRow]) -> bool:
    """Whether rotations are close enough for a line."""
    return len(rows) > 2 and all(after.angle - before.angle <= _SWEEP for before, after in pairwise(rows))
