"""The data of one seed: digits, photographs and smoke.

Each seed draws its own training and validation data. The test data are the same for all seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.shared.flow import puffs_of_smoke
from benchmarks.shared.training import Split
from benchmarks.shared.turns import Element, rotated, turned
from experiments.cifar_files import cifar_split
from experiments.digits import bundled_digits, mnist_digits

# Sides of digits and photographs: strides map the grid to itself under quarter turns, so strict networks are invariant.
SIDE, DIGIT, PHOTOGRAPH = 25, 28, 33
# Pose of digits → the largest angle in radians.
POSES = {"upright": 0.0, "within 60°": math.pi / 3, "any angle": math.pi}
# Images by which the rule of early stopping ends, and images that are scored on validation.
STOP, VALIDATION = 1000, 2000
# The same of scikit-learn's digits, which take the place of MNIST's in a trial without a folder.
FEW_STOP, FEW_VALIDATION = 100, 200
# Test images that are also turned.
COPIED = 1000
# The task with a flag: digits whose class says there which way up they are, and the largest lean of those, in radians.
# The others, 0, 1 and 8, look much alike upside down.
TWO_WAYS_UP, LEAN = (2, 3, 4, 5, 6, 7, 9), math.pi / 6
FLAG_CLASSES = 10 + len(TWO_WAYS_UP)
# Puffs to draw from, then those of the test; of the first, for early stopping and for validation.
PUFFS, TEST_PUFFS, STOP_PUFFS, VALIDATION_PUFFS = 24, 12, 2, 4
# The largest shift of a photograph in training, in pixels.
SHIFT = 4


@dataclass(frozen=True)
class Data:
    """The data of one seed; ``scored`` is of validation or of the test, ``copied`` a part of it, to be turned."""

    train: Split
    stop: Split
    scored: Split
    copied: Split
    act: Callable[[Tensor, Element], Tensor] = turned
    # The size of a change of smoke, in units of the inputs.
    step: Tensor | None = None
    # Parts of the test that are scored apart.
    parts: Mapping[str, Split] = field(default_factory=dict)

    def to(self, device: torch.device) -> Data:
        """Return the same on a device."""

        def moved(split: Split) -> Split:
            return split[0].to(device), split[1].to(device)

        splits = {name: moved(getattr(self, name)) for name in ("train", "stop", "scored", "copied")}
        step = None if self.step is None else self.step.to(device)
        return replace(self, **splits, step=step, parts={name: moved(part) for name, part in self.parts.items()})


def _first(split: Split, count: int | None) -> Split:
    return split[0][:count], split[1][:count]


def _cut(split: Split, *sizes: int) -> list[Split]:
    """Return parts of so many inputs, one after another."""
    parts = [part[: sum(sizes)].split(list(sizes)) for part in split]
    return list(zip(*parts, strict=True))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + seed)


def mnist(root: Path | None, split: str) -> Split:
    """Return MNIST's digits of a split, or without a folder half of scikit-learn's, for a trial."""
    if root is None:
        small, labels = bundled_digits()
        half = slice(0, None, 2) if split == "train" else slice(1, None, 2)
        return functional.interpolate(255 * small[half], size=DIGIT, mode="bilinear"), labels[half]
    return mnist_digits(root, split)


def load_digits(pose: str, images: int, seed: int, root: Path | None, is_test: bool) -> Data:
    """Return digits on 25×25 pixels, each at an angle of its own; smaller training sets are parts of larger ones."""

    def posed(split: Split, generator: torch.Generator, count: int | None) -> Split:
        angles = (torch.rand(len(split[0]), generator=generator) * 2 - 1) * POSES[pose]
        return _turned_digits(split, angles, count)

    return _drawn_digits(posed, images, seed, root, is_test)


def load_flagged_digits(_: str, images: int, seed: int, root: Path | None, is_test: bool) -> Data:
    """Return digits with a flag, which is a second channel of 0 or 1. Turned are test images whose flag is 0."""
    data = _drawn_digits(_with_flags, images, seed, root, is_test)
    inputs, labels = data.scored
    flags = flags_of(inputs)
    parts = {f"flag {int(flag)}": (inputs[flags == flag], labels[flags == flag]) for flag in (False, True)}
    return replace(data, copied=_first(parts["flag 0"], COPIED), parts=parts)


def flags_of(inputs: Tensor) -> Tensor:
    """Return which images (n, 2, H, W) have the flag 1, read from the centre of the second channel."""
    side = inputs.shape[-1]
    return inputs[:, 1, side // 2, side // 2] > 0.5


def _with_flags(split: Split, generator: torch.Generator, count: int | None) -> Split:
    """Return digits at any angle, of class 0 to 9, where a flag that is drawn is 0.

    Where it is 1, half of them are upside down, all lean by up to 30°, and the class says also which way up they are.
    """
    flag, way_up, angle = torch.rand(3, len(split[0]), generator=generator)
    is_flagged, is_down, angle = flag < 0.5, way_up < 0.5, 2 * angle - 1
    angle = torch.where(is_flagged, LEAN * angle + math.pi * is_down, math.pi * angle)
    images, labels = _turned_digits(split, angle, count)
    upside_down = torch.arange(10)
    upside_down[list(TWO_WAYS_UP)] = torch.arange(10, FLAG_CLASSES)
    labels = torch.where((is_flagged & is_down)[:count], upside_down[labels], labels)
    channel = is_flagged[:count].float().view(-1, 1, 1, 1).expand_as(images)
    return torch.cat([images, channel], 1), labels


def _turned_digits(split: Split, angles: Tensor, count: int | None) -> Split:
    # A row and a column less make the side odd, so that an upright digit is exact.
    images = rotated(split[0][:count, :, 1:, 1:].float() / 255, angles[:count], SIDE)
    return images, split[1][:count].long()


def _drawn_digits(
    posed: Callable[[Split, torch.Generator, int | None], Split],
    images: int,
    seed: int,
    root: Path | None,
    is_test: bool,
) -> Data:
    """Return the data of a seed, given what puts the first so many digits in a pose."""
    stop, validation = (FEW_STOP, FEW_VALIDATION) if root is None else (STOP, VALIDATION)
    pixels, labels = mnist(root, "train")
    generator = _generator(seed)
    order = torch.randperm(len(pixels), generator=generator)
    drawn = posed((pixels[order], labels[order]), generator, stop + validation + images)
    of_stop, scored, train = _cut(drawn, stop, validation, images)
    if is_test:
        scored = posed(mnist(root, "test"), _generator(0), None)
    return Data(train, of_stop, scored, _first(scored, COPIED))


def load_photographs(pose: str, images: int, seed: int, root: Path | None, is_test: bool) -> Data:
    """Return CIFAR-10 on 33×33 pixels, upright."""
    if root is None:
        raise ValueError("the task 'cifar10' needs --data, the folder with its files")

    def split(name: str) -> Split:
        pixels, labels = cifar_split(root, "cifar10", name)
        return torch.from_numpy(pixels), torch.from_numpy(labels).long()

    pixels, labels = split("train")
    order = torch.randperm(len(pixels), generator=_generator(seed))[: STOP + VALIDATION + images]
    stop, scored, train = _cut((pixels[order].float(), labels[order]), STOP, VALIDATION, images)
    if is_test:
        pixels, labels = split("test")
        scored = pixels.float(), labels
    deviation, mean = torch.std_mean(train[0], dim=(0, 2, 3), keepdim=True)
    parts = [
        (functional.pad((images - mean) / deviation, (0, PHOTOGRAPH - images.shape[-1]) * 2), found)
        for images, found in (train, stop, scored)
    ]
    return Data(*parts, _first(parts[2], COPIED))


def varied(images: Tensor) -> Tensor:
    """Return each photograph flipped with probability ½, and shifted by up to 4 pixels; 0 comes in."""
    flips = torch.rand(len(images)) < 0.5
    images = torch.where(flips.view(-1, 1, 1, 1), images.flip(3), images)
    padded = functional.pad(images, (SHIFT,) * 4)
    rows, columns = (torch.randint(2 * SHIFT + 1, (len(images), 1)) + torch.arange(images.shape[-1]) for _ in range(2))
    members = torch.arange(len(images)).view(-1, 1, 1)
    return padded[members, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def load_smoke(symmetry: str, pose: str, images: int, seed: int, root: Path | None, is_test: bool) -> Data:
    """Return states of smoke and their changes to the next frame, of so many puffs.

    States and changes are in units of their root mean square over the training films. Films are kept in ``smoke`` below
    the folder of the data.
    """
    level = int(pose.removeprefix("level "))
    films = puffs_of_smoke(symmetry, level, (root or Path("data")) / "smoke", PUFFS + TEST_PUFFS)
    order = torch.randperm(PUFFS, generator=_generator(seed))
    sizes = [STOP_PUFFS, VALIDATION_PUFFS, images]
    stop, scored, train = films[order[: sum(sizes)]].split(sizes)
    if is_test:
        scored = films[PUFFS:]
    scale = _root_mean_squares(train)
    step = _root_mean_squares(train.diff(dim=2)) / scale
    parts = [_pairs(part / scale, step) for part in (train, stop, scored)]
    return Data(*parts, parts[2], turned if symmetry == "translation" else fields_turned, step)


def _root_mean_squares(films: Tensor) -> Tensor:
    """Return the root mean square of velocity, twice, and of smoke, (3, 1, 1)."""
    squares = films.square().mean(dim=(-1, -2)).flatten(0, -2).mean(dim=0)
    velocity, smoke = squares[:2].mean(), squares[2]
    return squares.new_tensor([velocity, velocity, smoke]).sqrt()[:, None, None]


def _pairs(films: Tensor, step: Tensor) -> Split:
    """Return all states (n, 3, H, W) that have a next one, and their changes in units of a step."""
    now, later = films[:, :, :-1].flatten(0, 2), films[:, :, 1:].flatten(0, 2)
    return now, (later - now) / step


def fields_turned(fields: Tensor, element: Element) -> Tensor:
    """Return fields (n, channels, H, W) of velocity and smoke, one or more of each, turned by quarter turns."""
    moved = turned(fields, element).unflatten(1, (-1, 3))
    for _ in range(element.degrees // 90):
        right, up, smoke = moved.unbind(2)
        moved = torch.stack([-up, right, smoke], 2)
    return moved.flatten(1, 2)
