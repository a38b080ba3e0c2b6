"""One training loop for all benchmarks: a cosine schedule, random batches, an optional penalty."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.shared.tasks import Split

__all__ = ["accuracy", "count_steps", "fit"]

BATCH = 64
# Updates of the evidence begin with the third epoch, and see so many inputs.
FIRST_EPOCH, UPDATE = 2, 128


def count_steps(images: int, epochs: int) -> int:
    """Number of steps that :func:`fit` takes."""
    return epochs * (images // BATCH)


def fit(
    network: nn.Module,
    data: Split,
    optimiser: torch.optim.Optimizer,
    epochs: int,
    penalty: Callable[[], Tensor] | None = None,
    after_step: Callable[[], None] | None = None,
) -> list[float]:
    """Train a classifier; the mean cross-entropy of each epoch, without the penalty."""
    images, labels = data
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, count_steps(len(images), epochs))
    losses = []
    for _ in range(epochs):
        network.train()
        total = 0.0
        for batch in torch.randperm(len(images))[: len(images) // BATCH * BATCH].view(-1, BATCH):
            loss = functional.cross_entropy(network(images[batch]), labels[batch])
            total += loss.item()
            if penalty is not None:
                loss = loss + penalty()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            if after_step is not None:
                after_step()
        losses.append(total / (len(images) // BATCH))
    return losses


@torch.no_grad()
def accuracy(network: nn.Module, data: Split) -> float:
    """Percentage of images whose class is predicted, in eval mode."""
    network.eval()
    predictions = torch.cat([network(part).argmax(dim=1) for part in data[0].split(500)])
    return 100 * float((predictions == data[1]).float().mean())
