"""What several tutorials share: digits, a small steerable network, its training.

With the environment variable ESCNN_RELAXED_SMOKE=1 there are 64 images and one epoch.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import escnn_relaxed  # noqa: F401 — before escnn, which otherwise warns on import

import torch
from escnn import gspaces, nn
from matplotlib import pyplot
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

Split = tuple[Tensor, Tensor]  # images (n, 1, H, W) and labels (n,)
# The same in every picture.
COLOURS = {
    **dict.fromkeys(("strict", "R2Conv"), "#0072b2"),
    **dict.fromkeys(("soft", "RelaxedR2Conv", "relaxed"), "#d55e00"),
    **{"partial": "#009e73", "residual": "#cc79a7", "weighted": "#e69f00"},
    "soft, all directions": "#009e73",
    "strict, coordinates": "#56b4e9",
}


def is_trial() -> bool:
    """Return whether the tutorials run for a few steps only."""
    return os.environ.get("ESCNN_RELAXED_SMOKE", "") not in ("", "0")


def digits(images: int = 1200, tests: int = 500) -> tuple[Split, Split]:
    """Return digits of 17 × 17 pixels in [0, 1], for training and for the test."""
    images, tests = (64, 64) if is_trial() else (images, tests)
    data = load_digits()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(data.target), generator=generator)[: images + tests]
    pixels = torch.from_numpy(data.images / 16).float()[order, None]
    labels = torch.from_numpy(data.target)[order]
    # 17 → 9 → 5: odd, so that quarter turns map the pixels that a stride keeps to
    # each other.
    larger = functional.interpolate(
        pixels, size=13, mode="bilinear", align_corners=True
    )
    framed = functional.pad(larger, [2] * 4)
    return (framed[:images], labels[:images]), (framed[images:], labels[images:])


def turned(images: Tensor, most: float = 180, seed: int = 0) -> Tensor:
    """Return the images, each turned by a random angle of up to ``most`` degrees."""
    random = torch.rand(len(images), generator=torch.Generator().manual_seed(seed))
    angles = torch.deg2rad(most * (2 * random - 1))
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    matrices = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=True)
    return functional.grid_sample(images, grid, align_corners=True)


def show(images: Tensor, titles: Sequence[object]) -> None:
    """Draw the first ten images (n, 1, H, W) in a row."""
    _, panels = pyplot.subplots(1, 10, figsize=(9, 1.3), layout="constrained")
    for panel in panels[len(images) :]:
        panel.set_visible(False)
    for image, title, panel in zip(images, titles, panels, strict=False):
        panel.imshow(image[0], cmap="Greys")
        panel.set_title(str(title), fontsize=9)
        panel.set(xticks=[], yticks=[])


class SteerableCNN(torch.nn.Module):
    """Three convolutions of C8 regular fields, group pooling, a linear layer."""

    def __init__(
        self, convolution: Callable[..., Any], fields: int = 6, classes: int = 10
    ) -> None:
        super().__init__()
        gspace = gspaces.rot2dOnR2(8)
        self.in_type = nn.FieldType(gspace, [gspace.trivial_repr])
        hidden = nn.FieldType(gspace, [gspace.regular_repr] * fields)
        layers: list[Any] = []
        for in_type in (self.in_type, hidden, hidden):
            if layers:
                pooling = nn.PointwiseAvgPoolAntialiased(hidden, sigma=0.66, stride=2)
                layers.append(pooling)
            layers.append(
                convolution(in_type, hidden, kernel_size=5, padding=2, bias=False)
            )
            layers += [nn.InnerBatchNorm(hidden), nn.ReLU(hidden)]
        self.features = nn.SequentialModule(*layers, nn.GroupPooling(hidden))
        self.head = torch.nn.Linear(fields, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(self.in_type(images)).tensor
        return self.head(features.mean(dim=(2, 3)))


def train(
    network: torch.nn.Module,
    data: Split,
    epochs: int,
    rate: float = 1e-2,
    watch: Callable[[torch.nn.Module], None] | None = None,
) -> torch.nn.Module:
    """Train by Adam in batches of 64, with a rate that rises and falls.

    After each epoch ``watch`` is called with the network, in evaluation mode.
    """
    torch.manual_seed(1)
    images, labels = data
    epochs = 1 if is_trial() else epochs
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    steps = epochs * len(images[::64])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    for _ in range(epochs):
        network.train()
        for batch in torch.randperm(len(images)).split(64):
            loss = functional.cross_entropy(network(images[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        if watch is not None:
            watch(network.eval())
    return network.eval()


@torch.no_grad()
def predictions(network: torch.nn.Module, images: Tensor) -> Tensor:
    """Return the label that the network gives each image."""
    return torch.cat([network.eval()(part).argmax(1) for part in images.split(250)])


def accuracy(network: torch.nn.Module, data: Split) -> float:
    """Return the percentage of images whose label the network predicts."""
    images, labels = data
    return 100 * (predictions(network, images) == labels).float().mean().item()


def plot_curves(curves: dict[str, list[list[float]]], first: int = 1) -> None:
    """Draw, for each name, a thin line for each seed and a thick one for their mean.

    The first value is that after ``first`` epochs.
    """
    _, axes = pyplot.subplots(figsize=(5, 3), layout="constrained")
    for name, seeds in curves.items():
        mean = torch.tensor(seeds).mean(dim=0)
        epochs = range(first, first + len(mean))
        (line,) = axes.plot(epochs, mean, label=name, color=COLOURS.get(name))
        for seed in seeds if len(seeds) > 1 else ():
            axes.plot(epochs, seed, color=line.get_color(), linewidth=0.7, alpha=0.5)
    axes.set(xlabel="epochs", ylabel="accuracy on test images, %")
    axes.legend(frameon=False)
