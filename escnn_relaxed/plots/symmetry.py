"""Plots by group element: how far each moves the kernels, and the accuracy after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes

from ..measure.robustness import RobustnessReport, RobustnessRow
from ..measure.symmetry_profile import ProfileRow, SymmetryProfile
from .charts import COLOURS, FONT, WIDTH, by_label, labelled, new_axes

# In inches: the height of an element, and of a bar where there are many profiles.
_ROW, _LEAST_BAR = 0.15, 0.07


def plot_symmetry_profile(profiles: SymmetryProfile | Mapping[str, SymmetryProfile], axes: Axes | None = None) -> Axes:
    """Plot how far each group element moves the kernels, a bar for each; circles mark kept elements.

    The identity is left out. The bar is that of the layer that the element moves most. Bars of several profiles stand
    below each other. Where the profile is that of the evidence, a thin line at the end of a bar is its error.

    Args:
        profiles: of :func:`~escnn_relaxed.measure.symmetry_profile`; several by label.
        axes: where to draw, a new figure by default.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> from escnn_relaxed.measure import symmetry_profile
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> profile = symmetry_profile(RelaxedR2Conv(fields, fields, 3, keep="C2"))
        >>> [label.get_text() for label in plot_symmetry_profile(profile).get_yticklabels()]
        ['rotation 90°', 'rotation 180°', 'rotation 270°']
    """
    named = by_label("profiles", profiles, SymmetryProfile, "symmetry_profile")
    for label, profile in named.items():
        if not profile.largest_by_element:
            raise ValueError(f"profiles: {label!r} must be of a network whose layers know the same elements")
    names = list(dict.fromkeys(row.name for profile in named.values() for row in profile.largest_by_element))
    axes = new_axes(axes, 0.8 + len(names) * max(_ROW, _LEAST_BAR * len(named)), 1.5 * WIDTH)
    height = 0.8 / len(named)
    for number, ((label, profile), colour) in enumerate(zip(named.items(), cycle(COLOURS), strict=False)):
        shift = height * (number - (len(named) - 1) / 2)
        _draw_bars(
            axes, {names.index(row.name) + shift: row for row in profile.largest_by_element}, height, colour, label
        )
    axes.set_yticks(range(len(names)), names, fontsize=FONT - 1)
    axes.set(ylim=(len(names) - 0.4, -0.6), xlim=(0, None))
    axes.set_xlabel("moves the kernels by ‖hK − K‖ / ‖K‖", fontsize=FONT)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    entries = axes.get_legend_handles_labels()
    axes.figure.legend(*entries, loc="outside lower center", ncols=4, fontsize=FONT - 1, frameon=False)
    return axes


def _draw_bars(axes: Axes, rows: Mapping[float, ProfileRow], height: float, colour: str, label: str) -> None:
    """Draw the bars of elements at their places, with an open circle for each that is kept."""
    axes.barh(list(rows), [row.error for row in rows.values()], height, color=colour)
    kept = [y for y, row in rows.items() if row.error <= 0]
    if len(kept) < len(rows) and (label or kept):
        axes.plot([], [], "s", color=colour, label=label or "moved")
    for y, row in rows.items():
        if row.deviation > 0:
            ends = [[min(row.error, row.deviation)], [row.deviation]]
            axes.errorbar(row.error, y, xerr=ends, fmt="none", ecolor="0.2", elinewidth=0.8, capsize=1.5)
    if kept:
        look: dict[str, Any] = {"markersize": 4, "color": colour, "markerfacecolor": "white"}
        name = f"{label}, kept" if label else "kept"
        axes.plot([0] * len(kept), kept, "o", clip_on=False, label=name, **look)


def plot_robustness(reports: RobustnessReport | Mapping[str, RobustnessReport], axes: Axes | None = None) -> Axes:
    """Plot the accuracy after each rotation against its angle; at 0° and 360° on untransformed images.

    Filled circles are exact rotations, open ones those that interpolate; a dashed line is what interpolation alone
    leaves. A reflection is y → −y and then a turn; its triangle stands at the angle of that turn. Rotations of space
    about different axes are not joined.

    Args:
        reports: of :func:`~escnn_relaxed.robustness_report`; several by label.
        axes: where to draw, a new figure by default.

    Example:
        >>> from escnn_relaxed.measure import RobustnessReport, RobustnessRow
        >>> row = RobustnessRow("rotation 180°", "rotation", 180.0, "exact", 0.42, 0.45, 0.9, 0.97)
        >>> axes = plot_robustness(RobustnessReport(0.97, 1000, (row,)))
        >>> axes.lines[0].get_ydata().tolist()
        [97.0, 42.0, 97.0]
    """
    named = by_label("reports", reports, RobustnessReport, "robustness_report")
    for label, report in named.items():
        if all(row.subgroup == "translation" for row in report.rows):
            raise ValueError(f"reports: {label!r} has no rotation or reflection, its rows are {list(report.rows)}")
    axes = new_axes(axes, 2.4)
    for (label, report), colour in zip(named.items(), cycle(COLOURS), strict=False):
        _draw_accuracy(axes, report, label, colour)
    axes.set_ylim(0, 103)
    axes.set_xticks(range(0, 361, 90), [f"{angle}°" for angle in range(0, 361, 90)])
    return labelled(axes, "turned by", "right, %")


def _draw_accuracy(axes: Axes, report: RobustnessReport, label: str, colour: str) -> None:
    turns = sorted((row for row in report.rows if row.subgroup == "rotation"), key=lambda row: row.angle)
    mirrors = [row for row in report.rows if row.subgroup == "reflection"]
    prefix = f"{label}, " if label else ""
    if turns:
        is_curve = len({round(row.angle, 6) for row in turns}) == len(turns)
        whole = RobustnessRow("as they are", "rotation", 0.0, "exact", report.accuracy, 1.0, 0.0, report.accuracy)
        curve = [whole, *turns, replace(whole, angle=360.0)]
        others = [row for row in turns if row.kind != "exact"]
        line = "-" if is_curve else "None"
        points: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 4, "color": colour}
        _draw(axes, curve, "accuracy", linestyle=line, color=colour, linewidth=1.2, label=label or "rotations")
        _draw(axes, [row for row in curve if row.kind == "exact"], "accuracy", **points)
        _draw(axes, others, "accuracy", markerfacecolor="white", **points)
        if others and is_curve:
            name = f"{prefix}resampling alone"
            _draw(axes, curve, "resampling", linestyle="--", color=colour, linewidth=0.8, label=name)
    triangles: dict[str, Any] = {"linestyle": "", "marker": "^", "markersize": 4.5, "color": colour}
    _draw(axes, mirrors, "accuracy", label=f"{prefix}reflections", **triangles)


def _draw(axes: Axes, rows: Sequence[RobustnessRow], key: str, **look: Any) -> None:
    if rows:
        axes.plot([row.angle for row in rows], [100 * getattr(row, key) for row in rows], **look)
