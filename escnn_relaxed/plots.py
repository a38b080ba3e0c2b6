"""Pictures of where softness sits (the extra ``plots``, matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import pyplot
from matplotlib.axes import Axes
from torch import nn

from .ablation import AblationRow
from .conversion import named_relaxed_layers

__all__ = ["plot_ablation", "plot_softness"]

# Distinct in grey and to colour-blind readers.
_COLOURS = {"network": "0.45", "layer": "#0072b2", "group": "#56b4e9", "subgroup": "#e69f00"}


def plot_ablation(rows: Sequence[AblationRow], quantity: str = "accuracy, %", axes: Axes | None = None) -> Axes:
    """A bar for each part that was hardened, and a line where the whole network stands.

    Args:
        rows: of :func:`~escnn_relaxed.softness_ablation`.
        quantity: what the numbers are.
        axes: where to draw, a new figure by default.

    Raises:
        ValueError: without rows of hardened parts.
    """
    parts = [row for row in rows if row.part != "nothing"]
    if not parts:
        raise ValueError(f"rows must have a hardened part beside 'nothing', got {list(rows)}")
    axes = _axes(axes, len(parts))
    axes.bar(range(len(parts)), [row.value for row in parts], color=[_COLOURS[row.kind] for row in parts])
    for row in rows:
        if row.part == "nothing":
            axes.axhline(row.value, color="black", linewidth=1, linestyle="--", label="nothing hardened")
            axes.legend(loc="lower right", framealpha=0.9)
    axes.set_xticks(range(len(parts)), [row.part for row in parts], rotation=30, ha="right")
    axes.set_xlabel("hardened")
    axes.set_ylabel(quantity)
    return axes


def plot_softness(network: nn.Module, axes: Axes | None = None) -> Axes:
    """A bar of s for each relaxed layer, by depth, on a logarithmic scale.

    Args:
        network: any module with relaxed layers.
        axes: where to draw, a new figure by default.

    Raises:
        ValueError: for a network without a relaxed layer.
    """
    layers = dict(named_relaxed_layers(network))
    if not layers:
        raise ValueError("network has no RelaxedR2Conv")
    axes = _axes(axes, len(layers))
    values = [layer.softness().item() for layer in layers.values()]
    axes.bar(range(len(layers)), values, color=_COLOURS["layer"])
    axes.set_yscale("symlog", linthresh=1e-6)
    axes.set_ylim(0, 1)
    axes.set_xticks(range(len(layers)), list(layers), rotation=30, ha="right")
    axes.set_xlabel("layer")
    axes.set_ylabel("softness s")
    return axes


def _axes(axes: Axes | None, bars: int) -> Axes:
    if axes is None:
        _, axes = pyplot.subplots(figsize=(2 + 0.6 * bars, 3), layout="constrained")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes
