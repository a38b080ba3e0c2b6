"""The profile of a symmetry with the errors that the posterior of the soft weights leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..measure.symmetry_profile import SymmetryProfile, symmetry_profile
from ..network.relaxed_layers import copy_network
from .posterior import Learned, posterior_draws
from .soft_gradients import SoftGroup, soft_groups


def profile_with_errors(
    network: nn.Module, learned: Sequence[Learned], draws: int, generator: torch.Generator
) -> SymmetryProfile:
    """Return the profile of a network, each row with the root mean square by which draws of its weights differ.

    Args:
        network: left as it is.
        learned: what the last update found of each group of soft weights.
        draws: their number.
        generator: of the draws.
    """
    profile, drawn = symmetry_profile(network), copy_network(network)
    groups = soft_groups(drawn)
    start = [[parameter.detach().view(-1)[places] for parameter, places in group.weights.entries] for group in groups]
    squares = torch.zeros(len(profile.rows), dtype=torch.float64)
    for change in posterior_draws(learned, draws, generator):
        _add(groups, start, change)
        errors = [row.error for row in symmetry_profile(drawn).rows]
        squares += torch.tensor(
            [(error - row.error) ** 2 for error, row in zip(errors, profile.rows, strict=True)], dtype=torch.float64
        )
    deviations = (squares / draws).sqrt().tolist()
    rows = (replace(row, deviation=each) for row, each in zip(profile.rows, deviations, strict=True))
    return replace(profile, rows=tuple(rows))


@torch.no_grad()
def _add(groups: Sequence[SoftGroup], start: Sequence[Sequence[Tensor]], change: Tensor) -> None:
    """Set the weights of groups to those of the start and a change, (weights,)."""
    parts = iter(change.split([len(places) for group in groups for _, places in group.weights.entries]))
    for group, values in zip(groups, start, strict=True):
        for (parameter, places), value in zip(group.weights.entries, values, strict=True):
            parameter.view(-1)[places] = value + next(parts).to(value)
