"""A batch of data: rows of the Fisher matrix of soft weights, and the losses of single inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from ..measure.forward_probe import OutputSelector
from ..network.relaxed_layers import first_input, in_eval_mode, input_chunks
from .likelihoods import IGNORE_INDEX, Likelihood
from .posterior import fisher_rows
from .soft_gradients import SoftWeights, check_arguments, gather_entries, gradients, output_of

# Inputs at a time, for gradients of single ones and for losses.
_CHUNK, _LARGE_CHUNK = 32, 256


@dataclass(frozen=True)
class Batch:
    """Inputs of a network, a batch or a tuple of all arguments, with their targets."""

    network: nn.Module
    inputs: Any
    targets: Tensor | None
    output: OutputSelector = None  # picks the tensor of the likelihood from what the network returns
    clouds: Tensor | None = None  # where inputs are clouds, the number of the cloud of each node

    def check(self, likelihood: Likelihood, fewest: int, most: int) -> None:
        """Check the arguments of the network, the number of inputs, and that there are targets where they are needed.

        Raises:
            TypeError: for an argument of the wrong type.
            ValueError: for another number of inputs or targets, and for none where the likelihood needs them.
        """
        count = self.count
        if not fewest <= count <= most:
            raise ValueError(f"inputs must be {fewest} or more, and no more than observations (={most}), got {count}")
        check_arguments(self.network, self.inputs)
        if self.targets is not None:
            _check_targets(self.targets, *self._rows)
        elif likelihood.name == "gaussian":
            raise ValueError("targets must be given where likelihood='gaussian': they say how large the noise is")
        elif likelihood.ignore_index != IGNORE_INDEX:
            raise ValueError(
                f"targets must be given where ignore_index={likelihood.ignore_index}: they say which outputs count"
            )

    def losses(self, likelihood: Likelihood) -> Tensor:
        """Return the negative log likelihood of each input, (batch,)."""
        targets = _check_targets(self.targets, *self._rows)
        losses = []
        with in_eval_mode(self.network):
            pairs = zip(self._chunks(_LARGE_CHUNK), self._targets(targets, _LARGE_CHUNK), strict=True)
            for arguments, wanted in pairs:
                of_outputs = likelihood.losses(output_of(self.network, arguments, self.output), wanted).double()
                losses.append(self._of_inputs(of_outputs, likelihood))
        return torch.cat(losses)

    # What a batch of clouds does in another way.

    @property
    def count(self) -> int:
        """The number of inputs."""
        return len(first_input(self.inputs))

    @property
    def _rows(self) -> tuple[int, ...]:
        """The numbers of rows that outputs and targets may have."""
        return (self.count,)

    def _chunks(self, size: int) -> Iterator[tuple[Any, ...]]:
        return input_chunks(self.inputs, size)

    def _targets(self, targets: Tensor, size: int) -> Iterator[Tensor]:
        return iter(targets.split(size))

    def _of_inputs(self, values: Tensor, likelihood: Likelihood) -> Tensor:
        """Return values (rows,) of outputs as those of inputs, and count the outputs of an input."""
        return values

    def _counts(self, likelihood: Likelihood, targets: Tensor) -> Tensor:
        """Return how many outputs of each input the loss counts, (inputs,)."""
        return likelihood.counted_outputs(targets)

    def _check_output(self, rows: int) -> None:
        """Raise a ``ValueError`` for an output of another number of rows."""

    def fisher_rows(
        self,
        soft: SoftWeights,
        likelihood: Likelihood,
        observations: int,
        generator: torch.Generator,
        joined: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Return rows G with GᵀG = H of all observations; estimate the weight of an output and how many count.

        Args:
            soft: the weights.
            likelihood: of which noise, weight and number of outputs are set.
            observations: N.
            generator: of the draws from the prediction.
            joined: makes of a tensor of this batch's inputs that of the batches of all processes.
        """

        def rows_of(targets: Tensor | None) -> Tensor:
            return fisher_rows(joined(self._gradients(soft, likelihood, generator, targets)), observations)

        if self.targets is None or likelihood.name != "gaussian":
            rows = rows_of(self.targets)
            if self.targets is not None:
                likelihood.set_mean_outputs(joined(self._counts(likelihood, self.targets)))
            return rows
        with torch.no_grad():
            likelihood.fit(float(joined(self.losses(likelihood)).mean()))
        rows = rows_of(None)
        return likelihood.weighted(rows, rows_of(self.targets)) if likelihood.is_weighted else rows

    def _gradients(
        self, soft: SoftWeights, likelihood: Likelihood, generator: torch.Generator, targets: Tensor | None
    ) -> Tensor:
        """Return the per-input gradients along drawn directions, (batch, weights), in double precision."""
        rows = []
        chunks = repeat(None) if targets is None else self._targets(targets, _CHUNK)
        for arguments, wanted in zip(self._chunks(_CHUNK), chunks, strict=False):

            def direction(output: Tensor, wanted: Tensor | None = wanted) -> Tensor:
                self._check_output(len(output))
                along = likelihood.direction(output, generator, wanted)
                self._of_inputs(along.new_zeros(len(along)), likelihood)
                return along

            with torch.enable_grad():
                slopes = gradients(self.network, soft.parameters, arguments, direction, self.output, self.clouds)
            values = {id(of): slope.reshape(len(slope), -1) for of, slope in zip(soft.parameters, slopes, strict=True)}
            rows.append(gather_entries(soft.groups, values).detach().cpu().double())
        return torch.cat(rows)


def _check_targets(targets: Any, count: int, *others: int) -> Tensor:
    """Return the targets, checked against the number of inputs, or of other rows of outputs."""
    if not isinstance(targets, Tensor):
        raise TypeError(f"targets must be a tensor, got {type(targets).__name__}")
    if not targets.dim() or len(targets) not in (count, *others):
        raise ValueError(f"targets must be as many as inputs (={count}), got {len(targets) if targets.dim() else 1}")
    return targets
