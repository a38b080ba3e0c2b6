"""Draw the moving picture of the docs: python docs/turning_digit.py [--output docs/images].

A digit turns. Features of a strict and of a soft layer are turned back, so that those of a strict layer stand still.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from escnn import nn
from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from torch import Tensor
from torch.nn import functional

from drawing import show
from escnn_relaxed import harden_network
from pictures_of_layers import digit, lifting_layer

__all__ = ["frames", "turn"]

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
    layer = lifting_layer(initial_softness=0.3, seed=1)
    image, regular = layer.in_type, layer.out_type
    soft = nn.SequentialModule(layer, nn.ReLU(regular), nn.GroupPooling(regular)).eval()
    networks = {"strict": harden_network(soft), "soft": soft}
    found = []
    for degrees in range(0, 360, STEP):
        turned = turn(digit(33), degrees)
        frame = {"input": turned[0, 0]}
        for label, network in networks.items():
            with torch.no_grad():
                frame[label] = turn(network(image(turned)).tensor, -degrees)[0, 0]
        found.append(frame)
    return found


def main() -> None:
    """Draw and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "images")
    output = parser.parse_args().output
    drawn, found = [], frames()
    titles = {
        "input": "a digit turns",
        "strict": "strict: features,\nturned back",
        "soft": "soft: features,\nturned back",
    }
    for frame in found:
        figure, panels = pyplot.subplots(1, 3, figsize=(4.8, 2.2), layout="constrained")
        for (label, pixels), axes in zip(frame.items(), panels, strict=True):
            if label == "input":
                axes.imshow(pixels, cmap="Greys", vmin=0, vmax=1)
                axes.set(xticks=[], yticks=[])
            else:
                show(axes, pixels, float(found[0][label].abs().max()))
            axes.set_title(titles[label], fontsize=11)
        canvas = FigureCanvasAgg(figure)
        figure.set_dpi(150)
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


if __name__ == "__main__":
    main()
