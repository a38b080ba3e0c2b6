"""Bars: what is lost without softness, and where it sits."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from torch import nn

from ..checks import check_sequence
from ..measure.reports import AblationRow
from ..network.relaxed_layers import relaxed_layers
from .style import COLOURS, FONT, WIDTH, labelled, new_axes

__all__ = ["plot_ablation", "plot_softness"]

# A colour for each kind of part, distinct in grey too.
_COLOURS = {"network": "0.45", "layer": COLOURS[0], "group": COLOURS[5], "subgroup": COLOURS[4]}


def plot_ablation(rows: Sequence[AblationRow], quantity: str = "accuracy, %", axes: Axes | None = None) -> Axes:
    """A bar for each part that was hardened, and a line where the whole network stands.

    Args:
        rows: the report of :func:`~escnn_relaxed.softness_ablation`, or some of its rows.
        quantity: what the numbers are.
        axes: where to draw, a new figure by default.

    Raises:
        TypeError: for an argument of another type.
        ValueError: without rows of hardened parts.

    Example:
        >>> rows = [
        ...     AblationRow("nothing", "network", 99.0, 0.0, 0.01),
        ...     AblationRow("conv", "layer", 52.0, -47.0, 0.01),
        ... ]
        >>> axes = plot_ablation(rows)
        >>> [bar.get_height() for bar in axes.patches]
        [52.0]
    """
    if not all(isinstance(row, AblationRow) for row in check_sequence("rows", rows, "AblationRow")):
        raise TypeError(f"rows must be the report of softness_ablation, or AblationRows of it, got {rows!r}")
    parts = [row for row in rows if row.part != "nothing"]
    if not parts:
        raise ValueError(f"rows must have a hardened part beside 'nothing', got {list(rows)}")
    axes = new_axes(axes, 2.6, _width(len(parts)))
    axes.bar(range(len(parts)), [row.value for row in parts], color=[_COLOURS[row.kind] for row in parts])
    for row in rows:
        if row.part == "nothing":
            axes.axhline(row.value, color="black", linewidth=1, linestyle="--", label="nothing hardened")
    axes.set_xticks(range(len(parts)), [row.part for row in parts], rotation=30, ha="right")
    labelled(axes, "hardened", quantity)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, fontsize=FONT - 1)
    return axes


def plot_softness(network: nn.Module, axes: Axes | None = None) -> Axes:
    """A bar of s for each relaxed layer, by depth, on a logarithmic scale.

    Args:
        network: any module with relaxed layers.
        axes: where to draw, a new figure by default.

    Raises:
        TypeError: for a network that is no module, or axes that are none.
        ValueError: for a network without a relaxed layer.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> axes = plot_softness(
        ...     nn.SequentialModule(RelaxedR2Conv(fields, fields, 3, initial_softness=0.05))
        ... )
        >>> [round(bar.get_height(), 4) for bar in axes.patches]
        [0.05]
    """
    layers = relaxed_layers(network)
    axes = new_axes(axes, 2.6, _width(len(layers)))
    values = [layer.softness().item() for layer in layers.values()]
    axes.bar(range(len(layers)), values, color=_COLOURS["layer"])
    axes.set_yscale("symlog", linthresh=1e-6)
    axes.set_ylim(0, 1)
    axes.set_xticks(range(len(layers)), list(layers), rotation=30, ha="right")
    return labelled(axes, "layer", "softness s")


def _width(bars: int) -> float:
    """Inches: a column, or more where bars would not have room."""
    return max(WIDTH, 0.9 + 0.4 * bars)
