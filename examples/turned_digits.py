"""Digits turned by up to 60°: partly symmetric, so that neither a strict nor a very soft network fits best.

A part of sweep.py, which is the file to run. It needs scikit-learn (the extra ``examples``).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate, pad

from shared import bundled_digits, mnist_digits

__all__ = ["SIDE", "Split", "turned_digits"]

Split = tuple[Tensor, Tensor]
# 17, 9 and 5 halve to odd sizes, so that strides map the pixel grid to itself under turns.
SIDE = 17
LARGEST_ANGLE = 60  # degrees
VALIDATION_SHARE = 0.25
TEST_SHARE = 0.3


def turned_digits(root: Path | None, images: int, seed: int) -> tuple[Split, Split, Split]:
    """Images (n, 1, 17, 17) and classes for training, validation and the test.

    Which images are held out for validation is drawn with the seed; the test images are the same for every seed.

    Args:
        root: folder of MNIST's idx files; scikit-learn's bundled digits without.
        images: for training and validation together.
        seed: of the draw.
    """
    known, test = _bundled() if root is None else _mnist(root)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(known[0]), generator=generator)[:images]
    held_out = round(VALIDATION_SHARE * len(order))
    parts = [(known[0][chosen], known[1][chosen]) for chosen in (order[held_out:], order[:held_out])]
    train, validation = ((_turned(pixels, generator), labels) for pixels, labels in parts)
    return train, validation, (_turned(test[0], torch.Generator().manual_seed(0)), test[1])


def _bundled() -> tuple[Split, Split]:
    images, labels = bundled_digits()
    small = interpolate(images, size=13, mode="bilinear", align_corners=True)
    order = np.random.default_rng(0).permutation(len(small))
    tests = round(TEST_SHARE * len(small))
    known, test = ((pad(small[part], 4 * [2]), labels[part]) for part in (order[tests:], order[:tests]))
    return known, test


def _mnist(root: Path) -> tuple[Split, Split]:
    splits = []
    for name in ("train", "test"):
        images, labels = mnist_digits(root, name)
        splits.append((interpolate(images / 255, size=SIDE, mode="bilinear", antialias=True), labels))
    return splits[0], splits[1]


def _turned(images: Tensor, generator: torch.Generator) -> Tensor:
    angles = (2 * torch.rand(len(images), generator=generator) - 1) * math.radians(LARGEST_ANGLE)
    cosine, sine, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    matrices = torch.stack([cosine, -sine, zero, sine, cosine, zero], dim=1).view(-1, 2, 3)
    grid = affine_grid(matrices, list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False)
