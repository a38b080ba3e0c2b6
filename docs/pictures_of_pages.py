"""Pictures of how-to pages, drawn by the Python that the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot
from matplotlib.figure import Figure

from drawing import FONT

HOW_TO = Path(__file__).parent / "how-to"
SCENES = 2


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
