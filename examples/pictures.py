"""The picture of MNIST6-180: test images, the filters of a strict and of a soft layer, learning curves.

A part of mnist6_180.py, which is the file to run. It needs matplotlib (the extra ``examples``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from torch import Tensor

from shared import SIX_CLASSES

__all__ = ["save_picture"]

# Colours of Okabe and Ito, told apart by colour-blind readers; line styles differ as well.
CURVE_STYLES = {"strict": {"color": "#0072B2", "linestyle": "--"}, "soft": {"color": "#D55E00", "linestyle": "-"}}
FILTER_COLOURS = "PuOr"

Curves = Mapping[str, Sequence[Sequence[float]]]


def save_picture(
    path: Path,
    test_images: tuple[Tensor, Tensor],
    filter_banks: Mapping[str, Tensor],
    curves: Mapping[str, Curves],
    rotations: int,
) -> None:
    """Draw the three parts below each other.

    Args:
        path: the file; its suffix says the format.
        test_images: a few images (n, 1, H, W) and their labels (n,).
        filter_banks: of the first layer of the ``"strict"`` and the ``"soft"`` network, (C_out, 1, k, k).
        curves: title → kind of network → for each seed, a value for each epoch.
        rotations: order of the group.
    """
    figure = Figure(figsize=(6, 7), layout="constrained")
    top, middle, bottom = figure.subfigures(3, 1, height_ratios=(1.3, 3.7, 2.7))
    draw_images(top, *test_images)
    draw_filters(middle, filter_banks, rotations)
    draw_curves(bottom, curves)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.15)


def draw_images(panel: SubFigure, images: Tensor, labels: Tensor) -> None:
    """A row of images under their labels."""
    panel.suptitle("Test images and their labels", fontweight="bold", fontsize=12)
    for axes, image, label in zip(panel.subplots(1, len(images)), images, labels, strict=True):
        show(axes, image[0], "gray_r", largest=1.0, smallest=0.0)
        axes.set_title(SIX_CLASSES[int(label)], fontsize=9)


def draw_filters(panel: SubFigure, filter_banks: Mapping[str, Tensor], rotations: int) -> None:
    """A row of filters over the rotations for each layer, and how the soft layer's half turns differ."""
    filters = {kind: over_rotations(bank.detach(), rotations) for kind, bank in filter_banks.items()}
    changes = {kind: half_turn_difference(field) for kind, field in filters.items()}
    chosen = {kind: int(change.flatten(1).norm(dim=1).argmax()) for kind, change in changes.items()}
    soft = chosen["soft"]
    rows = {
        "strict:\none filter,\nturned": filters["strict"][chosen["strict"]],
        "soft:\nit changes\nas it turns": filters["soft"][soft],
        "soft:\nchange over\n180°\n(strict: 0)": changes["soft"][soft],
    }
    scales = [filters[kind][chosen[kind]].abs().max() for kind in ("strict", "soft", "soft")]
    panel.suptitle("First layer: the filters of one field, over the rotations", fontweight="bold", fontsize=12)
    grid = panel.subplots(len(rows), rotations)
    for line, (label, row), scale in zip(grid, rows.items(), scales, strict=True):
        for axes, kernel in zip(line, row, strict=True):
            show(axes, kernel, FILTER_COLOURS, largest=float(scale), smallest=-float(scale))
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=12)
    for number, axes in enumerate(grid[0]):
        axes.set_title(f"{360 * number / rotations:g}°", fontsize=12)


def over_rotations(bank: Tensor, rotations: int) -> Tensor:
    """Filter bank of a lifting layer, (fields · rotations, 1, k, k) → (fields, rotations, k, k)."""
    return bank.unflatten(0, (-1, rotations)).squeeze(2)


def half_turn_difference(filters: Tensor) -> Tensor:
    """Each filter less the one half a turn away, turned back: 0 in a strict layer."""
    opposite = torch.roll(filters, filters.shape[1] // 2, dims=1)
    return filters - opposite.flip(2, 3)


def draw_curves(panel: SubFigure, curves: Mapping[str, Curves]) -> None:
    """Learning curves side by side, a line for each network."""
    panel.suptitle("Learning curves, a line for each network", fontweight="bold", fontsize=12)
    for axes, (title, kinds) in zip(panel.subplots(1, len(curves)), curves.items(), strict=True):
        for kind, lines in kinds.items():
            for number, line in enumerate(lines):
                label = kind if number == 0 else None
                axes.plot(range(1, len(line) + 1), line, label=label, linewidth=1.5, **CURVE_STYLES[kind])
        axes.set_title(title, fontsize=12)
        axes.set_xlabel("epoch")
        axes.set_ylim(0, 1.05 * axes.dataLim.ymax)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, loc="lower right")


def show(axes: Axes, pixels: Tensor, colours: str, largest: float, smallest: float) -> None:
    """A picture without ticks."""
    axes.imshow(pixels.numpy(), cmap=colours, vmin=smallest, vmax=largest)
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_color("0.8")
