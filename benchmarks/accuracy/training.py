"""Training of a length that is fixed before, its rivals in the study of variance, and scores."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.accuracy.data import Data
from benchmarks.accuracy.layers import AnnealedR2Conv
from benchmarks.accuracy.networks import Canonical, WithFlag
from benchmarks.accuracy.ways import Way
from benchmarks.shared.training import FIRST_ROUND, Split, update
from benchmarks.shared.turns import ELEMENTS, randomly_moved
from escnn_relaxed import SoftnessEvidence

EVALUATION_BATCH = 100
# The fewest steps of a round, after which the evidence is updated.
FEWEST_STEPS = 15
# The gate of annealed layers falls from 1 to 0 in this part of the steps, and stays 0.
ANNEALED_UNTIL = 0.75
# Averaged weights remember about so large a part of the training.
AVERAGED_OVER = 0.1
# The rule of early stopping: rates in units of the first, the most rounds at each, rounds without a gain that end it.
STAGES, PATIENCE = ((1.0, 80), (0.1, 20)), 4


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return 100 * (logits.argmax(1) == labels).double().mean().item()


@dataclass(frozen=True)
class Objective:
    """What training makes small, and the likelihood of the evidence."""

    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
    likelihood: str = "categorical"
    batch: int = 64


CLASSES, CHANGES = Objective(), Objective(functional.mse_loss, "gaussian", 8)


class Trainer:
    """A network in training: batches, steps and rounds."""

    def __init__(
        self,
        network: nn.Module,
        way: Way,
        data: Data,
        objective: Objective,
        group: str,
        rate: float,
        penalty: float = 0.0,
        varied: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.network, self.data, self.objective, self.rate = network, data, objective, rate
        self._way, self._group, self._penalty, self._varied = way, group, penalty, varied
        self._optimiser = torch.optim.Adam(network.parameters(), lr=rate)
        count = len(data.train[0])
        self.evidence = SoftnessEvidence(network, count, likelihood=objective.likelihood) if way.has_evidence else None
        epoch = max(count // objective.batch, 1)
        self.round_steps = epoch * math.ceil(FEWEST_STEPS / epoch)
        self._steps, self._batches = 0, self._drawn()

    def _drawn(self) -> Iterator[Split]:
        """Yield batches for ever; the last few inputs of an epoch that fill no batch are left out."""
        inputs, targets = self.data.train
        size = self.objective.batch
        while True:
            for batch in torch.randperm(len(inputs))[: max(len(inputs) // size, 1) * size].split(size):
                yield self._moved(
                    inputs[batch] if self._varied is None else self._varied(inputs[batch]), targets[batch]
                )

    def _moved(self, inputs: Tensor, targets: Tensor) -> Split:
        elements, act = ELEMENTS[self._group], self.data.act
        if not self._way.is_turned:
            return inputs, targets
        if targets.dim() == 1:
            return randomly_moved(inputs, elements, act), targets
        # Fields turn with the inputs.
        moved = randomly_moved(torch.cat([inputs, targets], 1), elements, act)
        return moved[:, : inputs.shape[1]], moved[:, inputs.shape[1] :]

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if not self._penalty:
            loss = self.objective.loss(self.network(inputs), targets)
            return loss + self.network.pose_loss() if isinstance(self.network, Canonical) else loss
        moved = randomly_moved(inputs, ELEMENTS[self._group][1:], self.data.act)
        outputs, of_moved = self.network(torch.cat([inputs, moved])).chunk(2)
        return self.objective.loss(outputs, targets) + self._penalty * functional.mse_loss(of_moved, outputs)

    def step(self, factor: float, gate: float = 0.0) -> None:
        """Take a step at a rate in units of the first one."""
        self.network.train()
        self._optimiser.param_groups[0]["lr"] = self.rate * factor
        for layer in self.network.modules():
            if isinstance(layer, AnnealedR2Conv):
                layer.gate = gate
        loss = self._loss(*next(self._batches))
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        self._steps += 1
        if self.evidence is not None:
            self.evidence.decay(self._optimiser)
            if self._steps % self.round_steps == 0 and self._steps > FIRST_ROUND * self.round_steps:
                update(self.evidence, self.data.train)

    def restart(self) -> None:
        """Forget what the optimiser has averaged."""
        self._optimiser = torch.optim.Adam(self.network.parameters(), lr=self.rate)


def train(trainer: Trainer, steps: int, keep: Callable[[float], object] = lambda part: None) -> float:
    """Train for so many steps, the rate falling to 0 along half a cosine; return the process time in seconds.

    ``keep`` is called after each step with the part of the training that is over.
    """
    start = time.process_time()
    for step in range(steps):
        part = step / steps
        trainer.step((1 + math.cos(math.pi * part)) / 2, max(1 - part / ANNEALED_UNTIL, 0.0))
        keep((step + 1) / steps)
    return time.process_time() - start


def train_with_average(trainer: Trainer, steps: int) -> tuple[dict[str, Tensor], float]:
    """The same, and return an exponential average of the state beside."""
    state, weight = _state(trainer.network), 1 / (AVERAGED_OVER * steps)
    average = {name: value.clone() for name, value in state.items()}

    def keep(_: float) -> None:
        for name, value in _state(trainer.network).items():
            if value.is_floating_point():
                average[name].lerp_(value, weight)

    return average, train(trainer, steps, keep)


def train_to_plateau(trainer: Trainer) -> tuple[float, int]:
    """Train until the loss on the data of early stopping is flat, twice; return the process time and the steps.

    This was the rule before. A stage goes on from the best weights, at a constant rate.
    """
    start, lowest, best, steps = time.process_time(), math.inf, _state(trainer.network), 0
    inputs, targets = trainer.data.stop
    for factor, most in STAGES:
        trainer.network.train().load_state_dict(best)
        trainer.restart()
        without_gain = 0
        for _ in range(most):
            for _ in range(trainer.round_steps):
                trainer.step(factor)
            steps += trainer.round_steps
            loss = trainer.objective.loss(outputs_of(trainer.network, inputs), targets).item()
            without_gain += 1
            if loss < lowest:
                lowest, without_gain, best = loss, 0, _state(trainer.network)
            if without_gain == PATIENCE:
                break
    trainer.network.train().load_state_dict(best)
    return time.process_time() - start, steps


def _state(network: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the state, in training mode, in which escnn's layers have no buffers of filters."""
    return copy.deepcopy(network.train().state_dict())


@torch.no_grad()
def outputs_of(network: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs of a network for inputs (n, …), in eval mode."""
    network.eval()
    return torch.cat([network(part) for part in inputs.split(EVALUATION_BATCH)])


def scores(network: nn.Module, data: Data, group: str, are_turned: bool = True) -> dict[str, float]:
    """Return ``score``, and ``turned`` where asked: its mean over inputs moved by each element but the identity.

    Of classes both are accuracies in percent. Of smoke they are errors ‖predicted − true‖ / ‖true‖ of the velocities of
    the next frame in percent.
    """
    score = _accuracy_on if data.step is None else _error_on
    found = {"score": score(network, data, data.scored, None)}
    if are_turned:
        found["turned"] = fmean(score(network, data, data.copied, element) for element in ELEMENTS[group][1:])
        found |= {name: score(network, data, part, None) for name, part in data.parts.items()}
    return found


@torch.no_grad()
def gates_of(network: nn.Module, data: Data) -> dict[str, float]:
    """Return the mean gate of a network that learns one, of each part of the test."""
    if not isinstance(network, WithFlag) or network.gate is None:
        return {}
    return {f"gate, {name}": network.gate(inputs).mean().item() for name, (inputs, _) in data.parts.items()}


def _accuracy_on(network: nn.Module, data: Data, split: Split, element: Any) -> float:
    images, labels = split
    return _accuracy(outputs_of(network, images if element is None else data.act(images, element)), labels)


def _error_on(network: nn.Module, data: Data, split: Split, element: Any) -> float:
    states, changes = split
    truth = states + data.step * changes
    if element is not None:
        states, truth = data.act(states, element), data.act(truth, element)
    predicted = states + data.step * outputs_of(network, states)
    return 100 * float((predicted - truth)[:, :2].norm() / truth[:, :2].norm())
