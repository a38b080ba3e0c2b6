"""Pictures for those who choose: what softness does to a filter, which setting to take."""

from __future__ import annotations

import numpy as np
import torch
from escnn import nn
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drawing import FONT, SOFT, arrow, new_figure, show
from escnn_relaxed import harden_network
from pictures_of_layers import lifting_layer

__all__ = ["factors_of_a_filter", "which_setting"]


def factors_of_a_filter() -> Figure:
    """The filters of a strict layer over C8, the factors of the soft part, and their products."""
    layer = lifting_layer(initial_softness=0.1, seed=3)
    with torch.no_grad():
        # Stronger at 90° than at 270°, and heavier at the top.
        layer.kernel.modulation.weights.copy_(torch.tensor([0.0, 1.8, 0.0, 1.5]))
        soft = layer.filter_bank()
        strict = harden_network(nn.SequentialModule(layer))[0].filter_bank()
        factors = layer.kernel.modulation(layer.kernel.frequency).view_as(soft) + 1
    rows = {"strict": strict, "× factor": factors, "= soft": soft}
    figure, panels = pyplot.subplots(3, 8, figsize=(5.6, 2.5), layout="constrained")
    largest = float(soft.abs().max())
    for (label, bank), line in zip(rows.items(), panels, strict=True):
        for kernel, axes in zip(bank[:, 0], line, strict=True):
            show(axes, kernel, largest)
            if label == "× factor":
                axes.imshow(kernel, cmap="Greys", vmin=0, vmax=2)
        line[0].set_ylabel(label, fontsize=FONT)
    for number, axes in enumerate(panels[0]):
        axes.set_title(f"{45 * number}°", fontsize=FONT)
    return figure


def which_setting() -> Figure:
    """What one knows of the data, and the setting for it."""
    figure, axes = new_figure(4.6, 6.8)
    rows = (
        ("upright: a 6 is no 9", "RelaxedR2Conv(…)"),
        ("turned by any angle", "R2Conv(…)"),
        ("mirror images differ", 'relax=("reflection",)'),
        ("the place matters", 'relax=("translation",)'),
        ("volumes with an axis", "RelaxedR3Conv(…)"),
        ("I do not know", "RelaxedR2Conv(…) and\nSoftnessEvidence"),
    )
    icons = (_upright, _turned, _mirrored, _placed, _axis, _unknown)
    for number, ((words, code), icon) in enumerate(zip(rows, icons, strict=True)):
        y = 1.1 * (len(rows) - 1 - number)
        icon(axes, y)
        axes.text(1.05, y + 0.28, words, va="center", fontsize=FONT)
        style = {"facecolor": "#d6e6f4" if code == "R2Conv(…)" else "#fbe6d6"}
        frame = {"boxstyle": "round,pad=0.4", "edgecolor": "0.4", **style}
        axes.text(
            1.5,
            y - 0.2,
            code,
            va="center",
            fontsize=FONT,
            family="monospace",
            bbox=frame,
        )
        arrow(axes, (1.05, y - 0.2), (1.36, y - 0.2), "")
    axes.set(xlim=(-0.1, 4.3), ylim=(-0.5, 6.0), aspect="equal")
    axes.axis("off")
    return figure


def _frame(axes: Axes, y: float) -> None:
    corner = 0.0, y - 0.42
    axes.add_patch(
        pyplot.Rectangle(corner, 0.84, 0.84, facecolor="0.96", edgecolor="0.4")
    )


def _word(
    axes: Axes, x: float, y: float, word: str, size: int, turned: float = 0.0
) -> None:
    axes.text(x, y, word, ha="center", va="center", fontsize=size, rotation=turned)


def _upright(axes: Axes, y: float) -> None:
    _frame(axes, y)
    _word(axes, 0.42, y, "6", 28)


def _turned(axes: Axes, y: float) -> None:
    _frame(axes, y)
    for x, up, angle in ((0.22, 0.18, 40), (0.6, 0.14, 200), (0.36, -0.2, 120)):
        _word(axes, x, y + up, "6", 16, angle)


def _mirrored(axes: Axes, y: float) -> None:
    _frame(axes, y)
    axes.plot([0.42, 0.42], [y - 0.34, y + 0.34], "--", color="0.5", linewidth=1)
    _word(axes, 0.2, y, "b", 22)
    _word(axes, 0.64, y, "d", 22)


def _placed(axes: Axes, y: float) -> None:
    """The sky above, the ground below."""
    _frame(axes, y)
    axes.fill_between([0.0, 0.84], y - 0.42, y - 0.12, color="0.75", linewidth=0)
    axes.add_patch(pyplot.Circle((0.6, y + 0.18), 0.12, color=SOFT))


def _axis(axes: Axes, y: float) -> None:
    """A cube, and an arrow up."""
    front = np.array(
        [[0.08, -0.36], [0.56, -0.36], [0.56, 0.12], [0.08, 0.12], [0.08, -0.36]]
    )
    for shift in (0.0, 0.2):
        axes.plot(
            front[:, 0] + shift, front[:, 1] + shift + y, color="0.5", linewidth=1
        )
    for x, up in front[:4]:
        axes.plot([x, x + 0.2], [up + y, up + y + 0.2], color="0.5", linewidth=1)
    style = {"arrowstyle": "-|>", "color": SOFT, "linewidth": 2}
    axes.annotate("", (0.42, y + 0.44), (0.42, y - 0.4), arrowprops=style)


def _unknown(axes: Axes, y: float) -> None:
    _frame(axes, y)
    _word(axes, 0.42, y, "?", 26)
