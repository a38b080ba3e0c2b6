"""The soft weights of a network by layer and subgroup: those that learn, each of them once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from ..network.relaxed_layers import relaxed_layers


class SoftGroup(NamedTuple):
    """The soft weights of a layer and subgroup.

    Attributes:
        layer: name of the layer.
        label: the subgroup, or several: see ``layer.weight_groups()``.
        entries: parameters, each with the places of its entries.
    """

    layer: str
    label: str
    entries: list[tuple[nn.Parameter, Tensor]]

    @property
    def key(self) -> str:
        """A name among all groups."""
        return f"{self.layer}/{self.label}"

    @property
    def subgroups(self) -> list[str]:
        """All subgroups that the label names."""
        return re.split(" × |, ", self.label)

    @property
    def width(self) -> int:
        """Number of entries."""
        return sum(places.numel() for _, places in self.entries)

    @property
    def size(self) -> int:
        """Number n of weights, without the means of rows, which are not soft."""
        return self.width - sum(len(places) for _, places in self.entries if places.dim() > 1)

    def taken(self, values: Mapping[int, Tensor]) -> list[Tensor]:
        """Return the group's entries along the last axis of values by the identity of their parameter."""
        return [_entries(values[id(parameter)], places.to(parameter.device)) for parameter, places in self.entries]


def soft_groups(network: nn.Module) -> list[SoftGroup]:
    """Return the groups of a network; what is frozen or hardened is in none, and what layers share in the first."""
    groups: list[SoftGroup] = []
    owners: dict[int, str] = {}
    for name, layer in relaxed_layers(network).items():
        for label, entries in layer.weight_groups().items():
            own = [
                (parameter, places.to(parameter.device))
                for parameter, places in entries
                if parameter.requires_grad and owners.setdefault(id(parameter), name) == name
            ]
            if own and not is_gone(label, layer.hardened):
                groups.append(SoftGroup(name, label, own))
    return groups


def is_gone(label: str, hardened: Sequence[str]) -> bool:
    """Return whether soft weights no longer do anything in a layer that is strict in some subgroups."""
    if ", " in label:
        return all(name in hardened for name in label.split(", "))
    return any(name in hardened for name in label.split(" × "))


def _entries(values: Tensor, places: Tensor) -> Tensor:
    """Return the values at some places of the last axis; where these are a matrix, less the means of its rows."""
    taken = values[..., places]
    return taken if places.dim() == 1 else (taken - taken.mean(-1, keepdim=True)).flatten(-2)
