"""Parameters in groups for an optimiser: ω′ apart from weights."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from .checks import check_number
from .relaxed_convolution import RelaxedConvolution

__all__ = ["parameter_groups"]


def parameter_groups(network: nn.Module, frequency_rate: float | None = None) -> list[dict[str, Any]]:
    """Groups for any torch optimiser: the learned ω′ without weight decay and with a rate of their own, then the rest.

    Weight decay would pull ω′ to 0 whether or not the task is symmetric; :func:`~escnn_relaxed.equivariance_penalty`
    does so on purpose. A parameter that layers share is there once.

    Args:
        network: any module.
        frequency_rate: learning rate of ω′; that of the optimiser by default.

    Returns:
        ``[{"params": ω′, "weight_decay": 0.0, "lr": frequency_rate}, {"params": the rest}]``; the first group is
        missing where no ω′ is learned.

    Raises:
        TypeError: for a rate that is no number.
        ValueError: for a rate that is not finite and > 0.

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25}, learn_relaxation=True)
        >>> optimiser = torch.optim.AdamW(parameter_groups(layer, 1e-2), lr=1e-3, weight_decay=0.1)
        >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in optimiser.param_groups]
        [(1, 0.01, 0.0), (6, 0.001, 0.1)]
    """
    if frequency_rate is not None:
        frequency_rate = check_number("frequency_rate", frequency_rate)
        if not (math.isfinite(frequency_rate) and frequency_rate > 0):
            raise ValueError(f"frequency_rate must be finite and > 0, got {frequency_rate}")
    layers = [module for module in network.modules() if isinstance(module, RelaxedConvolution)]
    frequencies = {id(value): value for layer in layers for value in layer._domain_frequency.parameters()}
    rest = [parameter for parameter in network.parameters() if id(parameter) not in frequencies]
    groups: list[dict[str, Any]] = []
    if frequencies:
        rate = {} if frequency_rate is None else {"lr": frequency_rate}
        groups.append({"params": list(frequencies.values()), "weight_decay": 0.0, **rate})
    return [*groups, {"params": rest}]
