"""Batches of images that lie in memory, drawn alike whenever an epoch is run again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Batches", "Examples"]


@dataclass(frozen=True)
class Examples:
    """Images and their classes.

    Attributes:
        images: (n, channels, H, W), uint8.
        labels: (n,), int64.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Examples:
        """Return the same examples on a device."""
        return Examples(self.images.to(device), self.labels.to(device))

    def first(self, count: int | None) -> Examples:
        """The first examples, all for None."""
        return Examples(self.images[:count], self.labels[:count])


class Batches:
    """Images and labels in batches; each process of a distributed run has its part.

    The order of a training epoch depends on seed and epoch alone, not on what was drawn before: a run that goes on
    after its last checkpoint sees what it would have seen.

    Args:
        examples: what is drawn from.
        batch_size: images of a batch of one process.
        seed: of the order; None for that of the examples, without leaving any out.
        rank: number of the process.
        world_size: number of processes.

    Example:
        >>> examples = Examples(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.arange(5))
        >>> [labels.tolist() for _, labels in Batches(examples, 2)]
        [[0, 1], [2, 3], [4]]
    """

    # Lightning asks what has a sampler for this too, as it does a DataLoader.
    batch_sampler = None

    def __init__(
        self, examples: Examples, batch_size: int, seed: int | None = None, rank: int = 0, world_size: int = 1
    ) -> None:
        self._examples = examples
        self._batch_size = batch_size
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._epoch = 0

    @property
    def sampler(self) -> Batches:
        """The object that Lightning tells the epoch by :meth:`set_epoch`, as it does the sampler of a DataLoader."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for this epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        if self._seed is None:
            own = len(range(self._rank, len(self._examples), self._world_size))
            return -(-own // self._batch_size)
        # The last, smaller batch is left out of an epoch: batch norm wants batches alike.
        return len(self._examples) // self._world_size // self._batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        own = self._order()[self._rank :: self._world_size]
        for chosen in own.split(self._batch_size)[: len(self)]:
            yield self._examples.images[chosen], self._examples.labels[chosen]

    def _order(self) -> Tensor:
        count, device = len(self._examples), self._examples.labels.device
        if self._seed is None:
            return torch.arange(count, device=device)
        generator = torch.Generator().manual_seed(mixed_seed(self._seed, self._epoch))
        return torch.randperm(count, generator=generator).to(device)


def mixed_seed(*numbers: int) -> int:
    """One seed of several numbers, another for each.

    Example:
        >>> mixed_seed(1, 2) == mixed_seed(2, 1)
        False
    """
    return hash(numbers) % 2**63
