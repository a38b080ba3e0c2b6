"""The elements of the groups, and images turned by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Element(NamedTuple):
    """A turn, counterclockwise, then a shift by half of the image's columns or none."""

    degrees: int
    is_shifted: bool = False


# Group → its elements, the identity first.
ELEMENTS: dict[str, tuple[Element, ...]] = {
    "C4": tuple(Element(90 * turn) for turn in range(4)),
    "C8": tuple(Element(45 * turn) for turn in range(8)),
    # Shifts to the side.
    "T1": (Element(0), Element(0, is_shifted=True)),
}


def rotated(images: Tensor, angles: Tensor, side: int | None = None) -> Tensor:
    """Return each image (n, channels, H, H) turned about its centre by its own angle in radians, counterclockwise.

    The result is interpolated, and has another side where asked, of pixels that are as large as before.
    """
    side = side or images.shape[-1]
    cosine, sine = (value * side / images.shape[-1] for value in (angles.cos(), angles.sin()))
    zero = torch.zeros_like(angles)
    rows = [torch.stack([cosine, -sine, zero], -1), torch.stack([sine, cosine, zero], -1)]
    grid = functional.affine_grid(torch.stack(rows, 1), [*images.shape[:2], side, side], align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def turned(images: Tensor, element: Element) -> Tensor:
    """Return images moved by an element: exact but for odd multiples of 45°, which are interpolated."""
    if element.is_shifted:
        return images.roll(images.shape[3] // 2, 3)
    if element.degrees % 90:
        return rotated(images, torch.full((len(images),), math.radians(element.degrees)))
    return images.rot90(element.degrees // 90, (2, 3))


def randomly_moved(
    images: Tensor, elements: Sequence[Element], act: Callable[[Tensor, Element], Tensor] = turned
) -> Tensor:
    """Return each image moved by an element of its own that is drawn."""
    chosen = torch.randint(len(elements), (len(images),))
    result = torch.empty_like(images)
    # Only elements that are drawn: interpolation refuses an empty batch.
    for number in chosen.unique().tolist():
        members, element = chosen == number, elements[number]
        result[members] = act(images[members], element)
    return result
