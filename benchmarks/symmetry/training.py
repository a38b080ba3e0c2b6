"""Training to a plateau: one rule for all ways, by the loss on data for validation."""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.shared.training import FIRST_ROUND, UPDATE, Split, take_steps
from escnn_relaxed import SoftnessEvidence

EVALUATION_BATCH = 100
# The fewest steps of a round.
FEWEST_STEPS = 15
SECONDS_BETWEEN_LOOKS = 1.0


def loss_and_accuracy(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the mean cross-entropy, and the percentage of images whose class is predicted."""
    loss = functional.cross_entropy(logits, labels).item()
    return loss, 100 * (logits.argmax(1) == labels).double().mean().item()


@dataclass(frozen=True)
class Objective:
    """What training makes small, the likelihood of the evidence, and the number of inputs of a step."""

    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
    # Prediction and target → the loss on validation, and a score in percent.
    measure: Callable[[Tensor, Tensor], tuple[float, float]] = loss_and_accuracy
    likelihood: str = "categorical"
    batch: int = 64


CLASSES = Objective()


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

    loss: float = math.inf
    best_epoch: float = 0.0
    epochs: float = 0.0
    seconds: float = 0.0
    # Of each round: seconds so far, loss and score on validation.
    history: list[tuple[float, float, float]] = field(default_factory=list)
    evidence: SoftnessEvidence | None = None


def fit(
    network: nn.Module,
    train: Split,
    validation: Split,
    rate: float,
    rule: Rule,
    *,
    objective: Objective = CLASSES,
    varied: Callable[[Split], Split] | None = None,
    penalty: Callable[[], Tensor] | None = None,
    is_learned: bool = False,
    is_decoupled: bool = False,
    precision: torch.dtype = torch.float32,
    pause: Path | None = None,
) -> Fit:
    """Train with Adam, and leave the network with the weights of the lowest loss on validation.

    A round is an epoch, or as many epochs as have 15 steps. The rate is constant within a stage; each stage begins with
    the best weights so far and ends after ``rule.patience`` rounds without a lower loss.

    Args:
        network: to be trained in place.
        train: inputs and targets.
        validation: others.
        rate: learning rate of the first stage.
        rule: of the stages.
        objective: what is made small, and what is told of it.
        varied: a batch → the batch that the network sees.
        penalty: added to the loss.
        is_learned: whether the evidence adds its penalty, which is updated after each round from the third on.
        is_decoupled: whether soft weights decay beside the steps in place of that penalty.
        precision: of the convolutions while training.
        pause: while this file exists, no round starts.
    """
    count = len(train[0])
    course = Fit(evidence=SoftnessEvidence(network, count, likelihood=objective.likelihood) if is_learned else None)
    evidence = course.evidence
    penalties = [term for term in (penalty, None if is_decoupled else evidence and evidence.penalty) if term]
    best, epochs = _state(network), math.ceil(FEWEST_STEPS / max(count // objective.batch, 1))
    for factor, most in zip(rule.factors, rule.rounds, strict=True):
        _restore(network, best)
        optimiser = torch.optim.Adam(network.parameters(), lr=rate * factor)
        decay = functools.partial(evidence.decay, rate * factor) if evidence is not None and is_decoupled else None
        without_gain = 0
        for _ in range(most):
            wait_while(pause)
            start = time.process_time()
            for _ in range(epochs):
                batches = _batches(train, objective.batch, varied)
                take_steps(
                    network,
                    batches,
                    objective.loss,
                    optimiser,
                    penalties=penalties,
                    precision=precision,
                    after_step=decay,
                )
            if course.evidence is not None and len(course.history) >= FIRST_ROUND:
                _update(course.evidence, train, objective)
            loss, score = objective.measure(outputs_of(network, validation[0]), validation[1])
            course.epochs += epochs
            course.seconds += time.process_time() - start
            course.history.append((course.seconds, loss, score))
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


def _batches(train: Split, size: int, varied: Callable[[Split], Split] | None) -> Iterator[Split]:
    """Yield all inputs once in a random order, but for the last few that fill no batch."""
    inputs, targets = train
    for batch in torch.randperm(len(inputs))[: max(len(inputs) // size, 1) * size].split(size):
        pair = inputs[batch], targets[batch]
        yield pair if varied is None else varied(pair)


def _update(evidence: SoftnessEvidence, train: Split, objective: Objective) -> None:
    """Update the evidence on inputs that are drawn; that of a regression sees their targets, too."""
    drawn = torch.randperm(len(train[0]))[:UPDATE]
    targets = (train[1][drawn],) if objective.likelihood == "gaussian" else ()
    evidence.update(train[0][drawn], *targets)


@torch.no_grad()
def outputs_of(network: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs of a network for inputs (n, …), in eval mode and float32."""
    network.eval()
    return torch.cat([network(part) for part in inputs.split(EVALUATION_BATCH)])


def wait_while(pause: Path | None) -> None:
    """Sleep as long as the file is there."""
    while pause is not None and pause.exists():
        time.sleep(SECONDS_BETWEEN_LOOKS)
