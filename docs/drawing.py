"""What the pictures of the docs are drawn with: arrows, filters, axes."""

from __future__ import annotations

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from escnn_relaxed.plots.charts import COLOURS, DIVERGING

__all__ = [
    "FONT",
    "SOFT",
    "STRICT",
    "arrow",
    "large_labels",
    "new_figure",
    "show",
]

FONT = 12
STRICT, SOFT = COLOURS[0], COLOURS[1]


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], word: str
) -> None:
    """An arrow with a word beside it."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "0.3"})
    middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    is_level = start[1] == end[1]
    axes.annotate(
        word,
        middle,
        (0, 5) if is_level else (5, -4),
        textcoords="offset points",
        ha="center" if is_level else "left",
        fontsize=FONT,
    )


def show(axes: Axes, pixels: Tensor, largest: float) -> None:
    """Numbers of both signs, 0 white, without ticks."""
    axes.imshow(pixels, cmap=DIVERGING, vmin=-largest, vmax=largest)
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_color("0.8")


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """In inches, without a frame at the top and the right."""
    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=FONT)
    return figure, axes


def large_labels(axes: Axes) -> None:
    """Of a plot that was made for a narrow column."""
    for text in (
        axes.xaxis.label,
        axes.yaxis.label,
        *axes.get_xticklabels(),
        *axes.get_yticklabels(),
    ):
        text.set_fontsize(FONT)
