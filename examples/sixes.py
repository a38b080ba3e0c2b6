"""MNIST6-180: images of the digit 6, half of them turned by 180°, to be told apart (Romero & Lohit, 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import interpolate, pad

from escnn_relaxed.experiments.mnist_files import mnist_split

__all__ = [
    "CLASSES",
    "Sixes",
    "bundled_sixes",
    "mnist_sixes",
    "shift_randomly",
    "turn_half",
    "upright_and_turned",
]

CLASSES = ("upright", "turned")
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
    digits = load_digits()
    images = _as_images(digits.images[digits.target == 6] / 16, BUNDLED_DIGIT_SIZE)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    tests = round(TEST_SHARE * len(images))
    return Sixes("scikit-learn's digits", train=images[order[tests:]], test=images[order[:tests]])


def mnist_sixes(root: Path) -> Sixes:
    """The sixes of MNIST, in its own split; ``root`` is the folder of its files, downloaded there where missing."""
    splits = []
    for split in ("train", "t10k"):
        images, labels = mnist_split(root, split)
        splits.append(_as_images(images[labels == 6] / 255, IMAGE_SIZE))
    return Sixes("MNIST", train=splits[0], test=splits[1])


def _as_images(pixels: NDArray[np.float64], size: int) -> Tensor:
    """(n, h, w) → (n, 1, 29, 29): resized to ``size`` and padded with 0, both of which commute with turns."""
    images = torch.from_numpy(pixels).float().unsqueeze(1)
    resized = interpolate(images, size=(size, size), mode="bilinear", align_corners=True)
    return pad(resized, 4 * [(IMAGE_SIZE - size) // 2])


def turn_half(images: Tensor) -> tuple[Tensor, Tensor]:
    """Turn a random half of the images by 180°; their labels, 1 for turned."""
    labels = torch.randperm(len(images)) % 2
    turned = torch.where(labels.bool().view(-1, 1, 1, 1), images.flip(2, 3), images)
    return turned, labels


def upright_and_turned(images: Tensor) -> tuple[Tensor, Tensor]:
    """Each image upright, then each turned by 180°; their labels."""
    return torch.cat([images, images.flip(2, 3)]), torch.arange(2).repeat_interleave(len(images))


def shift_randomly(images: Tensor, most: int = 2) -> Tensor:
    """Shift each image by up to ``most`` pixels along both axes."""
    count, _, height, width = images.shape
    windows = pad(images, 4 * [most]).unfold(2, height, 1).unfold(3, width, 1)
    rows, columns = torch.randint(2 * most + 1, (2, count))
    return windows[torch.arange(count), :, rows, columns]
