"""What the tutorials share: digits, a network, its training. They run it in this folder.

ESCNN_RELAXED_SMOKE=1 takes few images and steps, to see that everything runs: numbers then mean nothing.
ESCNN_RELAXED_MNIST=DIRECTORY takes MNIST, downloaded there if it is not, in place of scikit-learn's digits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import torch
from escnn import gspaces, nn
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, interpolate, pad

SMOKE = os.environ.get("ESCNN_RELAXED_SMOKE", "") not in ("", "0")
MNIST = os.environ.get("ESCNN_RELAXED_MNIST", "")
# 17 → 9 → 5: odd, so that turns map the points that a stride of 2 keeps to each other.
SIZE = 17

torch.set_num_threads(1)  # enough for these networks

Data = tuple[Tensor, Tensor]


def digits(images: int = 1200, tests: int = 500) -> tuple[Data, Data]:
    """Images (n, 1, 17, 17) in [0, 1] and labels for training, and as a test."""
    pixels, labels, side = (_mnist if MNIST else _bundled)()
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    if SMOKE:
        images, tests = 64, 64
    order = order[: images + tests]
    small = side < pixels.shape[-1]
    resized = interpolate(
        pixels[order].unsqueeze(1), size=(side, side), mode="bilinear", align_corners=not small, antialias=small
    )
    framed, labels = pad(resized, [(SIZE - side) // 2] * 4), labels[order]
    return (framed[:images], labels[:images]), (framed[images:], labels[images:])


def turned(images: Tensor, most: float = 180, seed: int = 0) -> Tensor:
    """Each image turned by a random angle of at most so many degrees."""
    angles = math.radians(most) * (2 * torch.rand(len(images), generator=torch.Generator().manual_seed(seed)) - 1)
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    matrices = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).view(-1, 2, 3)
    grid = affine_grid(matrices, list(images.shape), align_corners=True)
    return grid_sample(images, grid, align_corners=True)


class Classifier(torch.nn.Module):
    """A steerable CNN of three layers of C8 fields; ``convolutions`` are what is built in place of ``R2Conv``."""

    def __init__(self, *convolutions: Callable[..., nn.EquivariantModule], classes: int = 10, fields: int = 6) -> None:
        super().__init__()
        gspace = gspaces.rot2dOnR2(8)
        self.in_type = nn.FieldType(gspace, [gspace.trivial_repr])
        hidden = nn.FieldType(gspace, [gspace.regular_repr] * fields)
        convolutions = convolutions * 3 if len(convolutions) == 1 else convolutions
        modules, before = [], self.in_type
        for convolution, size in zip(convolutions, (5, 5, 5), strict=True):
            if modules:
                modules.append(nn.PointwiseAvgPoolAntialiased(hidden, sigma=0.66, stride=2))
            modules.append(convolution(before, hidden, size, padding=size // 2, bias=False))
            modules += [nn.InnerBatchNorm(hidden), nn.ReLU(hidden)]
            before = hidden
        self.features = nn.SequentialModule(*modules, nn.GroupPooling(hidden))
        self.head = torch.nn.Linear(fields, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 17, 17) → logits (batch, classes)."""
        return self.head(self.features(self.in_type(images)).tensor.mean(dim=(2, 3)))


def train(
    network: torch.nn.Module,
    data: Data,
    epochs: int,
    rate: float = 1e-2,
    penalty: Callable[[], Tensor] | None = None,
    after_step: Callable[[int], None] | None = None,
    groups: list | None = None,
) -> torch.nn.Module:
    """Adam with a rate that rises and falls; batches of 64."""
    torch.manual_seed(1)
    images, labels = data
    epochs = 1 if SMOKE else epochs
    optimiser = torch.optim.Adam(groups or network.parameters(), lr=rate)
    rates = [group["lr"] for group in optimiser.param_groups]
    steps = epochs * -(-len(images) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rates, total_steps=steps)
    network.train()
    for step in range(steps):
        if step % -(-len(images) // 64) == 0:
            batches = iter(torch.randperm(len(images)).split(64))
        batch = next(batches)
        loss = cross_entropy(network(images[batch]), labels[batch])
        if penalty is not None:
            loss = loss + penalty()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if after_step is not None:
            after_step(step)
    return network.eval()


@torch.no_grad()
def accuracy(network: torch.nn.Module, data: Data) -> float:
    """Per cent of images whose label is predicted."""
    network.eval()
    images, labels = data
    found = torch.cat([network(part).argmax(1) for part in images.split(250)])
    return 100 * float((found == labels).float().mean())


def _bundled() -> tuple[Tensor, Tensor, int]:
    data = load_digits()
    return torch.from_numpy(data.images / 16).float(), torch.from_numpy(data.target), 13


def _mnist() -> tuple[Tensor, Tensor, int]:
    from escnn_relaxed.experiments.mnist_files import mnist_split

    images, labels = mnist_split(Path(MNIST), "train")
    return torch.from_numpy(images / 255).float(), torch.from_numpy(labels.astype("int64")), SIZE
