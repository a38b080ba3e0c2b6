"""Learned ω′: a group of an optimiser's parameters, and one parameter for several layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..checks import check_bool, check_module, check_positive
from ..kernel.domain_frequency import DomainFrequency
from ..layer.convolution import RelaxedConvolution

__all__ = ["parameter_groups", "share_domain_frequency"]


def parameter_groups(network: nn.Module, frequency_rate: float | None = None) -> list[dict[str, Any]]:
    """Return groups for any torch optimiser: the learned ω′ with a rate of its own and no weight decay, then the rest.

    Weight decay would pull ω′ to 0 whether or not the task is symmetric; :func:`~escnn_relaxed.equivariance_penalty`
    pulls towards strict layers on purpose. A parameter that layers share is there once.

    Args:
        network: any module.
        frequency_rate: learning rate of ω′; that of the optimiser by default.

    Returns:
        ``[{"params": ω′, "weight_decay": 0.0, "lr": frequency_rate}, {"params": the rest}]``; the first group is
        missing where no ω′ is learned.

    Raises:
        TypeError: for a network that is no module, or a rate that is no number.
        ValueError: for a rate that is not finite and > 0.

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(
        ...     fields, fields, 3, relax={"rotation": 0.25}, learn_relaxation=True
        ... )
        >>> optimiser = torch.optim.AdamW(parameter_groups(layer, 1e-2), lr=1e-3, weight_decay=0.1)
        >>> [
        ...     (len(group["params"]), group["lr"], group["weight_decay"])
        ...     for group in optimiser.param_groups
        ... ]
        [(1, 0.01, 0.0), (3, 0.001, 0.1)]
    """
    if frequency_rate is not None:
        frequency_rate = check_positive("frequency_rate", frequency_rate)
    layers = [module for module in check_module("network", network).modules() if isinstance(module, RelaxedConvolution)]
    frequencies = {id(value): value for layer in layers for value in layer.kernel.frequency.parameters()}
    rest = [parameter for parameter in network.parameters() if id(parameter) not in frequencies]
    groups: list[dict[str, Any]] = []
    if frequencies:
        rate = {} if frequency_rate is None else {"lr": frequency_rate}
        groups.append({"params": list(frequencies.values()), "weight_decay": 0.0, **rate})
    return [*groups, {"params": rest}]


def share_domain_frequency(network: nn.Module, *, across_layers: bool = True, across_axes: bool = False) -> None:
    """Make layers learn one ω′ of each subgroup together, in place; it starts at the mean of their sizes.

    By default every layer learns its own, and of translation one for each axis. Call this before the optimiser is
    built: the shared parameter takes the place of the layers' own and is in ``network.parameters()`` once. It stays
    shared in copies and pickles of the network. Keys of state dicts are as before, each with the shared value.
    Σ‖ω′‖², the penalty of ``kind="frequency"``, goes on counting every layer and axis.

    Args:
        network: any module whose layers were built with ``learn_relaxation=True``; a part of a network, to share
            within that part alone. Layers share the subgroups that they have in common.
        across_layers: one ω′ for all layers; else each has its own.
        across_axes: one ω′ of translation for x and y.

    Raises:
        TypeError: for an option that is no bool, or a network that is no module.
        ValueError: if neither option is chosen, or no layer learns its ω′.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
        >>> build = lambda start: RelaxedR2Conv(
        ...     fields, fields, 3, relax={"rotation": start}, learn_relaxation=True
        ... )
        >>> network = nn.SequentialModule(build(0.125), nn.ReLU(fields), build(0.25))
        >>> share_domain_frequency(network)
        >>> network[0].domain_frequency["rotation"] is network[2].domain_frequency["rotation"]
        True
        >>> network[0].domain_frequency["rotation"].tolist()
        [0.1875]
    """
    for name, option in (("across_layers", across_layers), ("across_axes", across_axes)):
        check_bool(name, option)
    if not (across_layers or across_axes):
        raise ValueError("across_layers or across_axes must be True, got False for both: nothing would be shared")
    check_module("network", network)
    frequencies = [module.kernel.frequency for module in network.modules() if isinstance(module, RelaxedConvolution)]
    learning = [frequency for frequency in frequencies if frequency.learn]
    subgroups = dict.fromkeys(name for frequency in learning for name in frequency.names)
    if not subgroups:
        raise ValueError("network has no layer that learns its domain frequency: build them with learn_relaxation=True")
    for name in subgroups:
        owners = [frequency for frequency in learning if name in frequency.names]
        for together in [owners] if across_layers else [[owner] for owner in owners]:
            _share(name, together, across_axes)


@torch.no_grad()
def _share(name: str, owners: Sequence[DomainFrequency], across_axes: bool) -> None:
    """Give the owners one parameter, the mean of their |ω′|: the sign of ω′ means nothing."""
    first = owners[0].get_parameter(name)
    values = torch.stack([owner.values()[name].to(first) for owner in owners]).abs().mean(dim=0)
    is_tied = across_axes or all(len(owner.get_parameter(name)) < len(values) for owner in owners)
    value = values.mean().view(1) if is_tied else values
    shared = nn.Parameter(value, requires_grad=first.requires_grad)
    for owner in owners:
        owner.share(name, shared)
