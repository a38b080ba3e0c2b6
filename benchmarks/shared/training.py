"""The training of all benchmarks: a step of an optimiser for each batch, and updates of the evidence between."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from escnn_relaxed import SoftnessEvidence
from escnn_relaxed.layer.relaxed_layer import RelaxedLayer

# Inputs and targets, for instance images (n, channels, H, W) and classes (n,).
Split = tuple[Tensor, Tensor]
# Epochs or rounds before the first update of the evidence, and the inputs of an update.
FIRST_ROUND, UPDATE = 2, 128


def take_steps(
    network: nn.Module,
    batches: Iterable[Split],
    loss: Callable[[Tensor, Tensor], Tensor],
    optimiser: torch.optim.Optimizer,
    penalties: Iterable[Callable[[], Tensor]] = (),
    after_step: Callable[[], object] | None = None,
) -> None:
    """Train on each batch once, by a loss and penalties."""
    network.train()
    for batch in batches:
        take_step(network, batch, loss, optimiser, penalties)
        if after_step is not None:
            after_step()


def take_step(
    network: nn.Module,
    batch: Split,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimiser: torch.optim.Optimizer,
    penalties: Iterable[Callable[[], Tensor]] = (),
) -> None:
    """Forward, backward and a step of the optimiser, in the mode that the network is in."""
    inputs, targets = batch
    value = loss(network(inputs), targets)
    for penalty in penalties:
        value = value + penalty()
    optimiser.zero_grad()
    value.backward()
    optimiser.step()


def update(evidence: SoftnessEvidence, split: Split) -> None:
    """Update the evidence on inputs that are drawn; that of a regression sees their targets, too."""
    drawn = torch.randperm(len(split[0]))[:UPDATE]
    evidence.update(split[0][drawn], split[1][drawn] if evidence.likelihood == "gaussian" else None)


def softness_of(network: nn.Module) -> dict[str, list[float]]:
    """Return the softness of each soft layer, nothing of a network that has none."""
    softness = [layer.softness().item() for layer in network.modules() if isinstance(layer, RelaxedLayer)]
    return {"softness": softness} if softness else {}


def parameters(network: nn.Module) -> int:
    """Return the number of weights that are trained."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
