"""Two digits side by side, each moved on its own: a symmetry of the parts, and not of the image."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.symmetry.data import VALIDATION, Data, draw, mnist
from benchmarks.symmetry.turns import ELEMENTS, Element, randomly_moved, turned

SIDE, DIGIT, TOP = 57, 28, 14
# The first column of each part. Between them, and below, is what makes the side odd.
COLUMNS = (0, 29)
CLASSES = 10
PAIRS = CLASSES**2


def draw_pairs(digits: tuple[Tensor, Tensor], count: int, group: str, seed: int) -> tuple[Tensor, Tensor]:
    """Return images (100·count, 1, 57, 57) and classes, so many images of each ordered pair of digits.

    Digits are images (n, 1, 28, 28) of up to 255 and their classes, drawn with replacement. Each is moved by an element
    of the group of its own.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    pixels, labels = digits
    members = [torch.nonzero(labels == digit).flatten() for digit in range(CLASSES)]
    pairs = torch.cartesian_prod(torch.arange(CLASSES), torch.arange(CLASSES)).repeat(count, 1)
    images = torch.zeros(len(pairs), 1, SIDE, SIDE)
    for part, column in enumerate(COLUMNS):
        places = torch.rand(len(pairs), generator=generator)
        chosen = torch.stack(
            [
                members[digit][int(place * len(members[digit]))]
                for digit, place in zip(pairs[:, part].tolist(), places.tolist(), strict=True)
            ]
        )
        moved = randomly_moved(pixels[chosen].float() / 255, ELEMENTS[group], generator=generator)
        images[:, :, TOP : TOP + DIGIT, column : column + DIGIT] = moved
    return images, CLASSES * pairs[:, 0] + pairs[:, 1]


def parts_turned(images: Tensor, element: Element) -> Tensor:
    """Return images both of whose parts are moved by an element, each about its own centre."""
    result = images.clone()
    for column in COLUMNS:
        part = (..., slice(TOP, TOP + DIGIT), slice(column, column + DIGIT))
        result[part] = turned(images[part], element)
    return result


def load_parts(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return pairs of digits, each part moved by an element of the group that the pose names."""
    group = pose.removeprefix("parts ")
    pixels, labels = mnist(root, "train")
    order, _ = draw(len(pixels), seed)
    held_out = order[: len(order) // 6], order[len(order) // 6 :]
    validation, train = (
        draw_pairs((pixels[members], labels[members]), count // PAIRS, group, seed)
        for members, count in zip(held_out, (VALIDATION, images), strict=True)
    )
    test = draw_pairs(mnist(root, "test"), min(images, 10_000) // PAIRS, group, seed)
    return Data(train, validation, test, (test[0][:2000], test[1][:2000]), parts_turned)
