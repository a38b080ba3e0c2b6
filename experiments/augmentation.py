"""Random flips and shifts of a batch, by kornia on the device of the batch, and its normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .batches import mixed_seed
from .requirements import require

if TYPE_CHECKING:
    from .tasks import Task

__all__ = ["Augmentation", "Normalization"]

SHIFT = 4  # pixels


class Augmentation:
    """A flip with probability ½, where mirror images are of the same class, and a crop after padding by 4 pixels.

    Args:
        side: H = W of the images, in pixels.
        flips: whether images are flipped.

    Raises:
        ModuleNotFoundError: where kornia is not installed.
    """

    def __init__(self, side: int, flips: bool) -> None:
        kornia = require("kornia.augmentation")
        crop = kornia.RandomCrop((side, side), padding=SHIFT)
        self._transform = nn.Sequential(*([kornia.RandomHorizontalFlip(p=0.5)] if flips else []), crop)

    def __call__(self, images: Tensor, *seeds: int) -> Tensor:
        """Augmented images, the same for the same seeds.

        Args:
            images: (batch, channels, side, side), floating-point.
            seeds: of the draw.

        Returns:
            As ``images``; what is shifted in is 0.
        """
        # kornia draws from torch's own generators: what else does so goes on as if nothing had been drawn.
        with torch.random.fork_rng(devices=[images.device] if images.is_cuda else []):
            torch.manual_seed(mixed_seed(*seeds))
            augmented: Tensor = self._transform(images)
        return augmented


class Normalization(nn.Module):
    """Channels of mean 0 and standard deviation 1 over a task's training images.

    Args:
        task: whose training images are measured.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, task: Task) -> None:
        super().__init__()
        pixels = task.train.images.double() / 255
        mean, deviation = pixels.mean(dim=(0, 2, 3)), pixels.std(dim=(0, 2, 3))
        self.register_buffer("mean", mean.float().view(1, -1, 1, 1))
        self.register_buffer("deviation", deviation.float().view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, H, W) with values in [0, 1] → the same shape."""
        return (images - self.mean) / self.deviation
