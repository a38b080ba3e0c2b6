"""Augmentation against flips and crops by hand; statistics against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import pad

from experiments.augmentation import SHIFT, Augmentation, Normalization
from experiments.configuration import Configuration
from experiments.tasks import load_task

pytest.importorskip("kornia")
SIDE = 8


def is_crop(image: torch.Tensor, result: torch.Tensor) -> bool:
    padded = pad(image, 4 * [SHIFT])
    return any(
        torch.equal(padded[:, row : row + SIDE, column : column + SIDE], result)
        for row in range(2 * SHIFT + 1)
        for column in range(2 * SHIFT + 1)
    )


@pytest.mark.parametrize("flips", [True, False])
def test_images_are_crops_of_themselves_or_their_mirror_images(flips: bool) -> None:
    images = torch.rand(40, 3, SIDE, SIDE)
    results = Augmentation(SIDE, flips)(images, 0)
    plain = [is_crop(image, result) for image, result in zip(images, results, strict=True)]
    mirrored = [is_crop(image.flip(2), result) for image, result in zip(images, results, strict=True)]
    assert all(a or b for a, b in zip(plain, mirrored, strict=True))
    assert any(mirrored) == flips
    assert any(plain)
    assert not torch.equal(results, images)


def test_the_same_seeds_give_the_same_and_leave_other_draws_alone() -> None:
    images = torch.rand(16, 1, SIDE, SIDE)
    augmentation = Augmentation(SIDE, True)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = augmentation(images, 1, 2)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(augmentation(images, 1, 2), first)
    assert not torch.equal(augmentation(images, 2, 1), first)


def test_training_images_are_normalised_by_their_own_statistics() -> None:
    task = load_task(Configuration(rotations=4, task="digits", images=100), None)
    pixels = task.train.images.numpy() / 255
    images = torch.from_numpy(pixels).float()
    expected = (pixels - np.mean(pixels)) / np.std(pixels, ddof=1)
    np.testing.assert_allclose(Normalization(task)(images).numpy(), expected, atol=1e-5)
