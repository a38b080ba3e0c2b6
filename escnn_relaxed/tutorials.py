"""The data, the network and the training of the tutorials: digits that are turned, and a small steerable CNN.

The tutorials import these functions, so that each notebook runs without a file beside it. They need scikit-learn and
matplotlib (the extra ``examples``). With the environment variable ``ESCNN_RELAXED_SMOKE=1`` there are 64 images and
one epoch, as a trial.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from escnn import gspaces, nn
from torch import Tensor
from torch.nn import functional

__all__ = ["SteerableCNN", "accuracy", "digits", "is_trial", "show", "train", "turned"]

Split = tuple[Tensor, Tensor]


def is_trial() -> bool:
    """Return whether the tutorials run for a few steps only.

    Example:
        >>> is_trial() in (True, False)
        True
    """
    return os.environ.get("ESCNN_RELAXED_SMOKE", "") not in ("", "0")


def digits(images: int = 1200, tests: int = 500) -> tuple[Split, Split]:
    """Return scikit-learn's digits in a frame, (n, 1, 17, 17) in [0, 1], with labels: for training and for the test.

    Args:
        images: number of images for training.
        tests: number of images for the test.

    Example:
        >>> (images, labels), test = digits(images=64, tests=64)
        >>> images.shape
        torch.Size([64, 1, 17, 17])
    """
    from sklearn.datasets import load_digits

    images, tests = (64, 64) if is_trial() else (images, tests)
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))[: images + tests]
    pixels = torch.from_numpy(data.images / 16).float()[order, None]
    labels = torch.from_numpy(data.target)[order]
    larger = functional.interpolate(pixels, size=13, mode="bilinear", align_corners=True)
    # 17 → 9 → 5: odd sizes, so that quarter turns map the pixels that a stride keeps to each other.
    framed = functional.pad(larger, [2] * 4)
    return (framed[:images], labels[:images]), (framed[images:], labels[images:])


def turned(images: Tensor, most: float = 180, seed: int = 0) -> Tensor:
    """Return the images, each turned by a random angle.

    Args:
        images: (n, channels, H, W).
        most: largest angle, in degrees.
        seed: of the angles.

    Example:
        >>> turned(torch.ones(2, 1, 5, 5), most=60).shape
        torch.Size([2, 1, 5, 5])
    """
    random = torch.rand(len(images), generator=torch.Generator().manual_seed(seed))
    angles = torch.deg2rad(most * (2 * random - 1))
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    matrices = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=True)
    return functional.grid_sample(images, grid, align_corners=True)


def show(images: Tensor, titles: Sequence[object]) -> None:
    """Draw the first ten images in a row.

    Args:
        images: (n, 1, H, W).
        titles: one for each image.

    Example:
        >>> show(torch.rand(10, 1, 5, 5), range(10))
    """
    from matplotlib import pyplot

    _, panels = pyplot.subplots(1, 10, figsize=(9, 1.3), layout="constrained")
    for image, title, panel in zip(images, titles, panels, strict=False):
        panel.imshow(image[0], cmap="Greys")
        panel.set_title(str(title), fontsize=9)
        panel.set(xticks=[], yticks=[])


class SteerableCNN(torch.nn.Module):
    """Three convolutions of C8 regular fields, the maximum over the group, a linear layer.

    Args:
        convolution: the class of the convolutions, ``R2Conv`` or a layer in its place.
        fields: number of regular fields of each layer.
        classes: number of classes.

    Example:
        >>> SteerableCNN(nn.R2Conv)(torch.rand(2, 1, 17, 17)).shape
        torch.Size([2, 10])
    """

    def __init__(self, convolution: Callable[..., Any], fields: int = 6, classes: int = 10) -> None:
        super().__init__()
        gspace = gspaces.rot2dOnR2(8)
        self.in_type = nn.FieldType(gspace, [gspace.trivial_repr])
        hidden = nn.FieldType(gspace, [gspace.regular_repr] * fields)
        layers: list[Any] = []
        for in_type in (self.in_type, hidden, hidden):
            if layers:
                layers.append(nn.PointwiseAvgPoolAntialiased(hidden, sigma=0.66, stride=2))
            layers.append(convolution(in_type, hidden, kernel_size=5, padding=2, bias=False))
            layers += [nn.InnerBatchNorm(hidden), nn.ReLU(hidden)]
        self.features = nn.SequentialModule(*layers, nn.GroupPooling(hidden))
        self.head = torch.nn.Linear(fields, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, classes) of images (n, 1, H, W)."""
        features: Tensor = self.features(self.in_type(images)).tensor
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


def train(network: torch.nn.Module, data: Split, epochs: int, rate: float = 1e-2) -> torch.nn.Module:
    """Train a network by Adam in batches of 64, with a rate that rises and falls, and return it in evaluation mode.

    Args:
        network: from images to logits.
        data: images and labels.
        epochs: number of times that each image is seen.
        rate: largest learning rate.

    Example:
        >>> data = torch.rand(64, 1, 17, 17), torch.randint(10, (64,))
        >>> train(SteerableCNN(nn.R2Conv, fields=1), data, epochs=1).training
        False
    """
    torch.manual_seed(1)
    images, labels = data
    epochs = 1 if is_trial() else epochs
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=epochs * len(images[::64]))
    network.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            loss = functional.cross_entropy(network(images[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return network.eval()


@torch.no_grad()
def accuracy(network: torch.nn.Module, data: Split) -> float:
    """Return the percentage of images whose label the network predicts.

    Args:
        network: from images to logits; it is put into evaluation mode.
        data: images and labels.

    Example:
        >>> data = torch.eye(2), torch.tensor([0, 1])
        >>> accuracy(torch.nn.Identity(), data)
        100.0
    """
    images, labels = data
    found = torch.cat([network.eval()(part).argmax(1) for part in images.split(250)])
    return 100 * (found == labels).float().mean().item()
