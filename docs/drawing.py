"""What the pictures of the docs are drawn with."""

from __future__ import annotations

from escnn_relaxed.plots.charts import COLOURS, DIVERGING

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

FONT = 12
STRICT, SOFT, FREE = COLOURS[0], COLOURS[1], COLOURS[5]


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
