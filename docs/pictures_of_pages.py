"""Pictures of how-to pages, drawn by the Python that the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from drawing import FONT, SOFT, STRICT

HOW_TO = Path(__file__).parent / "how-to"
SCENES = 2
# Of the page on how to choose: questions from top to bottom, and what to take where the answer is yes.
QUESTIONS = (
    (
        "Is every pose equally\nlikely, with the same\nlabel?",
        "R2Conv and\ngroup pooling",
    ),
    (
        "Is a direction known\nfor each image: gravity,\nwind, an axis?",
        "R2Conv and the\ndirection as a vector\nfield of the input",
    ),
    (
        "Is the symmetry broken\nfor some inputs only?",
        "soft layers\nwith a gate",
    ),
    (
        "Does the label change\nwith the pose? Do parts\nrotate on their own?",
        "a free head\nor soft layers",
    ),
    ("Is the output an image?", "a free last layer\nor soft layers"),
    ("Will rotated copies come\nand count as much?", "R2Conv and\ngroup pooling"),
    (
        "Will rotated copies\ncome, but rarely?",
        "a soft head, or soft\nlayers and some rotated\ncopies in training",
    ),
    (
        "Do the images lean,\nand are they few?",
        "a reference field,\nfree biases\nor soft layers",
    ),
)
LAST_ANSWER = "a free head or free\nbiases, then soft layers"


def names_of_page(page: str, heading: str) -> dict[str, Any]:
    """Run the Python of a page up to a heading, and return what it defines."""
    text = (HOW_TO / page).read_text(encoding="utf-8").partition(heading)[0]
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in blocks:
            exec(compile(block, page, "exec"), names)
    return names


def upper_edges() -> Figure:
    """Two scenes, their masks, and the masks of the networks of the page on segmentation."""
    page = names_of_page("segmentation.md", "### Which softness it needs")
    torch.manual_seed(2)
    images, masks = page["scenes"](SCENES)
    networks = {**page["networks"], "hardened": page["hardened"]}
    columns = {"image": images, "truth": masks}
    with torch.no_grad():
        columns |= {name: network(images) > 0 for name, network in networks.items()}
    figure, panels = pyplot.subplots(
        SCENES, len(columns), figsize=(8.4, 2.9), layout="constrained"
    )
    for column, (title, shown) in zip(panels.T, columns.items(), strict=True):
        column[0].set_title(title, fontsize=FONT)
        for axes, pixels in zip(column, shown, strict=True):
            axes.imshow(pixels[0], cmap="Greys", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
    return figure


def decision_tree() -> Figure:
    """Questions about the data, one below the other, and what to take."""
    figure, axes = pyplot.subplots(figsize=(6.6, 10.4), layout="constrained")
    axes.set(xlim=(0, 10), ylim=(len(QUESTIONS) + 0.4, -0.4))
    axes.axis("off")
    for row, (question, answer) in enumerate(QUESTIONS):
        _box(axes, (0.05, 4.75), row, question, STRICT)
        _box(axes, (5.75, 9.95), row, answer, SOFT)
        _arrow(axes, (4.75, row), (5.75, row), "yes", (5.25, row - 0.06))
        _arrow(axes, (2.4, row + 0.36), (2.4, row + 0.64), "no", (2.8, row + 0.55))
    _box(axes, (0.05, 4.75), len(QUESTIONS), LAST_ANSWER, SOFT)
    return figure


def _box(
    axes: Axes, sides: tuple[float, float], y: float, words: str, colour: str
) -> None:
    left, right = sides
    look = {"boxstyle": "round,pad=0,rounding_size=0.1", "facecolor": "white"}
    box = FancyBboxPatch((left, y - 0.36), right - left, 0.72, edgecolor=colour, **look)
    axes.add_patch(box)
    middle = (left + right) / 2
    axes.text(middle, y, words, ha="center", va="center", fontsize=FONT + 2)


def _arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    word: str,
    place: tuple[float, float],
) -> None:
    look = {"arrowstyle": "->", "color": "0.4", "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=look)
    axes.text(*place, word, ha="center", fontsize=FONT, color="0.3")
