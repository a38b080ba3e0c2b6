"""MNIST6-180: images of the digit 6, half of them turned by 180°, to be told apart (Romero & Lohit, 2022).

A part of mnist6_180.py, which is the file to run. It needs scikit-learn (the extra ``examples``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from shared import bundled_digits, mnist_digits, only_sixes

__all__ = ["Sixes", "bundled_sixes", "mnist_sixes", "shift_randomly"]

# Odd, as is 15 after a pooling by 2, so that turns map the points that a stride of 2 keeps to each other.
IMAGE_SIZE = 29
BUNDLED_DIGIT_SIZE = 21
TEST_SHARE = 0.3


@dataclass(frozen=True)
class Sixes:
    """Upright sixes, (n, 1, 29, 29) with values in [0, 1]; no digit is in both splits."""

    name: str
    train: Tensor
    test: Tensor


def bundled_sixes() -> Sixes:
    """The 181 sixes among scikit-learn's digits, 8×8 pixels each, enlarged."""
    images = _as_images(only_sixes(bundled_digits()), BUNDLED_DIGIT_SIZE)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    tests = round(TEST_SHARE * len(images))
    return Sixes("scikit-learn's digits", train=images[order[tests:]], test=images[order[:tests]])


def mnist_sixes(root: Path) -> Sixes:
    """The sixes of MNIST, in its own split; ``root`` is the folder of its files, downloaded there where missing."""
    train, test = (_as_images(only_sixes(mnist_digits(root, split)) / 255, IMAGE_SIZE) for split in ("train", "test"))
    return Sixes("MNIST", train, test)


def _as_images(images: Tensor, size: int) -> Tensor:
    """(n, 1, h, w) → (n, 1, 29, 29): resized to ``size`` and padded with 0, both of which commute with turns."""
    resized = interpolate(images, size=(size, size), mode="bilinear", align_corners=True)
    return pad(resized, 4 * [(IMAGE_SIZE - size) // 2])


def shift_randomly(images: Tensor, most: int = 2) -> Tensor:
    """Shift each image by up to ``most`` pixels along both axes."""
    count, _, height, width = images.shape
    windows = pad(images, 4 * [most]).unfold(2, height, 1).unfold(3, width, 1)
    rows, columns = torch.randint(2 * most + 1, (2, count))
    return windows[torch.arange(count), :, rows, columns]
