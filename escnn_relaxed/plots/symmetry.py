"""Pictures of single elements of a group: which of them a network keeps, and how accurate it is after each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator

from ..checks import check_sequence
from ..measure.robustness import RobustnessReport, RobustnessRow
from ..measure.symmetry_profile import ProfileRow, SymmetryProfile
from .charts import COLOURS, FONT, WIDTH, by_label, labelled, new_axes

# Sticks of several profiles stand this far apart, in radians, and their marks of what is kept by this part of a radius.
_BESIDE, _OUTSIDE = math.radians(4), 0.07
# In inches: the height of an element of space, and of a bar where there are many profiles.
_ROW, _LEAST_BAR = 0.15, 0.07
_PANELS = {"rotation": "rotations", "reflection": "mirrors"}


def plot_symmetry_profile(
    profiles: SymmetryProfile | Mapping[str, SymmetryProfile], axes: Sequence[Axes] | None = None
) -> tuple[Axes, ...]:
    """A stick or bar for each element of a group, as long as it moves the kernels; open circles are kept.

    In the plane rotations stand in the direction of their angle. Mirrors are beside them, each as its mirror line, a
    stick to both sides. In space each element has a bar beside its name. The identity is left out. Of each element the
    layer is drawn that it moves most. Where the profile is that of the evidence, a broad end of a stick is its error,
    or a thin line at the end of a bar.

    Args:
        profiles: of :func:`~escnn_relaxed.measure.symmetry_profile`, all of the plane or all of space; several by
            label.
        axes: of the plane polar axes to draw in, one for the rotations if there are some and one for the mirrors if
            there are some; of space one that is not polar. New ones by default.

    Returns:
        The axes.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> from escnn_relaxed.measure import symmetry_profile
        >>> gspace = gspaces.flipRot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> profile = symmetry_profile(RelaxedR2Conv(fields, fields, 3, keep="D2"))
        >>> [found.get_title() for found in plot_symmetry_profile(profile)]
        ['rotations', 'mirrors']
    """
    named = by_label("profiles", profiles)
    for label, profile in named.items():
        if not isinstance(profile, SymmetryProfile):
            raise TypeError(f"profiles: {label!r} must be of symmetry_profile, got {profile!r}")
        if not profile.network:
            raise ValueError(f"profiles: {label!r} must be of a network whose layers know the same elements")
    dimensions = {profile.dimension for profile in named.values()}
    if len(dimensions) > 1:
        raise ValueError("profiles must be all of the plane or all of space, got some of each")
    drawn = _draw_in_plane(named, axes) if dimensions == {2} else [_draw_in_space(named, axes)]
    handles, texts = drawn[0].get_legend_handles_labels()
    drawn[0].figure.legend(handles, texts, loc="outside lower center", ncols=4, fontsize=FONT - 1, frameon=False)
    return tuple(drawn)


def _draw_in_plane(named: Mapping[str, SymmetryProfile], axes: Sequence[Axes] | None) -> list[Axes]:
    panels = [kind for kind in _PANELS if any(row.subgroup == kind for one in named.values() for row in one.network)]
    drawn = _polar_axes(axes, len(panels))
    limit = 1.15 * (max(_outermost(row) for profile in named.values() for row in profile.network) or 1.0)
    for one, kind in zip(drawn, panels, strict=True):
        for number, ((label, profile), colour) in enumerate(zip(named.items(), cycle(COLOURS), strict=False)):
            rows = [row for row in profile.network if row.subgroup == kind]
            shift = _BESIDE * (number - (len(named) - 1) / 2)
            names = _labels(label, profile)
            _draw_sticks(one, rows, colour, names, shift, limit * (1 - number * _OUTSIDE))
        _finish(one, [angle for p in named.values() for row in p.network for angle in _angles(row, kind)], limit)
        one.set_title(_PANELS[kind], fontsize=FONT)
    return drawn


def _outermost(row: ProfileRow) -> float:
    return row.error + (row.deviation if row.deviation > 0 else 0)


def _polar_axes(axes: Sequence[Axes] | None, count: int) -> list[Axes]:
    """Return the polar axes that were given, or new ones side by side."""
    if axes is None:
        width = WIDTH * (1 if count == 1 else 1.6)
        _, made = pyplot.subplots(
            1, count, figsize=(width, WIDTH), layout="constrained", squeeze=False, subplot_kw={"projection": "polar"}
        )
        return list(made.flat)
    given = list(check_sequence("axes", axes, "polar axes"))
    if len(given) != count or not all(isinstance(one, PolarAxes) for one in given):
        raise TypeError(f"axes must be {count} polar axes, one for rotations and one for mirrors, got {given!r}")
    return given


def _angles(row: ProfileRow, kind: str) -> list[float]:
    """Return the directions in which an element is drawn: a mirror, a turn after y → −y, has its line at half of it."""
    if row.subgroup != kind:
        return []
    return [row.angle] if kind == "rotation" else [row.angle / 2, row.angle / 2 + math.pi]


def _labels(label: str, profile: SymmetryProfile) -> tuple[str, str]:
    """Return the words for what is broken and for what is kept; empty where there is nothing in any panel."""
    is_kept = [row.error <= 0 for row in profile.network]
    words = label or "broken", f"{label}, kept" if label else "kept"
    broken, kept = (word if there else "" for word, there in zip(words, (not all(is_kept), any(is_kept)), strict=True))
    return broken, kept


def _draw_sticks(
    axes: Axes, rows: Sequence[ProfileRow], colour: str, labels: tuple[str, str], shift: float, outermost: float
) -> None:
    """Draw the sticks of broken elements, and a circle near the rim for each that is kept."""
    broken = [(angle, row.error) for row in rows if row.error > 0 for angle in _angles(row, row.subgroup)]
    kept = [angle for row in rows if row.error <= 0 for angle in _angles(row, row.subgroup)]
    for angle, error in broken:
        axes.plot([angle + shift] * 2, [0, error], color=colour, linewidth=1.5)
    for row in rows:
        for angle in _angles(row, row.subgroup) if row.deviation > 0 else ():
            ends = [max(row.error - row.deviation, 0), row.error + row.deviation]
            axes.plot([angle + shift] * 2, ends, color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
    look: dict[str, Any] = {"color": colour, "linestyle": "", "marker": "o", "markersize": 4}
    # Drawn where this panel has none, too, so that the legend of the first panel explains both.
    axes.plot([angle + shift for angle, _ in broken], [error for _, error in broken], label=labels[0] or None, **look)
    at_rim = [angle + shift for angle in kept], [outermost] * len(kept)
    axes.plot(*at_rim, label=labels[1] or None, markerfacecolor="white", **look)


def _finish(axes: Axes, angles: Sequence[float], limit: float) -> None:
    """Set the scale, with its numbers where no stick is in their way."""
    axes.set_ylim(0, 1.05 * limit)
    known = sorted({0.0, *(angle % (2 * math.pi) for angle in angles)})
    first, second = max(pairwise([*known, 2 * math.pi]), key=lambda pair: round(pair[1] - pair[0], 6))
    axes.set_rlabel_position(math.degrees((first + second) / 2))  # type: ignore[attr-defined]
    axes.yaxis.set_major_locator(MaxNLocator(3, prune="both"))
    axes.tick_params(labelsize=FONT - 1)
    axes.grid(alpha=0.4)


def _draw_in_space(named: Mapping[str, SymmetryProfile], axes: Sequence[Axes] | None) -> Axes:
    """Draw a bar for each element, those of several profiles below each other."""
    given = [None] if axes is None else list(check_sequence("axes", axes, "axes"))
    if len(given) != 1 or isinstance(given[0], PolarAxes):
        raise TypeError(f"axes must be one for profiles of space, and not polar, got {given!r}")
    names = list(dict.fromkeys(row.name for profile in named.values() for row in profile.network))
    one = new_axes(given[0], 0.8 + len(names) * max(_ROW, _LEAST_BAR * len(named)), 1.5 * WIDTH)
    height = 0.8 / len(named)
    for number, ((label, profile), colour) in enumerate(zip(named.items(), cycle(COLOURS), strict=False)):
        shift = height * (number - (len(named) - 1) / 2)
        rows = {names.index(row.name) + shift: row for row in profile.network}
        _draw_bars(one, rows, height, colour, _labels(label, profile))
    one.set_yticks(range(len(names)), names, fontsize=FONT - 1)
    one.set(ylim=(len(names) - 0.4, -0.6), xlim=(0, None))
    one.set_xlabel("moves the kernels by ‖hK − K‖ / ‖K‖", fontsize=FONT)
    one.spines["left"].set_visible(False)
    one.tick_params(axis="y", length=0)
    return one


def _draw_bars(
    axes: Axes, rows: Mapping[float, ProfileRow], height: float, colour: str, labels: tuple[str, str]
) -> None:
    """Draw the bars of elements at their places, with an open circle for each that is kept."""
    axes.barh(list(rows), [row.error for row in rows.values()], height, color=colour)
    axes.plot([], [], "s", color=colour, label=labels[0] or None)
    for y, row in rows.items():
        if row.deviation > 0:
            ends = [[min(row.error, row.deviation)], [row.deviation]]
            axes.errorbar(row.error, y, xerr=ends, fmt="none", ecolor="0.2", elinewidth=0.8, capsize=1.5)
    kept = [y for y, row in rows.items() if row.error <= 0]
    if kept:
        look: dict[str, Any] = {"markersize": 4, "color": colour, "markerfacecolor": "white"}
        axes.plot([0] * len(kept), kept, "o", clip_on=False, label=labels[1], **look)


def plot_robustness(reports: RobustnessReport | Mapping[str, RobustnessReport], axes: Axes | None = None) -> Axes:
    """The accuracy after each rotation, against its angle; at 0° and 360° that of the images as they are.

    Filled circles are exact rotations, open ones those that interpolate; a dashed line is what interpolation alone
    leaves. Triangles are reflections, at the angle of the turn that follows on y → −y. Rotations of space about
    different axes are not joined.

    Args:
        reports: of :func:`~escnn_relaxed.robustness_report`; several by label.
        axes: where to draw, a new figure by default.

    Example:
        >>> from escnn_relaxed.measure import RobustnessReport, RobustnessRow
        >>> row = RobustnessRow(
        ...     "rotation 180°", "rotation", math.pi, "exact", 0.42, 0.45, 0.9, 0.97
        ... )
        >>> axes = plot_robustness(RobustnessReport(0.97, 1000, (row,)))
        >>> axes.lines[0].get_ydata().tolist()
        [97.0, 42.0, 97.0]
    """
    named = by_label("reports", reports)
    for label, report in named.items():
        if not isinstance(report, RobustnessReport):
            raise TypeError(f"reports: {label!r} must be of robustness_report, got {report!r}")
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
        line = "-" if is_curve else "None"
        x, y = _curve(report, turns, lambda row: row.accuracy)
        axes.plot(x, y, linestyle=line, color=colour, linewidth=1.2, label=label or "rotations")
        exact = [0, *(n for n, row in enumerate(turns, 1) if row.kind == "exact"), len(turns) + 1]
        others = [n for n, row in enumerate(turns, 1) if row.kind != "exact"]
        for numbers, inside in ((exact, colour), (others, "white")):
            points = [x[n] for n in numbers], [y[n] for n in numbers]
            axes.plot(*points, "o", color=colour, markersize=4, markerfacecolor=inside)
        if others and is_curve:
            again = _curve(report, turns, lambda row: row.resampling)
            axes.plot(*again, "--", color=colour, linewidth=0.8, label=f"{prefix}resampling alone")
    if mirrors:
        x, y = ([math.degrees(row.angle) for row in mirrors], [100 * row.accuracy for row in mirrors])
        axes.plot(x, y, "^", color=colour, markersize=4.5, label=f"{prefix}reflections")


def _curve(
    report: RobustnessReport, turns: Sequence[RobustnessRow], value: Callable[[RobustnessRow], float]
) -> tuple[list[float], list[float]]:
    """Return angles in degrees and percentages, with images as they are at both ends."""
    whole = 100 * report.accuracy
    middle = [100 * value(row) for row in turns]
    return [0.0, *(math.degrees(row.angle) for row in turns), 360.0], [whole, *middle, whole]
