"""Digits as tensors, scikit-learn's and MNIST's, and MNIST6-180: which of their images count as which class."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from .mnist_files import mnist_split
from .requirements import require

__all__ = ["SIX_CLASSES", "both_ways_up", "bundled_digits", "half_turned", "mnist_digits", "only_sixes", "turned"]

SIX_CLASSES = ("upright", "turned")


def bundled_digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's digits: images (1797, 1, 8, 8) with values in [0, 1], and classes (1797,).

    Raises:
        ModuleNotFoundError: where scikit-learn is not installed.
    """
    digits = require("sklearn.datasets").load_digits()
    return torch.from_numpy(digits.images).float().unsqueeze(1) / 16, torch.from_numpy(digits.target).long()


def mnist_digits(root: Path, split: str) -> tuple[Tensor, Tensor]:
    """MNIST's digits: uint8 images (n, 1, 28, 28), and classes (n,).

    Args:
        root: folder of MNIST's idx files, downloaded there where missing.
        split: ``"train"`` or ``"test"``.

    Raises:
        DataError: if a file is damaged, or missing and not to be had.
    """
    pixels, labels = mnist_split(root, "train" if split == "train" else "t10k")
    return torch.from_numpy(pixels.copy()).unsqueeze(1), torch.from_numpy(labels.copy()).long()


def only_sixes(digits: tuple[Tensor, Tensor]) -> Tensor:
    """The images of class 6."""
    images, labels = digits
    return images[labels == 6]


def turned(sixes: Tensor, labels: Tensor) -> Tensor:
    """Upright sixes (n, 1, H, W), those of class 1 turned by 180°."""
    return torch.where(labels.bool().view(-1, 1, 1, 1), sixes.flip(2, 3), sixes)


def half_turned(sixes: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """A random half of the sixes turned by 180°, and their classes.

    Example:
        >>> half_turned(torch.rand(6, 1, 4, 4))[1].sum()
        tensor(3)
    """
    labels = torch.randperm(len(sixes), generator=generator) % 2
    return turned(sixes, labels), labels


def both_ways_up(sixes: Tensor) -> tuple[Tensor, Tensor]:
    """Each six upright, then each turned by 180°, and their classes: an invariant network has exactly one of two right.

    Example:
        >>> both_ways_up(torch.rand(2, 1, 4, 4))[1]
        tensor([0, 0, 1, 1])
    """
    labels = torch.arange(2).repeat_interleave(len(sixes))
    return turned(torch.cat([sixes, sixes]), labels), labels
