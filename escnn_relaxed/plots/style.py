"""Style of all pictures: the width of a column, colours for colour-blind readers, small labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes

__all__ = ["COLOURS", "DIVERGING", "FONT", "WIDTH", "by_label", "labelled", "new_axes", "without_frame"]

# The width of one of two columns, in inches.
WIDTH = 3.3
FONT = 8
# Okabe and Ito's, told apart by colour-blind readers; in the order in which curves take them.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Purple and orange stay apart for all common kinds of colour blindness; 0 is white.
DIVERGING = "PuOr"


def by_label(name: str, value: Any) -> dict[str, Any]:
    """Return what is drawn by its label, at least one; what is given alone has an empty label."""
    named = dict(value) if isinstance(value, Mapping) else {"": value}
    if not named:
        raise ValueError(f"{name} must have one to draw, got none")
    return named


def new_axes(axes: Axes | None, height: float, width: float = WIDTH, **arguments: Any) -> Axes:
    """Return the axes that were given, or new ones in a figure of their own; sizes in inches."""
    if axes is None:
        _, axes = pyplot.subplots(figsize=(width, height), layout="constrained", **arguments)
    if not isinstance(axes, Axes):
        raise TypeError(f"axes must be of matplotlib, got {axes!r}")
    axes.tick_params(labelsize=FONT)
    # Polar axes have neither.
    for side in {"top", "right"} & set(axes.spines):
        axes.spines[side].set_visible(False)
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
