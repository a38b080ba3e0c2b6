"""Draw the moving picture of the docs: python docs/turning_digit.py [--output docs/images].

A strict and a soft network learn to tell sixes from sixes that are turned by 180°. Then sixes that they have not seen
turn, and both networks say how likely each six is a turned one. A strict network gives a turned image the answer of the
upright one.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from escnn_relaxed import RelaxedR2Conv

import numpy as np
import torch
from escnn import gspaces, nn
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

from drawing import SOFT, STRICT

__all__ = ["frames", "sixes", "turn"]

STEP = 10  # degrees from one frame to the next
MILLISECONDS, AT_THE_END = 90, 2500
STEPS = 120  # of training
TESTS = 60  # sixes that no network has seen
SHOWN = 3  # the test six of the picture


def turn(images: Tensor, degrees: float) -> Tensor:
    """Turn images counter-clockwise about their centre."""
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    matrix = torch.tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    size = list(images.shape)
    grid = functional.affine_grid(
        matrix.expand(len(images), 2, 3), size, align_corners=True
    )
    return functional.grid_sample(images, grid, mode="bicubic", align_corners=True)


def sixes() -> Tensor:
    """scikit-learn's sixes on 17 × 17 pixels, (181, 1, 17, 17)."""
    data = load_digits()
    pixels = torch.from_numpy(data.images[data.target == 6] / 16).float()[:, None]
    larger = functional.interpolate(
        pixels, size=13, mode="bilinear", align_corners=True
    )
    return functional.pad(larger, [2] * 4)


class SixOrTurned(torch.nn.Module):
    """Two convolutions of C8 regular fields, group pooling, a linear layer."""

    def __init__(self, relax: str | None) -> None:
        super().__init__()
        gspace = gspaces.rot2dOnR2(8)
        self.image = nn.FieldType(gspace, [gspace.trivial_repr])
        hidden = nn.FieldType(gspace, [gspace.regular_repr] * 4)
        self.features = nn.SequentialModule(
            RelaxedR2Conv(self.image, hidden, 7, padding=3, relax=relax),
            nn.InnerBatchNorm(hidden),
            nn.ReLU(hidden),
            RelaxedR2Conv(hidden, hidden, 5, padding=2, relax=relax),
            nn.InnerBatchNorm(hidden),
            nn.ReLU(hidden),
            nn.GroupPooling(hidden),
        )
        self.head = torch.nn.Linear(4, 1)

    def forward(self, images: Tensor) -> Tensor:
        """(n, 1, 17, 17) → one logit for each image: it is turned."""
        features = self.features(self.image(images)).tensor
        logits: Tensor = self.head(features.mean(dim=(2, 3)))[:, 0]
        return logits


def trained(relax: str | None) -> SixOrTurned:
    """A network that has learned from upright and turned sixes."""
    torch.manual_seed(0)
    network = SixOrTurned(relax)
    known = sixes()[TESTS:]
    labels = torch.arange(2.0).repeat_interleave(32)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(STEPS):
        batch = known[torch.randperm(len(known))[:32]]
        images = torch.cat([batch, batch.flip(2, 3)])
        loss = functional.binary_cross_entropy_with_logits(network(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval()


def frames() -> list[dict[str, Tensor]]:
    """For each angle the probabilities, (tests,), that both networks give "this six is turned"."""
    networks = {"strict": trained(None), "soft": trained("rotation")}
    found = []
    for degrees in range(0, 361, STEP):
        tests = turn(sixes()[:TESTS], degrees)
        with torch.no_grad():
            found.append(
                {name: network(tests).sigmoid() for name, network in networks.items()}
            )
    return found


def draw_six(axes: Axes, degrees: float) -> None:
    """The outline of a six, turned: sharp at every angle, which pixels are not."""
    pixels = functional.interpolate(
        sixes()[SHOWN][None], size=120, mode="bicubic", align_corners=True
    )[0, 0]
    line = np.linspace(-1, 1, 120)
    x, y = np.meshgrid(line, -line)
    angle = math.radians(degrees)
    axes.contourf(
        x * math.cos(angle) - y * math.sin(angle),
        x * math.sin(angle) + y * math.cos(angle),
        pixels,
        levels=[0.45, 9],
        colors=["black"],
    )
    axes.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xticks=[], yticks=[])
    axes.set_title("six or turned six?", fontsize=12)


def draw_curves(axes: Axes, found: list[dict[str, Tensor]]) -> None:
    """The mean probability of both networks until now."""
    names = {"strict": ("R2Conv", STRICT), "soft": ("RelaxedR2Conv", SOFT)}
    for name, (label, colour) in names.items():
        heights = [100 * frame[name].mean().item() for frame in found]
        axes.plot(STEP * np.arange(len(heights)), heights, color=colour, linewidth=2.5)
        axes.plot(STEP * (len(heights) - 1), heights[-1], "o", color=colour)
        axes.plot([], [], color=colour, linewidth=2.5, label=label)
    axes.set(xlim=(-8, 368), ylim=(-6, 106), xticks=range(0, 361, 90))
    axes.set_xticklabels([f"{angle}°" for angle in range(0, 361, 90)])
    axes.set_yticks([0, 50, 100], ["0 %", "50 %", "100 %"])
    axes.set_title("“it is turned”, says the network", fontsize=12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.4)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 0.06))


def picture(found: list[dict[str, Tensor]]) -> Image.Image:
    """One frame."""
    figure: Figure = pyplot.figure(figsize=(6.2, 2.5), layout="constrained", dpi=105)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.8))
    draw_six(left, STEP * (len(found) - 1))
    draw_curves(right, found)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    pyplot.close(figure)
    return Image.fromarray(pixels)


def main() -> None:
    """Draw and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "images")
    output = parser.parse_args().output
    found = frames()
    pictures = [picture(found[: number + 1]) for number in range(len(found))]
    # Few colours, the same in all frames and without dithering, keep the file small.
    palette = pictures[-1].quantize(24)
    drawn = [
        frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in pictures
    ]
    drawn[0].save(
        output / "turning_digit.gif",
        save_all=True,
        append_images=drawn[1:],
        duration=[MILLISECONDS] * (len(drawn) - 1) + [AT_THE_END],
        loop=0,
        optimize=True,
    )


if __name__ == "__main__":
    main()
