"""Training to a plateau: one rule for all ways, by the loss on images for validation."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.symmetry.tasks import Split
from escnn_relaxed import SoftnessEvidence

__all__ = ["Fit", "Rule", "fit", "logits_of", "loss_and_accuracy", "wait_while"]

BATCH, EVALUATION_BATCH = 64, 100
# The fewest steps of a round; the last round before the first update of the evidence, and the inputs of an update.
FEWEST_STEPS, FIRST_ROUND, UPDATE = 15, 2, 128
SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Rule:
    """When a stage of training ends, and what the stages are.

    Attributes:
        factors: of the learning rate, one for each stage.
        patience: rounds without a lower loss on validation after which a stage ends.
        rounds: the largest number of rounds of each stage.
    """

    factors: tuple[float, ...] = (1.0, 0.1)
    patience: int = 4
    rounds: tuple[int, ...] = (80, 20)


@dataclass
class Fit:
    """The course of one training.

    Attributes:
        loss: the lowest on validation.
        best_epoch: epochs of training data until then.
        epochs: epochs in all.
        seconds: process time of training and validation.
        history: of each round: seconds so far, loss and accuracy on validation.
        evidence: that of a way that learns its softness.
    """

    loss: float = math.inf
    best_epoch: float = 0.0
    epochs: float = 0.0
    seconds: float = 0.0
    history: list[tuple[float, float, float]] = field(default_factory=list)
    evidence: SoftnessEvidence | None = None


def fit(
    network: nn.Module,
    train: Split,
    validation: Split,
    rate: float,
    rule: Rule,
    *,
    varied: Callable[[Tensor], Tensor] | None = None,
    penalty: Callable[[], Tensor] | None = None,
    is_learned: bool = False,
    precision: torch.dtype = torch.float32,
    pause: Path | None = None,
) -> Fit:
    """Train a classifier with Adam, and leave it with the weights of the lowest loss on validation.

    A round is an epoch, or as many epochs as have 15 steps. The rate is constant within a stage; each stage begins with
    the best weights so far and ends after ``rule.patience`` rounds without a lower loss.

    Args:
        network: to be trained in place.
        train: images and classes.
        validation: other images and classes.
        rate: learning rate of the first stage.
        rule: of the stages.
        varied: a batch → the batch that the network sees.
        penalty: added to the loss.
        is_learned: whether the evidence adds its penalty, which is updated after each round from the third on.
        precision: of the convolutions while training.
        pause: while this file exists, no round starts.
    """
    course = Fit(evidence=SoftnessEvidence(network, len(train[0])) if is_learned else None)
    penalties = [term for term in (penalty, course.evidence and course.evidence.penalty) if term is not None]
    best, epochs = _state(network), math.ceil(FEWEST_STEPS / max(len(train[0]) // BATCH, 1))
    for factor, most in zip(rule.factors, rule.rounds, strict=True):
        _restore(network, best)
        optimiser = torch.optim.Adam(network.parameters(), lr=rate * factor)
        without_gain = 0
        for _ in range(most):
            wait_while(pause)
            start = time.process_time()
            for _ in range(epochs):
                _epoch(network, train, optimiser, varied, penalties, precision)
            if course.evidence is not None and len(course.history) >= FIRST_ROUND:
                course.evidence.update(train[0][torch.randperm(len(train[0]))[:UPDATE]])
            loss, accuracy = loss_and_accuracy(logits_of(network, validation[0]), validation[1])
            course.epochs += epochs
            course.seconds += time.process_time() - start
            course.history.append((course.seconds, loss, accuracy))
            without_gain += 1
            if loss < course.loss:
                course.loss, course.best_epoch, without_gain = loss, course.epochs, 0
                best = _state(network)
            if without_gain == rule.patience:
                break
    _restore(network, best)
    return course


def _state(network: nn.Module) -> dict[str, Any]:
    """Return a copy of the weights in training mode, in which the layers of escnn have no buffers of filters."""
    return copy.deepcopy(network.train().state_dict())


def _restore(network: nn.Module, state: dict[str, Any]) -> None:
    network.train().load_state_dict(state)


def _epoch(
    network: nn.Module,
    train: Split,
    optimiser: torch.optim.Optimizer,
    varied: Callable[[Tensor], Tensor] | None,
    penalties: list[Callable[[], Tensor]],
    precision: torch.dtype,
) -> None:
    """Train on all images once, but for the last few that fill no batch."""
    network.train()
    images, labels = train
    for batch in torch.randperm(len(images))[: max(len(images) // BATCH, 1) * BATCH].split(BATCH):
        inputs = images[batch] if varied is None else varied(images[batch])
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            logits = network(inputs)
        loss = functional.cross_entropy(logits.float(), labels[batch])
        for penalty in penalties:
            loss = loss + penalty()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def logits_of(network: nn.Module, images: Tensor) -> Tensor:
    """Return the logits of images (n, classes), in eval mode and float32."""
    network.eval()
    return torch.cat([network(part) for part in images.split(EVALUATION_BATCH)])


def loss_and_accuracy(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the mean cross-entropy, and the percentage of images whose class is predicted."""
    loss = functional.cross_entropy(logits, labels).item()
    return loss, 100 * (logits.argmax(1) == labels).double().mean().item()


def wait_while(pause: Path | None) -> None:
    """Sleep as long as the file is there."""
    while pause is not None and pause.exists():
        time.sleep(SECONDS_BETWEEN_LOOKS)
