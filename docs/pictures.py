"""Draw the pictures of the docs that need no training: python docs/pictures.py [--output docs/images]."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from escnn import nn
from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from torch.nn import functional

import pictures_of_layers as layers
import pictures_of_results as results
from drawing import show
from escnn_relaxed import harden_network

PICTURES: dict[str, Callable[[], Figure]] = {
    picture.__name__: picture
    for picture in (
        layers.factors_of_a_filter,
        layers.filters_in_space,
        layers.filters_over_rotations,
        layers.parts_of_a_kernel,
        layers.soft_translation,
        layers.softness_by_axis,
        layers.special_cases,
        results.accuracy_by_epoch,
        results.accuracy_by_frequency,
        results.which_setting,
    )
}
STEP = 15  # degrees from one frame to the next
MILLISECONDS = 120


def turn(images: Tensor, degrees: float) -> Tensor:
    """Turn images counter-clockwise about their centre."""
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    matrix = torch.tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=True)
    return functional.grid_sample(images, grid, mode="bicubic", align_corners=True)


def frames() -> list[dict[str, Tensor]]:
    """For each angle the turned digit and the features of both layers, turned back: (H, W) each."""
    layer = layers.lifting_layer(initial_softness=0.3, seed=1)
    image, regular = layer.in_type, layer.out_type
    soft = nn.SequentialModule(layer, nn.ReLU(regular), nn.GroupPooling(regular)).eval()
    networks = {"strict": harden_network(soft), "soft": soft}
    found = []
    for degrees in range(0, 360, STEP):
        turned = turn(layers.digit(33), degrees)
        frame = {"input": turned[0, 0]}
        for label, network in networks.items():
            with torch.no_grad():
                frame[label] = turn(network(image(turned)).tensor, -degrees)[0, 0]
        found.append(frame)
    return found


def turning_digit(output: Path) -> None:
    """A digit turns. Features are turned back, so that those of a strict layer stand still."""
    drawn, found = [], frames()
    titles = {
        "input": "a digit turns",
        "strict": "strict: features,\nturned back",
        "soft": "soft: features,\nturned back",
    }
    for frame in found:
        figure, panels = pyplot.subplots(
            1, 3, figsize=(4.8, 2.1), layout="constrained", dpi=150
        )
        for (label, pixels), axes in zip(frame.items(), panels, strict=True):
            if label == "input":
                axes.imshow(pixels, cmap="Greys", vmin=0, vmax=1)
                axes.set(xticks=[], yticks=[])
            else:
                show(axes, pixels, float(found[0][label].abs().max()))
            axes.set_title(titles[label], fontsize=11)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3].copy()
        drawn.append(Image.fromarray(pixels).quantize(64))
        pyplot.close(figure)
    drawn[0].save(
        output / "turning_digit.gif",
        save_all=True,
        append_images=drawn[1:],
        duration=MILLISECONDS,
        loop=0,
        optimize=True,
    )


def main() -> None:
    """Draw all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "images")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    turning_digit(output)
    for name, picture in PICTURES.items():
        figure = picture()
        figure.savefig(output / f"{name}.png", dpi=160)
        pyplot.close(figure)


if __name__ == "__main__":
    main()
