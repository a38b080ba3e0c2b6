"""Training, validation and test images of each task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from .batches import Examples
from .cifar_files import DATA_SETS, cifar_split
from .configuration import Configuration
from .data_files import DataError
from .digits import both_ways_up, bundled_digits, half_turned, mnist_digits, only_sixes

__all__ = ["Task", "load_task"]

VALIDATION_SHARE = 0.1
# Splits and turns are those of the data set, the same for every row and every seed of a run.
SPLIT_SEED = 0
SMALLEST_SIDE = 28


@dataclass(frozen=True)
class Task:
    """The images to train on, to choose by and to test on; no image is in two splits.

    Attributes:
        classes: number of classes.
        flips: whether an image and its mirror image are of one class.
        train: what weights are fitted to.
        validation: a tenth of the training images of the data set, held out, to choose by.
        test: the data set's own, to report.
    """

    classes: int
    flips: bool
    train: Examples
    validation: Examples
    test: Examples


def load_task(configuration: Configuration, root: Path | None) -> Task:
    """The images of a configuration's task, as many as it asks for.

    Args:
        configuration: ``task``, ``images`` and ``evaluation_images`` count.
        root: folder of the data set's files, downloaded there where missing. ``digits`` come with scikit-learn.

    Raises:
        DataError: for files that are damaged, or missing and not to be had.
        ValueError: for more images than there are.
    """
    fitting, test, classes, flips = _LOADERS[configuration.task](configuration.task, root)
    order = torch.randperm(len(fitting), generator=_generator())
    held_out = round(VALIDATION_SHARE * len(fitting))
    validation, train = _chosen(fitting, order[:held_out]), _chosen(fitting, order[held_out:])
    test = _chosen(test, torch.randperm(len(test), generator=_generator()))
    if configuration.images is not None and configuration.images > len(train):
        raise ValueError(f"images must be at most {len(train)} with {configuration.task}, got {configuration.images}")
    train = train.first(configuration.images)
    validation, test = (part.first(configuration.evaluation_images) for part in (validation, test))
    if configuration.task == "mnist6-180":
        validation, test = (Examples(*both_ways_up(part.images)) for part in (validation, test))
        train = Examples(*half_turned(train.images, _generator()))
    return Task(classes, flips, train, validation, test)


# The result of a loader: images to fit to, images to test on, number of classes, whether flips keep the class.
_Loaded = tuple[Examples, Examples, int, bool]


def _load_cifar(name: str, root: Path | None) -> _Loaded:
    splits = [cifar_split(_needed(name, root), name, split) for split in ("train", "test")]
    train, test = (Examples(torch.from_numpy(pixels), torch.from_numpy(labels).long()) for pixels, labels in splits)
    return train, test, DATA_SETS[name].classes, True


def _load_sixes(name: str, root: Path | None) -> _Loaded:
    splits = []
    for split in ("train", "test"):
        sixes = only_sixes(mnist_digits(_needed(name, root), split))
        splits.append(Examples(sixes, torch.zeros(len(sixes), dtype=torch.long)))
    return splits[0], splits[1], 2, False


def _load_digits(name: str, root: Path | None) -> _Loaded:
    """scikit-learn's digits of 8×8 pixels, enlarged to 24×24 and padded; every third one is a test image."""
    small, labels = bundled_digits()
    border = (SMALLEST_SIDE - 24) // 2
    images = pad(interpolate(255 * small, size=24, mode="bilinear"), 4 * [border]).round().to(torch.uint8)
    is_test = torch.arange(len(labels)) % 3 == 0
    return Examples(images[~is_test], labels[~is_test]), Examples(images[is_test], labels[is_test]), 10, False


_LOADERS: dict[str, Callable[[str, Path | None], _Loaded]] = {
    "cifar10": _load_cifar,
    "cifar100": _load_cifar,
    "mnist6-180": _load_sixes,
    "digits": _load_digits,
}


def _needed(name: str, root: Path | None) -> Path:
    if root is None:
        raise DataError(f"the task {name!r} needs --data, the folder with its files or to download them into")
    return root


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(SPLIT_SEED)


def _chosen(examples: Examples, indices: Tensor) -> Examples:
    return Examples(examples.images[indices], examples.labels[indices])
