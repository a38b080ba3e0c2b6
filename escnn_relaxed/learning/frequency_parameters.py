"""Soft parameters in training: a penalty on learned ω′, groups for an optimiser, one ω′ for several layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_module, check_positive, warn_once
from ..kernel.domain_frequency import DomainFrequency
from ..layer.reference_field import ReferenceField
from ..layer.relaxed_layer import RelaxedLayer
from ..network.relaxed_layers import relaxed_layers


def frequency_penalty(network: nn.Module) -> Tensor:
    """Return Σ‖ω′‖² over layers, to add to the loss times λ where ω′ is learned (paper, "Learning equivariance").

    It can be evaded: the kernel stays as soft if ω′ falls and weights rise. :class:`~escnn_relaxed.SoftnessEvidence`
    learns softness without a λ.

    Where layers are soft and none of them learns its ω′, the penalty is a constant without a gradient, and a warning
    says so once. A strict network has the penalty 0, so that one loop trains both.

    Args:
        network: any module; layers that cannot be soft count 0.

    Raises:
        ValueError: for a network without a relaxed layer, or with one that something else than ω′ relaxes
            (``escnn_relaxed.baselines``).

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> from escnn_relaxed.learning import frequency_penalty
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.5}, learn_relaxation=True)
        >>> frequency_penalty(layer).item()
        0.25
    """
    layers = {name: layer for name, layer in relaxed_layers(network).items() if isinstance(layer, RelaxedLayer)}
    for name, layer in layers.items():
        if layer.relaxed_by:
            what = f"{name!r}, a {type(layer).__name__}," if name else f"a {type(layer).__name__}"
            raise ValueError(f"network: {what} has no ω′; SoftnessEvidence learns its softness")
    terms = [value.square().sum() for layer in layers.values() for value in layer.domain_frequency.values()]
    penalty = torch.stack(terms).sum() if terms else torch.zeros(())
    is_constant = torch.is_grad_enabled() and not penalty.requires_grad
    frequencies = [module for module in network.modules() if isinstance(module, DomainFrequency)]
    if is_constant and any(frequency.may_vary() for frequency in frequencies):
        warn_once(
            "frequency_penalty is a constant without a gradient, since no layer of this network learns its ω′: build "
            "layers with learn_relaxation=True, or let SoftnessEvidence learn the softness"
        )
    return penalty


def parameter_groups(network: nn.Module, frequency_rate: float | None = None) -> list[dict[str, Any]]:
    """Return groups for any torch optimiser: learned ω′ and other soft parameters, without weight decay, and the rest.

    Weight decay would make layers strict whether or not the task is symmetric. Soft parameters are those of
    ``layer.soft_parameters()``. A parameter that layers share is there once. A group without parameters is left out.

    Args:
        network: any module.
        frequency_rate: learning rate of ω′; that of the optimiser by default.

    Raises:
        TypeError: for a network that is no module, or a rate that is no number.
        ValueError: for a rate that is not finite and > 0.

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, learn_relaxation=True)
        >>> optimiser = torch.optim.AdamW(parameter_groups(layer, 1e-2), lr=1e-3)
        >>> [(group["lr"], group["weight_decay"]) for group in optimiser.param_groups]
        [(0.01, 0.0), (0.001, 0.0), (0.001, 0.01)]
    """
    modules = [*check_module("network", network).modules()]
    layers = [module for module in modules if isinstance(module, (RelaxedLayer, ReferenceField))]
    frequencies = {id(of) for module in modules if isinstance(module, DomainFrequency) for of in module.parameters()}
    soft = {id(value) for layer in layers for value in layer.soft_parameters()} - frequencies
    rates = {} if frequency_rate is None else {"lr": check_positive("frequency_rate", frequency_rate)}
    of_groups: list[tuple[set[int], dict[str, Any]]] = [
        (frequencies, {"weight_decay": 0.0, **rates}),
        (soft, {"weight_decay": 0.0}),
        ({id(value) for value in network.parameters()} - frequencies - soft, {}),
    ]
    groups = [
        {"params": [value for value in network.parameters() if id(value) in members], **options}
        for members, options in of_groups
    ]
    return [group for group in groups if group["params"]]


@torch.no_grad()
def share_domain_frequency(network: nn.Module) -> None:
    """Make layers learn one ω′ of each subgroup together, in place; it starts at the mean of their sizes.

    By default every layer learns its own. Call this before the optimiser is built: the shared parameter takes the place
    of the layers' own and is in ``network.parameters()`` once. It stays shared in copies and pickles of the network.
    Keys of state dicts are as before, each with the shared value. :func:`frequency_penalty` goes on counting every
    layer.

    Args:
        network: any module whose layers were built with ``learn_relaxation=True``; a part of a network, to share
            within that part alone. Layers share the subgroups that they have in common.

    Raises:
        TypeError: for a network that is no module.
        ValueError: if no layer learns its ω′.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
        >>> layers = [RelaxedR2Conv(fields, fields, 3, learn_relaxation=True) for _ in range(2)]
        >>> network = nn.SequentialModule(*layers)
        >>> layers[1].set_domain_frequency(rotation=0.5)
        >>> share_domain_frequency(network)
        >>> [layer.domain_frequency["rotation"].tolist() for layer in layers]
        [[0.375], [0.375]]
    """
    check_module("network", network)
    learning = [module for module in network.modules() if isinstance(module, DomainFrequency) and module.learn]
    subgroups = dict.fromkeys(name for frequency in learning for name in frequency.names)
    if not subgroups:
        raise ValueError("network has no layer that learns its domain frequency: build them with learn_relaxation=True")
    for name in subgroups:
        owners = [frequency for frequency in learning if name in frequency.names]
        first = owners[0].get_parameter(name)
        # Layers start alike: a sign turns the functions of ω′ around, which soft weights can undo.
        mean = torch.stack([owner.values()[name].to(first) for owner in owners]).abs().mean(dim=0)
        shared = nn.Parameter(mean, requires_grad=first.requires_grad)
        for owner in owners:
            owner.register_parameter(name, shared)
