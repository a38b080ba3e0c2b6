"""Plots of softness over epochs, and of accuracy as a gate reduces softness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..checks import check_mapping, check_sequence, is_number
from ..measure.softness_sweep import SoftnessSweep
from .charts import COLOURS, FONT, by_label, labelled, new_axes

_PREFIX = "softness/"
# As many layers have a colour each; line styles tell more of them apart.
_STYLES = ("-", "--", ":", "-.")


def plot_softness(history: Sequence[dict[str, float]], axes: Axes | None = None) -> Axes:
    """Plot the softness s of each layer after each epoch, on a logarithmic axis.

    A layer whose s is 0 has no line there, since 0 is not on this axis.

    Args:
        history: what :func:`~escnn_relaxed.relaxation_scalars` returned after each epoch, as in ``history`` of
            :class:`~escnn_relaxed.learning.lightning_callbacks.LogSoftness`.
        axes: where to draw, a new figure by default.

    Example:
        >>> history = [{"softness/first": 0.001}, {"softness/first": 0.01}]
        >>> axes = plot_softness(history)
        >>> axes.lines[0].get_xdata().tolist(), axes.lines[0].get_ydata().tolist()
        ([1, 2], [0.001, 0.01])
    """
    epochs = [_softness(scalars) for scalars in check_sequence("history", history, "dicts of relaxation_scalars")]
    names = list(dict.fromkeys(name for scalars in epochs for name in scalars))
    if not names:
        raise ValueError(f"history must have the softness of a layer, as relaxation_scalars gives, got {history!r}")
    axes = new_axes(axes, 2.4)
    for number, (name, colour) in enumerate(zip(names, cycle(COLOURS), strict=False)):
        values = [scalars.get(name, math.nan) or math.nan for scalars in epochs]
        look: dict[str, Any] = {"color": colour, "linestyle": _STYLES[number // len(COLOURS) % len(_STYLES)]}
        axes.plot(range(1, len(epochs) + 1), values, marker="o", markersize=2.5, linewidth=1.2, label=name, **look)
    if math.isfinite(lowest := axes.dataLim.minposy):
        # Whole decades, or the axis may have a single number.
        first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(axes.dataLim.y1))
        axes.set(yscale="log", ylim=(10.0**first, 10.0 ** max(last, first + 1)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    labelled(axes, "epoch", "softness s")
    if axes.get_legend() is not None:
        # Beside the lines, of which there may be many.
        axes.legend(fontsize=FONT - 1, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return axes


def _softness(scalars: Any) -> dict[str, float]:
    """Return the softness of each layer by name in one epoch."""
    known = check_mapping("history: an epoch", scalars, "what relaxation_scalars gave")
    softness = {
        tag[len(_PREFIX) :]: of for tag, of in known.items() if isinstance(tag, str) and tag.startswith(_PREFIX)
    }
    for name, value in softness.items():
        if not is_number(value) or not 0 <= value <= 1:
            raise ValueError(f"history: the softness of {name!r} must be a number from 0 to 1, got {value!r}")
    return softness


def plot_softness_sweep(sweeps: SoftnessSweep | Mapping[str, SoftnessSweep], axes: Axes | None = None) -> Axes:
    """Plot the accuracy on untransformed against that on transformed images, a point for each gate g.

    Args:
        sweeps: of :func:`~escnn_relaxed.measure.softness_sweep`; several by label.
        axes: where to draw, a new figure by default.

    Example:
        >>> from escnn_relaxed.measure import RobustnessReport, SoftnessSweep, SweepRow
        >>> report = RobustnessReport(0.9, 100, ())
        >>> rows = SweepRow(0.0, 0.7, 0.7, 0.7, report), SweepRow(1.0, 0.9, 0.4, 0.3, report)
        >>> plot_softness_sweep(SoftnessSweep(rows)).lines[0].get_xdata().tolist()
        [70.0, 40.0]
    """
    named = by_label("sweeps", sweeps, SoftnessSweep, "softness_sweep")
    axes = new_axes(axes, 2.4)
    for (label, sweep), colour in zip(named.items(), cycle(COLOURS), strict=False):
        points = [(100 * row.transformed, 100 * row.accuracy) for row in sweep.rows]
        x, y = zip(*points, strict=True)
        axes.plot(x, y, marker="o", markersize=3.5, linewidth=1.0, color=colour, label=label)
        for row, point in zip(sweep.rows, points, strict=True):
            text: dict[str, Any] = {"xytext": (4, 4), "textcoords": "offset points"}
            axes.annotate(f"{row.gate:g}", point, color=colour, fontsize=FONT - 2, **text)
    axes.margins(0.12)
    return labelled(axes, "right on transformed images, %", "right as they are, %")
