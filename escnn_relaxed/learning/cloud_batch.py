"""A batch of clouds, each of which is an input: nodes side by side, and a number of its cloud for each node."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from escnn.nn import GeometricTensor
from torch import Tensor, nn

from ..measure.forward_probe import OutputSelector
from ..network.relaxed_layers import first_input, relaxed_layers
from .fisher_matrix import Batch
from .likelihoods import Likelihood
from .soft_gradients import check_arguments


@dataclass(frozen=True)
class CloudBatch(Batch):
    """Clouds for a network with convolutions of clouds; outputs are of nodes or of clouds."""

    @property
    def count(self) -> int:
        """The number of clouds."""
        return 0 if self.clouds is None or not len(self.clouds) else int(self.clouds.max()) + 1

    @property
    def _rows(self) -> tuple[int, ...]:
        return self.count, len(first_input(self.inputs))

    def _chunks(self, size: int) -> Iterator[tuple[Any, ...]]:
        # All clouds at once, since edges number nodes among all. A network may change its input in place.
        yield tuple(map(_copied, self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)))

    def _targets(self, targets: Tensor, size: int) -> Iterator[Tensor]:
        return iter((targets,))

    def _of_inputs(self, values: Tensor, likelihood: Likelihood) -> Tensor:
        """Return sums of values (rows,) of nodes over each cloud, of whose outputs there are as many as nodes."""
        if self.clouds is None or len(values) == self.count:
            return values
        likelihood.outputs *= len(values) / self.count
        return values.new_zeros(self.count).index_add(0, self.clouds.to(values.device), values)

    def _check_output(self, rows: int) -> None:
        if rows not in self._rows:
            count, nodes = self._rows
            raise ValueError(f"network must return rows of the {count} clouds or of their {nodes} nodes, got {rows}")

    def _counts(self, likelihood: Likelihood, targets: Tensor) -> Tensor:
        # Those of a node again, of which the sums over clouds follow.
        likelihood.outputs *= self.count / len(targets)
        return self._of_inputs(likelihood.counted_outputs(targets), likelihood)


def _copied(value: Any) -> Any:
    """Return a copy of a tensor or of fields with their coordinates."""
    if isinstance(value, GeometricTensor):
        return GeometricTensor(value.tensor.clone(), value.type, value.coords)
    return value.clone() if isinstance(value, Tensor) else value


def batch_of(
    network: nn.Module, inputs: Any, targets: Tensor | None, output: OutputSelector, clouds: Tensor | None
) -> Batch:
    """Return a batch of images, or of clouds where a network has convolutions of clouds.

    Args:
        network: the network.
        inputs: a batch, or a tuple of all arguments.
        targets: of the inputs.
        output: picks the tensor of the likelihood.
        clouds: the number of the cloud of each node; None for the argument ``batch`` of the network.
    """
    if not any(getattr(layer, "is_of_clouds", False) for layer in relaxed_layers(network).values()):
        if clouds is not None:
            raise ValueError("batch must be left out for a network without convolutions of clouds")
        return Batch(network, inputs, targets, output)
    nodes = len(first_input(inputs))
    if clouds is None:
        check_arguments(network, inputs)
        given = inspect.signature(network.forward).bind(*(inputs if isinstance(inputs, tuple) else (inputs,)))
        clouds = given.arguments.get("batch")
        if clouds is None:
            raise ValueError(
                f"batch must be given for a network of clouds: the number of the cloud of each of the {nodes} nodes, "
                f"as of torch_geometric, since a cloud is an input"
            )
    if not isinstance(clouds, Tensor) or clouds.is_floating_point() or clouds.dtype == torch.bool:
        kind = clouds.dtype if isinstance(clouds, Tensor) else type(clouds).__name__
        raise TypeError(f"batch must be a tensor of integers ({nodes},), got {kind}")
    numbers = clouds.unique() if clouds.dim() == 1 else clouds
    if clouds.shape != (nodes,) or not torch.equal(numbers, torch.arange(len(numbers), device=numbers.device)):
        raise ValueError(
            f"batch must have a number for each of the {nodes} nodes, and each cloud from 0 on a node, got shape "
            f"{tuple(clouds.shape)} with the numbers {numbers.flatten()[:8].tolist()}"
        )
    return CloudBatch(network, inputs, targets, output, clouds.long())
