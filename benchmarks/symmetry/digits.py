"""Digits in poses of their own, sixes and sevens upside down, and digits in a quadrant of a torus."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.shared.training import Split
from benchmarks.symmetry.data import SIDE, Data, draw, drawn_splits, mnist
from benchmarks.symmetry.turns import rotated
from experiments.digits import turned

TEST_DIGITS = 4000
# Pose of digits → the largest angle in radians, and whether half of them are mirrored.
POSES = {
    "upright": (0.0, False),
    "within 60°": (math.pi / 3, False),
    "turned": (math.pi, False),
    "turned, mirrored": (math.pi, True),
}
# The side of a torus halves to 4, and so does a shift by half of it; a digit there has half its size.
TORUS, SMALL = 32, 14


def load_digits(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return digits on 33×33 pixels; smaller training sets are parts of larger ones."""
    return drawn_splits(
        lambda split, count: _drawn_digits(mnist(root, split), pose, count, seed), images, TEST_DIGITS, root
    )


def _drawn_digits(digits: Split, pose: str, count: int, seed: int) -> Split:
    """Return so many of some digits, each in a pose of its own; fewer digits are some of more."""
    pixels, labels = digits
    order, generator = draw(len(pixels), seed)
    chosen = order[:count]
    angles, is_mirrored = (values[:count] for values in _draw_poses(len(pixels), pose, generator))
    return _posed(pixels[chosen], angles, is_mirrored), labels[chosen]


def _draw_poses(count: int, pose: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return an angle of each image (n,), and whether it is mirrored (n,)."""
    largest, is_mirrored = POSES[pose]
    angles = (torch.rand(count, generator=generator) * 2 - 1) * largest
    if is_mirrored:
        return angles, torch.rand(count, generator=generator) < 1 / 2
    return angles, torch.zeros(count, dtype=torch.bool)


def _posed(pixels: Tensor, angles: Tensor, is_mirrored: Tensor) -> Tensor:
    """Return digits (n, 1, 28, 28) of up to 255 on a larger grid, mirrored or not, each turned by its angle."""
    before = (SIDE - pixels.shape[-1]) // 2
    images = functional.pad(pixels.float() / 255, (before, SIDE - pixels.shape[-1] - before) * 2)
    return rotated(torch.where(is_mirrored.view(-1, 1, 1, 1), images.flip(3), images), angles)


def load_sixes_and_sevens(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return sixes and sevens, half of them turned by 180°.

    The pose is the number of the two digits whose class is their pose, as in ``"1 of 2"``: ``"2 of 2"`` has four
    classes, the others three or two. Copies are turned of digits whose class is not their pose.
    """
    posed = int(pose[0])

    def split(name: str, count: int) -> Split:
        pixels, labels = mnist(root, name)
        members = torch.nonzero((labels == 6) | (labels == 7)).flatten()
        order, generator = draw(len(members), seed)
        chosen = members[order[:count]]
        is_turned = (torch.rand(len(members), generator=generator) < 1 / 2)[:count].long()
        images = _posed(pixels[chosen], torch.zeros(len(chosen)), torch.zeros(len(chosen), dtype=torch.bool))
        digit = labels[chosen].long() - 6
        return turned(images, is_turned), 2 * digit + is_turned * (digit < posed)

    # Half of the bundled digits has 180 sixes and sevens.
    data = drawn_splits(split, images, TEST_DIGITS, root, bundled=60)
    is_free = data.test[1] >= 2 * posed
    return Data(data.train, data.validation, data.test, (data.test[0][is_free][:1000], data.test[1][is_free][:1000]))


def load_quadrants(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return digits of half the size in a quadrant that is drawn, on a torus of 32×32 pixels.

    In the pose ``"quadrant"`` the class is the digit plus the number of the quadrant, modulo 10. No copies are moved
    there, since a shift changes the class. In ``"in a quadrant"`` it is the digit.
    """

    def split(name: str, count: int) -> Split:
        pixels, labels = mnist(root, name)
        order, generator = draw(len(pixels), seed)
        quadrants = torch.randint(4, (len(pixels),), generator=generator)[:count]
        chosen = order[:count]
        small = functional.interpolate(pixels[chosen].float() / 255, size=SMALL, mode="bilinear", antialias=True)
        moves = pose == "quadrant"
        return _in_quadrants(small, quadrants), (labels[chosen].long() + moves * quadrants) % 10

    return drawn_splits(split, images, TEST_DIGITS, root, copied=0 if pose == "quadrant" else 1000)


def _in_quadrants(small: Tensor, quadrants: Tensor) -> Tensor:
    """Return images (n, 1, 32, 32) with each small one in the middle of its quadrant."""
    result = torch.zeros(len(small), 1, TORUS, TORUS)
    for quadrant in range(4):
        top, left = (1 + TORUS // 2 * half for half in divmod(quadrant, 2))
        members = quadrants == quadrant
        result[members, :, top : top + SMALL, left : left + SMALL] = small[members]
    return result
