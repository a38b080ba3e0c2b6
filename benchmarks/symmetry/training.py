"""Training to a plateau by one rule for all ways, and what a trained network is measured by."""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.shared.pause import wait_while
from benchmarks.shared.training import FIRST_ROUND, Split, softness_of, take_steps, update
from benchmarks.shared.turns import Element
from benchmarks.symmetry.data import Data
from benchmarks.symmetry.ways import Way
from escnn_relaxed import SoftnessEvidence

EVALUATION_BATCH = 100
# The fewest steps of a round.
FEWEST_STEPS = 15


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the percentage of images whose class is predicted."""
    return 100 * (logits.argmax(1) == labels).double().mean().item()


@dataclass(frozen=True)
class Objective:
    """What training makes small, the likelihood of the evidence, and how a step is taken."""

    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
    # Prediction and target → a score in percent.
    score: Callable[[Tensor, Tensor], float] = accuracy
    likelihood: str = "categorical"
    batch: int = 64


@dataclass(frozen=True)
class Rule:
    """When a stage of training ends, and what the stages are."""

    # Of the learning rate, one for each stage.
    factors: tuple[float, ...] = (1.0, 0.1)
    # Rounds without a lower loss on validation after which a stage ends.
    patience: int = 4
    # The most rounds of each stage.
    rounds: tuple[int, ...] = (80, 20)


@dataclass
class Fit:
    """The course of one training: the lowest loss on validation, epochs until then and in all, process time."""

    evidence: SoftnessEvidence | None
    loss: float = math.inf
    best_epoch: float = 0.0
    epochs: float = 0.0
    seconds: float = 0.0
    # Of each round: seconds so far, loss and score on validation.
    history: list[tuple[float, float, float]] = field(default_factory=list)


def fit(
    network: nn.Module,
    way: Way,
    data: Data,
    rate: float,
    rule: Rule,
    objective: Objective,
    varied: Callable[[Split], Split],
    *,
    penalty: Callable[[], Tensor] | None = None,
    pause: Path | None = None,
) -> Fit:
    """Train with Adam, and leave the network with the weights of the lowest loss on validation.

    A round is an epoch, or as many epochs as have 15 steps. The rate is constant within a stage; each stage begins with
    the best weights so far and ends after ``rule.patience`` rounds without a lower loss. The evidence is updated after
    each round from the third on. The network sees batches as they are ``varied``. While the file ``pause`` exists, no
    round starts.
    """
    count, likelihood = len(data.train[0]), objective.likelihood
    evidence = SoftnessEvidence(network, count, likelihood=likelihood) if way.is_learned else None
    penalties = [] if penalty is None else [penalty]
    if evidence is not None and not way.is_decoupled:
        penalties.append(evidence.penalty)
    course, epochs = Fit(evidence), math.ceil(FEWEST_STEPS / max(count // objective.batch, 1))
    best = _weights(network)
    for factor, most in zip(rule.factors, rule.rounds, strict=True):
        network.train().load_state_dict(best)
        optimiser = torch.optim.Adam(network.parameters(), lr=rate * factor)
        decay = functools.partial(evidence.decay, rate * factor) if evidence is not None and way.is_decoupled else None
        without_gain = 0
        for _ in range(most):
            wait_while(pause)
            start = time.process_time()
            for _ in range(epochs):
                batches = _batches(data.train, objective.batch, varied)
                take_steps(network, batches, objective.loss, optimiser, penalties, decay)
            if evidence is not None and len(course.history) >= FIRST_ROUND:
                update(evidence, data.train)
            predicted, targets = outputs_of(network, data.validation[0]), data.validation[1]
            loss, score = objective.loss(predicted, targets).item(), objective.score(predicted, targets)
            course.epochs += epochs
            course.seconds += time.process_time() - start
            course.history.append((course.seconds, loss, score))
            without_gain += 1
            if loss < course.loss:
                course.loss, course.best_epoch, without_gain = loss, course.epochs, 0
                best = _weights(network)
            if without_gain == rule.patience:
                break
    network.train().load_state_dict(best)
    return course


def _weights(network: nn.Module) -> dict[str, Any]:
    """Return a copy of the weights, in training mode, in which escnn's layers have no buffers of filters."""
    return copy.deepcopy(network.train().state_dict())


def _batches(train: Split, size: int, varied: Callable[[Split], Split]) -> Iterator[Split]:
    """Yield all inputs once in a random order, but for the last few that fill no batch."""
    inputs, targets = train
    for batch in torch.randperm(len(inputs))[: max(len(inputs) // size, 1) * size].split(size):
        yield varied((inputs[batch], targets[batch]))


@torch.no_grad()
def outputs_of(network: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs of a network for inputs (n, …), in eval mode and float32."""
    network.eval()
    return torch.cat([network(part) for part in inputs.split(EVALUATION_BATCH)])


def scores(network: nn.Module, data: Data, elements: Sequence[Element]) -> dict[str, Any]:
    """Return the scores that protocol.md names; those of turned copies are of the images ``data.copied``."""
    logits, labels = outputs_of(network, data.test[0]), data.test[1]
    found = {"accuracy": accuracy(logits, labels), "loss": functional.cross_entropy(logits, labels).item()}
    if len(data.copied[0]):
        found |= _copies(network, data, elements)
    return found | softness_of(network)


def _copies(network: nn.Module, data: Data, elements: Sequence[Element]) -> dict[str, float]:
    """Return the scores of turned copies."""
    images, labels = data.copied
    logits = torch.stack([outputs_of(network, data.act(images, element)) for element in elements])
    accuracies = [accuracy(some, labels) for some in logits]
    predicted = logits.argmax(-1)
    return {
        "as is": accuracies[0],
        "turned": fmean(accuracies[1:]),
        "worst": min(accuracies[1:]),
        "agreement": 100 * (predicted[1:] == predicted[:1]).double().mean().item(),
        "averaged": accuracy(functional.softmax(logits, -1).mean(0), labels),
    }
