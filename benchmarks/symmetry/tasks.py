"""The tasks: images with their classes for training, validation and test, and how a copy of an image is turned.

Images have an odd side that halves to odd sides or to 8: only then do strides map the pixel grid to itself under turns,
and a strict network is invariant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.symmetry.glyphs import SHAPES, TEST_FONTS, TRAINING_FONTS, draw_glyphs
from benchmarks.symmetry.networks import Frame
from benchmarks.symmetry.parts import draw_pairs, parts_turned
from benchmarks.symmetry.turns import Element, rotated, turned
from experiments.cifar_files import cifar_split
from experiments.digits import bundled_digits, mnist_digits

__all__ = ["TASKS", "Data", "Split", "Task", "draw", "mnist"]

# Images (n, channels, H, W) and classes (n,).
Split = tuple[Tensor, Tensor]
SIDE = 33
# Numbers of images for validation, and of digits to test; the bundled digits are few.
VALIDATION, BUNDLED_VALIDATION, TEST_DIGITS = 1000, 200, 4000
# Pose of digits → the largest angle in radians, and whether half of them are mirrored.
POSES = {
    "upright": (0.0, False),
    "within 60°": (math.pi / 3, False),
    "turned": (math.pi, False),
    "turned, mirrored": (math.pi, True),
}
CIFAR_POSES = ("upright", "turned")
SHIFT = 4  # pixels
PAIRS = 100


@dataclass(frozen=True)
class Data:
    """The images of one seed.

    Attributes:
        train: images to train on.
        validation: images by which training ends and rates are chosen.
        test: images that are tried once, at the end.
        copied: those test images that are tried turned, too.
        act: images and an element → the images turned.
    """

    train: Split
    validation: Split
    test: Split
    copied: Split
    act: Callable[[Tensor, Element], Tensor] = turned


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        load: pose, number of training images, seed and folder of the data → the data.
        frame: what networks look like.
        poses: group → the poses that are tried with it.
        trial: the largest numbers of rounds in the two stages of a trial of a rate.
        trial_images: number of training images of a trial.
        varied: a batch → the batch as it is varied in training, whatever the way.
        precision: that of the images in the convolutions while training.
    """

    load: Callable[[str, int, int, Path | None], Data]
    frame: Frame
    poses: dict[str, tuple[str, ...]]
    trial: tuple[int, int] = (8, 2)
    trial_images: int = 1000
    varied: Callable[[Tensor], Tensor] | None = None
    precision: torch.dtype = torch.float32


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


def load_digits(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return digits on 33×33 pixels; smaller training sets are parts of larger ones."""
    held_out = BUNDLED_VALIDATION if root is None else VALIDATION
    pixels, labels = _drawn_digits(mnist(root, "train"), pose, held_out + images, seed)
    test = _drawn_digits(mnist(root, "test"), pose, TEST_DIGITS, seed)
    return Data(
        (pixels[held_out:], labels[held_out:]),
        (pixels[:held_out], labels[:held_out]),
        test,
        (test[0][:1000], test[1][:1000]),
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
    (pixels, labels), test = (
        (_posed_photographs((some - mean) / deviation, pose, generator), classes) for some, classes, generator in splits
    )
    return Data(
        (pixels[VALIDATION:], labels[VALIDATION:]),
        (pixels[:VALIDATION], labels[:VALIDATION]),
        test,
        (test[0][:2000], test[1][:2000]),
    )


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


def load_glyphs(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return rendered letters; the pose is the number of shapes whose class is their pose, as in ``"2 of 4"``."""
    posed = int(pose[0])
    pixels, labels, _ = draw_glyphs(images + VALIDATION, posed, TRAINING_FONTS, 2 * seed)
    tested, classes, is_pose = draw_glyphs(2000, posed, TEST_FONTS, 2 * seed + 1)
    return Data(
        (pixels[VALIDATION:], labels[VALIDATION:]),
        (pixels[:VALIDATION], labels[:VALIDATION]),
        (tested, classes),
        (tested[~is_pose], classes[~is_pose]),
    )


_OF_ROTATIONS = tuple(pose for pose in POSES if pose != "turned, mirrored")
TASKS: dict[str, Task] = {
    "digits": Task(load_digits, Frame(10), {"C4": _OF_ROTATIONS, "C8": _OF_ROTATIONS, "D4": tuple(POSES)}),
    "cifar10": Task(
        load_cifar,
        Frame(10, 3, (7, 15, 30), is_residual=True),
        {"C4": CIFAR_POSES},
        trial=(5, 1),
        trial_images=3000,
        varied=varied_photographs,
        precision=torch.bfloat16,
    ),
    "ddmnist": Task(
        load_parts,
        Frame(PAIRS, widths=(6, 6, 6, 24), last_kernel=8),
        {"C4": ("parts C4", "parts D1", "parts D4"), "D4": ("parts C4", "parts D1", "parts D4")},
        trial=(3, 1),
        trial_images=10_000,
    ),
    "glyphs": Task(
        load_glyphs,
        Frame(2 * len(SHAPES)),
        {"C4": tuple(f"{posed} of {len(SHAPES)}" for posed in range(len(SHAPES) + 1))},
        trial_images=500,
    ),
}
