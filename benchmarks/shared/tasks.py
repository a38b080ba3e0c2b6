"""The tasks of the benchmarks of accuracy: digits under different amounts of symmetry, and CIFAR-10.

Images have an odd side that halves to odd sides (33, 17, 9, 5): only then do strides map the pixel grid to itself
under turns, and a strict network is invariant. On 29 × 29 pixels the third pooling is not, and a "strict" network
learns which way is up.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from experiments.cifar_files import cifar_split
from experiments.digits import bundled_digits, mnist_digits, only_sixes, turned

__all__ = ["SIDE", "TASKS", "Split", "image_task"]

Split = tuple[Tensor, Tensor]
SIDE = 33
# Largest angle in radians by which the digits of a task are turned.
MIRRORED = "turned, half of them mirrored"
ANGLES = {"upright": 0.0, "within 60°": math.pi / 3, "turned": math.pi, MIRRORED: math.pi}
QUADRANT_TASKS = ("quadrant", "in a quadrant")
ON_TORUS = "anywhere on the torus"
SIXES = "MNIST6-180"
TASKS = (*ANGLES, *QUADRANT_TASKS, ON_TORUS, SIXES, "CIFAR-10")
TEST_IMAGES = 4000


def image_task(name: str, images: int, seed: int, root: Path | None) -> tuple[Split, Split]:
    """Training and test split: images (n, channels, 33, 33) and classes (n,).

    Digits are MNIST's own splits, or without ``root`` scikit-learn's bundled ones, which are few and only good for a
    trial. Each is turned by its own random angle, up to the task's.

    ``"quadrant"`` instead puts each digit, halved in size, into a random quadrant, and the class is the digit
    plus the number of the quadrant modulo 10: position matters. ``"in a quadrant"`` asks for the digit alone.
    ``"anywhere on the torus"`` shifts each by any number of pixels; what leaves the image comes in on the other side.
    ``"MNIST6-180"`` has the sixes alone, half of them turned by 180°, and asks which: an invariant network cannot tell.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    splits = []
    for split, count in (("train", images), ("test", min(TEST_IMAGES, 4 * images))):
        pixels, labels = _pixels(name, split, root)
        if name == SIXES:
            pixels, labels = only_sixes((pixels, labels)), labels[labels == 6]
        chosen = torch.randperm(len(pixels), generator=generator)[:count]
        splits.append(_posed(name, pixels[chosen].float() / 255, labels[chosen].long(), generator))
    return splits[0], splits[1]


def _pixels(name: str, split: str, root: Path | None) -> Split:
    """All images (n, channels, H, W), values up to 255, and their labels."""
    if name == "CIFAR-10" and root is None:
        raise ValueError("the task 'CIFAR-10' needs --data, the folder with its files")
    if root is None:
        small, labels = bundled_digits()
        half = slice(0, None, 2) if split == "train" else slice(1, None, 2)
        return functional.interpolate(255 * small[half].double(), size=28, mode="bilinear"), labels[half]
    if name == "CIFAR-10":
        pixels, labels = cifar_split(root, "cifar10", split)
        return torch.from_numpy(pixels), torch.from_numpy(labels)
    return mnist_digits(root, split)


def _posed(name: str, images: Tensor, labels: Tensor, generator: torch.Generator) -> Split:
    before = (SIDE - images.shape[-1]) // 2
    images = functional.pad(images, (before, SIDE - images.shape[-1] - before) * 2)
    if name in ANGLES:
        angles = (torch.rand(len(images), generator=generator) * 2 - 1) * ANGLES[name]
        if name == MIRRORED:
            is_mirrored = torch.rand(len(images), generator=generator) < 1 / 2
            images = torch.where(is_mirrored.view(-1, 1, 1, 1), images.flip(3), images)
        return _turned(images, angles), labels
    if name == ON_TORUS:
        shifts = torch.randint(SIDE, (len(images), 2), generator=generator).tolist()
        return torch.stack([image.roll(by, (1, 2)) for image, by in zip(images, shifts, strict=True)]), labels
    if name in QUADRANT_TASKS:
        quadrants = torch.randint(4, (len(images),), generator=generator)
        return _in_quadrants(images, quadrants), (labels + quadrants) % 10 if name == "quadrant" else labels
    if name == SIXES:
        is_turned = torch.arange(len(images)) % 2
        return turned(images, is_turned), is_turned
    return images - images.mean(dim=(0, 2, 3), keepdim=True), labels


def _turned(images: Tensor, angles: Tensor) -> Tensor:
    cosine, sine, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    rows = [torch.stack([cosine, -sine, zero], -1), torch.stack([sine, cosine, zero], -1)]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def _in_quadrants(images: Tensor, quadrants: Tensor) -> Tensor:
    small = functional.interpolate(images, size=14, mode="bilinear", antialias=True)
    result = torch.zeros_like(images)
    for quadrant in range(4):
        top, left = (1 + 17 * half for half in divmod(quadrant, 2))
        members = quadrants == quadrant
        result[members, :, top : top + 14, left : left + 14] = small[members]
    return result
