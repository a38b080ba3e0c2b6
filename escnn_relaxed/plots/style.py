"""What all pictures share: the width of a column, colours told apart by colour-blind readers, small labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import colormaps, pyplot
from matplotlib.axes import Axes

__all__ = ["COLOURS", "DIVERGING", "FONT", "WIDTH", "by_depth", "labelled", "new_axes"]

# The width of one of two columns, in inches.
WIDTH = 3.3
FONT = 8
# Okabe and Ito's, told apart by colour-blind readers; in the order in which curves take them.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Purple and orange stay apart for all common kinds of colour blindness; 0 is white.
DIVERGING = "PuOr"


def new_axes(axes: Axes | None, height: float, width: float = WIDTH, **arguments: Any) -> Axes:
    """The axes that were given, or new ones in a figure of their own; sizes in inches.

    Raises:
        TypeError: for what is no axes.
    """
    if axes is None:
        _, axes = pyplot.subplots(figsize=(width, height), layout="constrained", **arguments)
    if not isinstance(axes, Axes):
        raise TypeError(f"axes must be of matplotlib, got {axes!r}")
    axes.tick_params(labelsize=FONT)
    for side in ("top", "right"):
        if side in axes.spines:
            axes.spines[side].set_visible(False)
    return axes


def labelled(axes: Axes, x: str, y: str) -> Axes:
    """The axes with their labels, and a legend where there is something to tell apart."""
    axes.set_xlabel(x, fontsize=FONT)
    axes.set_ylabel(y, fontsize=FONT)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize=FONT - 1, frameon=False)
    return axes


def by_depth(names: Sequence[str]) -> dict[str, Any]:
    """A colour for each layer, dark to light with depth, told apart in grey too."""
    return {name: colormaps["viridis"](0.88 * i / max(1, len(names) - 1)) for i, name in enumerate(names)}
