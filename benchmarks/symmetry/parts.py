"""Two digits side by side, each moved on its own: a symmetry of the parts, and not of the image."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.symmetry.turns import ELEMENTS, Element, randomly_moved, turned

__all__ = ["draw_pairs", "parts_turned"]

SIDE, DIGIT, TOP = 57, 28, 14
# The first column of each part. Between them, and below, is what makes the side odd.
COLUMNS = (0, 29)
CLASSES = 10


def draw_pairs(digits: tuple[Tensor, Tensor], count: int, group: str, seed: int) -> tuple[Tensor, Tensor]:
    """Return images (100·count, 1, 57, 57) and classes, so many images of each ordered pair of digits.

    Args:
        digits: images (n, 1, 28, 28) of up to 255 and their classes, drawn from with replacement.
        count: number of images of a pair.
        group: of the elements by which each part is moved.
        seed: of all that is drawn.
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
