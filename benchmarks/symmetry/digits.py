"""MNIST's digits: in poses of their own, sixes and sevens upside down, in a quadrant of a torus, and pairs of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.shared.training import Split
from benchmarks.shared.turns import ELEMENTS, Element, randomly_moved, rotated, turned
from benchmarks.symmetry.data import SIDE, VALIDATION, Data, draw, first, split_off
from experiments.digits import bundled_digits, mnist_digits
from experiments.digits import turned as half_turned

CLASSES, DIGIT = 10, 28
TEST_DIGITS, COPIED = 4000, 1000
# Pose of digits → the largest angle in radians, and the share of them that is mirrored.
POSES = {
    "upright": (0.0, 0.0),
    "within 60°": (math.pi / 3, 0.0),
    "turned": (math.pi, 0.0),
    "turned, mirrored": (math.pi, 0.5),
}
# The side of a torus halves to 4, and so does a shift by half of it; a digit there has half its size.
TORUS, SMALL = 32, 14
# The side of an image of two digits, odd by a row and a column of zeros; the first row, the first column of each digit.
PAIR_SIDE, TOP, COLUMNS = 57, 14, (0, 29)
PAIRS = CLASSES**2


def mnist(root: Path | None, split: str) -> Split:
    """Return MNIST's digits of a split, or without a folder half of scikit-learn's, which are only good for a trial."""
    if root is None:
        small, labels = bundled_digits()
        half = slice(0, None, 2) if split == "train" else slice(1, None, 2)
        return functional.interpolate(255 * small[half], size=DIGIT, mode="bilinear"), labels[half]
    return mnist_digits(root, split)


def _drawn(split: Callable[[str, int], Split], images: int, root: Path | None, bundled: int = 200) -> Data:
    """Return the data of what draws so many images of a split; of the bundled digits, which are few, validate fewer."""
    held_out = bundled if root is None else VALIDATION
    known, test = split("train", held_out + images), split("test", TEST_DIGITS)
    return split_off(known, held_out, test, first(test, COPIED))


def load_digits(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return digits on 33×33 pixels, each in a pose of its own; smaller training sets are parts of larger ones."""
    largest, share = POSES[pose]

    def split(name: str, count: int) -> Split:
        pixels, labels = mnist(root, name)
        order, generator = draw(len(pixels), seed)
        angles = (torch.rand(len(pixels), generator=generator) * 2 - 1) * largest
        is_mirrored = torch.rand(len(pixels), generator=generator) < share
        chosen = order[:count]
        return _posed(pixels[chosen], angles[:count], is_mirrored[:count]), labels[chosen]

    return _drawn(split, images, root)


def _posed(pixels: Tensor, angles: Tensor, is_mirrored: Tensor) -> Tensor:
    """Return digits (n, 1, 28, 28) of up to 255 on a larger grid, mirrored or not, each turned by its angle."""
    before = (SIDE - DIGIT) // 2
    images = functional.pad(pixels.float() / 255, (before, SIDE - DIGIT - before) * 2)
    return rotated(torch.where(is_mirrored.view(-1, 1, 1, 1), images.flip(3), images), angles)


def load_sixes_and_sevens(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return sixes and sevens, half of them upside down, which in ``"1 of 2"`` makes two classes of one of the two."""
    posed = int(pose[0])

    def split(name: str, count: int) -> Split:
        pixels, labels = mnist(root, name)
        members = torch.nonzero((labels == 6) | (labels == 7)).flatten()
        order, generator = draw(len(members), seed)
        chosen = members[order[:count]]
        is_turned = (torch.rand(len(members), generator=generator) < 1 / 2)[:count].long()
        nothing = torch.zeros(len(chosen))
        digit = labels[chosen].long() - 6
        classes = 2 * digit + is_turned * (digit < posed)
        return half_turned(_posed(pixels[chosen], nothing, nothing.bool()), is_turned), classes

    # Half of the bundled digits has 180 sixes and sevens.
    data = _drawn(split, images, root, bundled=60)
    is_free = data.test[1] >= 2 * posed
    return replace(data, copied=first((data.test[0][is_free], data.test[1][is_free]), COPIED))


def load_quadrants(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return digits of half the size in a quadrant of a torus; the pose ``"quadrant"`` adds its number to the class."""
    is_place = pose == "quadrant"

    def split(name: str, count: int) -> Split:
        pixels, labels = mnist(root, name)
        order, generator = draw(len(pixels), seed)
        quadrants = torch.randint(4, (len(pixels),), generator=generator)[:count]
        chosen = order[:count]
        small = functional.interpolate(pixels[chosen].float() / 255, size=SMALL, mode="bilinear", antialias=True)
        # Two rows and two columns of quadrants, in the middle of one of which is the digit.
        half = TORUS // 2
        torus = torch.zeros(len(small), 1, 2, half, 2, half)
        torus[torch.arange(len(small)), :, quadrants // 2, :, quadrants % 2] = functional.pad(small, (1, 1, 1, 1))
        return torus.view(-1, 1, TORUS, TORUS), (labels[chosen].long() + is_place * quadrants) % CLASSES

    data = _drawn(split, images, root)
    return replace(data, copied=first(data.copied, 0)) if is_place else data


def load_pairs(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return two digits side by side, each moved by an element of the group that the pose names."""
    group = pose.removeprefix("parts ")
    pixels, labels = mnist(root, "train")
    order, _ = draw(len(pixels), seed)
    of_validation, of_training = order[: len(order) // 6], order[len(order) // 6 :]
    validation = _draw_pairs((pixels[of_validation], labels[of_validation]), VALIDATION, group, seed)
    train = _draw_pairs((pixels[of_training], labels[of_training]), images, group, seed)
    test = _draw_pairs(mnist(root, "test"), min(images, 10_000), group, seed)
    return Data(train, validation, test, first(test, 2000), both_turned)


def _draw_pairs(digits: Split, count: int, group: str, seed: int) -> Split:
    """Return images (n, 1, 57, 57) and classes, as many images of each ordered pair of digits.

    Digits are drawn with replacement. Each is moved by an element of the group of its own.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    pixels, labels = digits
    by_class, sizes = labels.argsort(stable=True), labels.bincount(minlength=CLASSES)
    pairs = torch.cartesian_prod(torch.arange(CLASSES), torch.arange(CLASSES)).repeat(count // PAIRS, 1)
    images = torch.zeros(len(pairs), 1, PAIR_SIDE, PAIR_SIDE)
    for digit, column in zip(pairs.T, COLUMNS, strict=True):
        places = torch.rand(len(pairs), generator=generator).double() * sizes[digit]
        chosen = by_class[(sizes.cumsum(0) - sizes)[digit] + places.long()]
        moved = randomly_moved(pixels[chosen].float() / 255, ELEMENTS[group], generator=generator)
        images[:, :, TOP : TOP + DIGIT, column : column + DIGIT] = moved
    return images, CLASSES * pairs[:, 0] + pairs[:, 1]


def both_turned(images: Tensor, element: Element) -> Tensor:
    """Return images both of whose digits are moved by an element, each about its own centre."""
    result = images.clone()
    for column in COLUMNS:
        part = (..., slice(TOP, TOP + DIGIT), slice(column, column + DIGIT))
        result[part] = turned(images[part], element)
    return result
