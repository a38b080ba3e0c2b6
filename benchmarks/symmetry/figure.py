"""The figure of the benchmark: gains over the better strict head, with zero in the middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.symmetry.results import Part

# One colour for each way.
COLOURS = {
    "R2Conv": "#0072b2",
    "R2Conv, free head": "#56b4e9",
    "RelaxedR2Conv": "#d55e00",
    "RelaxedR2Conv, free head": "#e69f00",
    "RelaxedR2Conv, evidence": "#a03000",
    "RelaxedR2Conv, last stage": "#f0a070",
    "R2Conv, soft head": "#cc79a7",
    "R2Conv, free head, turned copies": "#009e73",
    "RestrictionModule": "#7060a0",
    "Conv2d": "#404040",
    "Conv2d, turned copies": "#80b060",
}
# The poses that are drawn: task, group, number of images and pose, in a column each.
COLUMNS = (
    ("smoke", "C4", 5, "level 9"),
    *(("digits", "C8", 1000, pose) for pose in ("upright", "within 60°", "turned")),
)
# The largest gains of an axis, of the data as they are and of turned copies, in points of error or of accuracy.
LARGEST = {"error": (2.5, 6.0), "accuracy": (6.0, 60.0)}
FONT = 10
# Seeds without which nothing is ahead or behind.
FEWEST_SEEDS = 3


def draw(results: Mapping[tuple[str, str, int, str], Part], path: Path) -> None:
    """Draw a column for each pose: above gains on the data as they are, below on turned copies, each over a head."""
    parts = [results[key] for key in COLUMNS if key in results and results[key].head(results[key].score)]
    names = [way for way in COLOURS if any(way in part.ways for part in parts)]
    size = 9.0, 2.0 + 0.44 * max(len(names), 1)
    figure, grid = pyplot.subplots(
        2, max(len(parts), 1), figsize=size, sharey=True, layout="constrained", squeeze=False
    )
    for part, pair in zip(parts, grid.T, strict=False):
        for axes, score, largest in zip(pair, (part.score, "turned"), LARGEST[part.score], strict=True):
            _draw_panel(axes, names, {way: part.gains(way, score) for way in names}, largest)
            axes.set_xlabel(f"0: {part.head(score)}", fontsize=FONT)
        pair[0].set_title(f"{part.task}, {part.group}\n{part.title}", fontsize=FONT + 1)
    for axes, text in zip(grid[:, 0], ("data as they are", "turned copies"), strict=True):
        axes.set_ylabel(text, fontsize=FONT + 1)
    figure.supxlabel("gain in points: more accuracy on digits, less error on smoke", fontsize=FONT)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=142)
    pyplot.close(figure)


def _draw_panel(axes: Axes, names: Sequence[str], found: Mapping[str, Sequence[float]], largest: float) -> None:
    """Draw the gains of each way; what is beyond the axis is written at its end."""
    axes.axvline(0, color="0.4", linewidth=1)
    for number, way in enumerate(names):
        if found.get(way):
            _point(axes, number, found[way], COLOURS[way], largest)
    axes.set_yticks(range(len(names)), names, fontsize=FONT)
    axes.set(xlim=(-largest, largest), ylim=(len(names) - 0.5, -0.5))
    axes.tick_params(axis="x", labelsize=FONT)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _point(axes: Axes, height: int, found: Sequence[float], colour: str, largest: float) -> None:
    """Draw a mean with its standard error, as a ring where seeds are too few for a verdict."""
    mean = fmean(found)
    if abs(mean) > 0.98 * largest:  # a dot there would be cut
        side = "left" if mean < 0 else "right"
        text = f"◂ {mean:.0f}" if mean < 0 else f"{mean:.0f} ▸"
        edge = largest if mean > 0 else -largest
        axes.text(edge, height, text.replace("-", "−"), ha=side, va="center", fontsize=FONT - 2, color=colour)
        return
    error = stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0
    look = {"markerfacecolor": colour if len(found) >= FEWEST_SEEDS else "white"}
    axes.errorbar(mean, height, xerr=error, fmt="o", color=colour, markersize=5, capsize=2.5, **look)
