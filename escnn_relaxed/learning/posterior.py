"""The posterior of soft weights: H = GᵀG is its Fisher matrix, and each group of weights has a prior of precision δ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

# Bounds of δ. A weight of 1 modulates a kernel by about a fifth: below the first a prior asks for nothing, and beyond
# the second it leaves a softness below 1e-7.
LEAST_PRECISION, MOST_PRECISION = 1e-2, 1e6
# Steps of the fixed point in an update. More would follow weights that are still on their way.
_STEPS = 3
# ‖α‖² below this is 0.
_NOTHING = 1e-300


@dataclass(frozen=True)
class Learned:
    """What an update finds of a group of soft weights α."""

    precision: float = 0.0  # δ
    determined: float = math.nan  # γ, how many weights the data determine
    square: float = 0.0  # ‖α‖²
    rows: Tensor | None = field(default=None, repr=False)  # the group's columns of G, once there was an update


def fisher_rows(gradients: Tensor, observations: int) -> Tensor:
    """Return rows G with GᵀG = H of all observations, from the gradients of some inputs, (inputs, weights)."""
    if not gradients.isfinite().all():
        raise ValueError("inputs: a gradient of the network's output is not finite")
    rows = gradients * (observations / len(gradients)) ** 0.5
    return torch.linalg.qr(rows, mode="r")[1] if len(rows) > rows.shape[1] else rows


def fixed_point(groups: Sequence[Learned], prior_weights: float, prior_deviation: float) -> list[Learned]:
    """Return groups with the δ and γ of some steps of the fixed point, from the δ that they have.

    Args:
        groups: those of all weights that are soft.
        prior_weights: n₀. The prior of each δ is a gamma distribution, as if so many more weights had been seen.
        prior_deviation: σ₀, their size.
    """
    groups = [replace(group, precision=max(group.precision, LEAST_PRECISION)) for group in groups]
    for _ in range(_STEPS):
        found = []
        for gamma, group in zip(posterior(groups)[0], groups, strict=True):
            ratio = (gamma + prior_weights) / max(group.square + prior_weights * prior_deviation**2, _NOTHING)
            found.append(replace(group, precision=min(max(ratio, LEAST_PRECISION), MOST_PRECISION)))
        groups = found
    return [replace(group, determined=g) for group, g in zip(groups, posterior(groups)[0], strict=True)]


def posterior(groups: Sequence[Learned], scale: float = 1.0) -> tuple[list[float], float]:
    """Return γ of each group, and the Occam factor: by how much the weights lower log p(data), beside the loss.

    Args:
        groups: those of all weights that are soft.
        scale: a factor of H.
    """
    # Σ = (H + diag δ)⁻¹ is never made. With A = G δ^(−½), δΣ is 1 − Aᵀ(1 + AAᵀ)⁻¹A, whose inverse exists for every H;
    # and log det(Σ⁻¹/δ) is log det(1 + AAᵀ).
    parts = [group.rows * (scale / group.precision) ** 0.5 for group in groups if group.rows is not None]
    if not parts:
        return [], 0.0
    scaled = torch.cat(parts, 1)
    factor = torch.linalg.cholesky(torch.eye(len(scaled), dtype=scaled.dtype, device="cpu") + scaled @ scaled.mT)
    each = torch.linalg.solve_triangular(factor, scaled, upper=False).square().sum(0)
    determined = [float(values.sum()) for values in each.split([part.shape[1] for part in parts])]
    energy = sum(group.precision * group.square for group in groups)
    return determined, energy / 2 + float(factor.diagonal().log().sum())
