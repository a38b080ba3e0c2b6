"""The data of one seed, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.shared.training import Split
from benchmarks.symmetry.turns import Element, turned
from experiments.digits import bundled_digits, mnist_digits

# Images have an odd side that halves to odd sides or to 8, unless opposite sides are one: only then do strides map the
# pixel grid to itself under turns, and a strict network is invariant.
SIDE = 33
# Numbers of images for validation; the bundled digits are few.
VALIDATION, BUNDLED_VALIDATION = 1000, 200


@dataclass(frozen=True)
class Data:
    """The data of one seed."""

    train: Split
    # By which training ends and rates are chosen.
    validation: Split
    # What is tried once, at the end, and the part of it that is tried turned, too.
    test: Split
    copied: Split
    act: Callable[[Tensor, Element], Tensor] = turned


def split_off(known: Split, held_out: int, test: Split, copied: Split) -> Data:
    """Return data whose first images that are known are held out for validation."""
    images, targets = known
    return Data((images[held_out:], targets[held_out:]), (images[:held_out], targets[:held_out]), test, copied)


def draw(count: int, seed: int) -> tuple[Tensor, torch.Generator]:
    """Return a random order of so many images, and the generator that goes on."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randperm(count, generator=generator), generator


def mnist(root: Path | None, split: str) -> Split:
    """Return MNIST's digits of a split, or without a folder half of scikit-learn's, which are only good for a trial."""
    if root is None:
        small, labels = bundled_digits()
        half = slice(0, None, 2) if split == "train" else slice(1, None, 2)
        return functional.interpolate(255 * small[half], size=28, mode="bilinear"), labels[half]
    return mnist_digits(root, split)


def drawn_splits(
    split: Callable[[str, int], Split],
    images: int,
    tests: int,
    root: Path | None,
    copied: int = 1000,
    bundled: int = BUNDLED_VALIDATION,
) -> Data:
    """Return the data of a task of digits.

    Args:
        split: its name and a number → so many images and their classes, drawn with the seed.
        images: to train on.
        tests: number of test images.
        root: folder of the data; None for the bundled digits.
        copied: number of test images that are tried turned.
        bundled: number of the bundled digits that are held out, which are few.
    """
    held_out = bundled if root is None else VALIDATION
    known, test = split("train", held_out + images), split("test", tests)
    return split_off(known, held_out, test, (test[0][:copied], test[1][:copied]))
