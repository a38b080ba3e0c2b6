"""The soft weights of a layer by the subgroups that they belong to."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..baselines import PartialR2Conv, ResidualR2Conv, WeightedR2Conv
from ..group.elements import SUBGROUPS
from ..kernel.tied_kernel import TiedKernel
from ..layer.convolution import Convolution
from ..layer.softened_convolution import SoftenedConvolution

__all__ = ["WeightGroups", "weight_groups"]

WeightGroups = dict[str, list[tuple[nn.Parameter, Tensor]]]


def weight_groups(layer: Convolution) -> WeightGroups:
    """Return the soft weights of a layer: label → parameters, each with the flat indices of its entries.

    The layer is strict in a label's subgroups where all of its entries are 0. Where it is strict if entries are equal,
    the indices are a matrix, (rows, entries), and what is soft is how entries differ from the mean of their row.

    A label is a subgroup; ``"rotation × reflection"`` for functions of both, which go if the layer becomes strict in
    either; ``"rotation, reflection"`` for weights of which nothing says to which of them they belong, which go if it
    becomes strict in both.
    """
    together = ", ".join(layer.relaxed_subgroups)
    if isinstance(layer, PartialR2Conv):
        named = layer.narrowing.items()
        return {name: [(value, torch.tensor([0]))] for name, value in named if isinstance(value, nn.Parameter)}
    if isinstance(layer, WeightedR2Conv):
        weights = layer.group_weights
        return {together: [(weights, _all_of(weights).view(weights.shape))]} if weights.shape[1] > 1 else {}
    if isinstance(layer, ResidualR2Conv):
        return {together: [(layer.free_weight, _all_of(layer.free_weight))]} if together else {}
    if not isinstance(layer, SoftenedConvolution) or layer.bank is None:
        return {}
    if isinstance(layer.bank, TiedKernel):
        labels = _labels_of_tied(layer.bank)
        places = {label: torch.tensor([i for i, other in enumerate(labels) if other == label]) for label in labels}
        return {label: [(layer.bank.weights, of)] for label, of in places.items()}
    parameters = [(parameter, _all_of(parameter)) for parameter in layer.bank.soft_parameters()]
    return {together: parameters} if together and parameters else {}


def _all_of(parameter: Tensor) -> Tensor:
    return torch.arange(parameter.numel())


def _labels_of_tied(kernel: TiedKernel) -> list[str]:
    """Return the label of each weight of a tied kernel."""
    columns = kernel.grid.domain_columns
    places = {name: [number for number, other in enumerate(columns) if other == name] for name in columns}
    squares = [
        name
        for name, own in places.items()
        if kernel.functions._has_squares(name, slice(own[0], own[-1] + 1))
        for _ in own
    ]
    products = len(places.get("rotation", ())) * len(places.get("reflection", ()))
    both = " × ".join(name for name in SUBGROUPS if name in ("rotation", "reflection"))
    functions = [*columns, *squares, *[both] * products]
    labels = []
    for kind in kernel.maps.kinds:
        labels += [functions[number] for number in kind.functions] * kind.fields
    fields = sum(kind.fields for kind in kernel.maps.kinds)
    return labels + [functions[side.function] for side in kernel.maps.sides] * fields
