"""How far a layer is from equivariance, exactly, from its weights (equations (6) and (7))."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..group.elements import SUBGROUPS
from .filter_bank import ContinuousFilterBank

__all__ = ["soft_share", "softness"]

# Below this many units in the last place the root of s is rounding; in bfloat16 that would be a percent of the energy.
_ROUNDING = 16
_MOST_ROUNDING = 5e-3


def softness(
    bank: ContinuousFilterBank | None,
    frequency: Mapping[str, Tensor],
    strict: Tensor,
    hardened: Sequence[str],
    subgroups: Sequence[str],
) -> Tensor:
    """‖K − PK‖² / (‖PK‖² + ‖K − PK‖²), P the projection on what is equivariant to some subgroups.

    The denominator is ‖K‖² where the group maps the pixel grid to itself; elsewhere K − PK and PK are orthogonal
    only nearly, and this form keeps the result in [0, 1].

    Args:
        bank: the continuous kernel, centred or not; None where nothing is soft.
        frequency: ω′ of each subgroup of the domain.
        strict: ‖·‖² of a strict kernel that is added to a centred bank.
        hardened: subgroups on which K is projected as it is.
        subgroups: those that P projects on.
    """
    if bank is None:
        return strict.new_zeros(())
    positions = bank.grid.image_positions if "translation" in frequency else None
    joint = tuple(name for name in SUBGROUPS if name in (*hardened, *subgroups))
    features = bank.features(bank.kernel, frequency, positions, averaged=hardened)
    projected = bank.features(bank.kernel, frequency, positions, averaged=joint)
    soft = _mean_energy(bank, features - projected)
    return soft_share(soft, _mean_energy(bank, projected) + (strict if bank.centred else 0))


def soft_share(soft: Tensor, strict: Tensor) -> Tensor:
    """‖K − PK‖² / (‖PK‖² + ‖K − PK‖²) of both energies, 0 where the first is rounding.

    Example:
        >>> soft_share(torch.tensor(1.0), torch.tensor(3.0)).item()
        0.25
    """
    total = soft + strict
    # Of kernels that are equal rounding is left, whose root would have a slope in a direction of chance.
    rounding = min(_ROUNDING * torch.finfo(total.dtype).eps, _MOST_ROUNDING)
    is_soft = soft > rounding**2 * total
    return torch.where(is_soft, soft / torch.where(is_soft, total, 1), 0)


def _mean_energy(bank: ContinuousFilterBank, features: Tensor) -> Tensor:
    """‖K‖² of features (J, M, P, R, T), a mean over the positions."""
    return bank.steered_average.energy(features) / features.shape[2]
