"""Tables and picture of the benchmark on smoke: errors, softness, and what it is needed for, level by level."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import pyplot

from escnn_relaxed.plots.charts import COLOURS, FONT, labelled, new_axes
from experiments.mean_and_error import mean_and_error

__all__ = ["Found", "draw", "tables"]

# The strict network and the plain one are what the others are compared with.
STYLES = {
    "plain": {"color": "0.6"},
    "strict": {"color": "black"},
    **{
        way: {"color": colour}
        for way, colour in zip(("relaxed", "evidence", "partial", "residual", "weighted"), COLOURS, strict=False)
    },
}
# A logarithmic scale shows this in the place of 0.
LEAST = 1e-9


@dataclass(frozen=True)
class Found:
    """The results at a level.

    Attributes:
        own_error: the equivariance error of the data.
        unchanged: errors of saying that nothing changes.
        results: of each way, by seed.
    """

    own_error: float
    unchanged: Mapping[str, float]
    results: Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Column:
    """Something that is shown of each run; ``key`` is what a run must have for it."""

    label: str
    key: str
    value: Callable[[Mapping[str, Any]], float]
    digits: str = ""


COLUMNS = (
    Column("error of the next frame, %", "error", lambda run: 100 * run["error"]),
    Column("error ten frames ahead, %", "rollout", lambda run: 100 * run["rollout"]),
    Column("largest softness s of a layer", "softness", lambda run: max(run["softness"]), ".1e"),
    Column(
        "error of the next frame, hardened / soft", "hardened error", lambda run: run["hardened error"] / run["error"]
    ),
)


def tables(symmetry: str, found: Mapping[int, Found]) -> str:
    """A Markdown table of each column, a line a way: mean ± standard error over seeds."""
    ways = list(dict.fromkeys(way for level in found.values() for way in level.results))
    parts = [f"# Smoke: {symmetry}\n"]
    for column in COLUMNS:
        lines = [
            ("level", [str(level) for level in found]),
            ("", ["---"] * len(found)),
            # Copies that differ by rounding alone are the same.
            ("the data's equivariance error", [f"{round(level.own_error, 12):.2g}" for level in found.values()]),
        ]
        if column.key in next(iter(found.values())).unchanged:
            lines.append(("nothing changes", [f"{100 * level.unchanged[column.key]:.2f}" for level in found.values()]))
        lines += [
            (way, [_cell(column, level.results.get(way, ())) for level in found.values()])
            for way in ways
            if any(column.key in run for level in found.values() for run in level.results.get(way, ()))
        ]
        parts.append(f"## {column.label}\n")
        parts += [f"| {name or '---'} | {' | '.join(cells)} |" for name, cells in lines]
        parts.append("")
    sizes = {way: {run["parameters"] for level in found.values() for run in level.results.get(way, ())} for way in ways}
    parts.append("Parameters: " + ", ".join(f"{way} {max(counts)}" for way, counts in sizes.items() if counts) + ".")
    return "\n".join(parts) + "\n"


def _cell(column: Column, runs: Sequence[Mapping[str, Any]]) -> str:
    values = [column.value(run) for run in runs]
    if not values:
        return "–"
    return f"{fmean(values):{column.digits}}" if column.digits else mean_and_error(values)


def draw(file: Path, found: Mapping[int, Found]) -> None:
    """A panel for each column, a line for each way: means of the seeds over the data's own error, seeds as dots."""
    figure, panels = pyplot.subplots(2, 2, figsize=(8, 6.6), layout="constrained")
    for axes, column in zip(panels.flat, COLUMNS, strict=True):
        new_axes(axes, 0).tick_params(which="both", labelsize=FONT + 1)
        for way, style in STYLES.items():
            points = [(level.own_error, _values(column, level.results.get(way, ()))) for level in found.values()]
            points = [(own, values) for own, values in points if values]
            if points:
                axes.plot(
                    *zip(*((own, fmean(values)) for own, values in points), strict=True),
                    linewidth=1.3,
                    label=way,
                    **style,
                )
                dots = [(own, value) for own, values in points for value in values]
                axes.plot(*zip(*dots, strict=True), "o", markersize=2.5, alpha=0.6, color=style["color"])
        labelled(axes, "equivariance error of the data", column.label)
        if column.key == "softness":
            axes.set_yscale("log")
        legend = axes.get_legend()
        if legend is not None:
            legend.remove()
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=FONT + 1)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _values(column: Column, runs: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the values of the runs that have it, above 0."""
    return [max(column.value(run), LEAST) for run in runs if column.key in run]
