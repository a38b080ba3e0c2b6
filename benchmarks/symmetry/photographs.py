"""Photographs: CIFAR-10, and faces beside other things."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.symmetry.data import SIDE, VALIDATION, Data, draw, first, split_off
from benchmarks.symmetry.turns import ELEMENTS, randomly_moved, rotated
from experiments.cifar_files import cifar_split

SHIFT = 4  # pixels
# Of 200 images of scikit-image, 100 of which are faces; the rest is for the test.
FACES_OF_VALIDATION = 40


def load_cifar(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return CIFAR-10 on 33×33 pixels, upright as it is, or turned and cut to the disk."""
    if root is None:
        raise ValueError("the task 'cifar10' needs --data, the folder with its files")
    splits = []
    for split, most in (("train", images + VALIDATION), ("test", None)):
        pixels, labels = (torch.from_numpy(array) for array in cifar_split(root, "cifar10", split))
        order, generator = draw(len(pixels), seed)
        splits.append((pixels[order[:most]].float(), labels[order[:most]].long(), generator))
    deviation, mean = torch.std_mean(splits[0][0][VALIDATION:], dim=(0, 2, 3), keepdim=True)
    known, test = (
        (_posed_photographs((some - mean) / deviation, pose, generator), classes) for some, classes, generator in splits
    )
    return split_off(known, VALIDATION, test, first(test, 2000))


def _posed_photographs(images: Tensor, pose: str, generator: torch.Generator) -> Tensor:
    """Return images (n, 3, 33, 33) of (n, 3, 32, 32): with a row and a column of 0, or turned within the disk."""
    if pose == "upright":
        return functional.pad(images, (0, 1, 0, 1))
    angles = (torch.rand(len(images), generator=generator) * 2 - 1) * math.pi
    row = torch.arange(SIDE) - SIDE // 2
    disk = row[:, None] ** 2 + row**2 <= (images.shape[-1] / 2) ** 2
    return rotated(images, angles, SIDE) * disk


def varied_photographs(images: Tensor) -> Tensor:
    """Return each image flipped with probability ½, and shifted by up to 4 pixels; 0 comes in."""
    flips = torch.rand(len(images)) < 0.5
    images = torch.where(flips.view(-1, 1, 1, 1), images.flip(3), images)
    padded = functional.pad(images, (SHIFT,) * 4)
    rows, columns = (torch.randint(2 * SHIFT + 1, (len(images), 1)) + torch.arange(images.shape[-1]) for _ in range(2))
    members = torch.arange(len(images)).view(-1, 1, 1)
    return padded[members, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def load_faces(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return images of 25×25 pixels that are faces or not, from scikit-image; as they are, or moved by elements of D2.

    There are 200 images, so that each seed draws other ones for training, validation and test.
    """
    from skimage import data

    pixels = torch.from_numpy(data.lfw_subset()).float().unsqueeze(1)
    classes = (torch.arange(len(pixels)) < len(pixels) // 2).long()
    order, generator = draw(len(pixels), seed)
    pixels, classes = pixels[order] - pixels.mean(), classes[order]
    if pose == "moved by D2":
        pixels = randomly_moved(pixels, ELEMENTS["D2"], generator=generator)
    few = FACES_OF_VALIDATION + images
    test = pixels[few:], classes[few:]
    return split_off(first((pixels, classes), few), FACES_OF_VALIDATION, test, test)
