"""The posterior of soft weights, of which the Fisher matrix is H = GᵀG and the prior has a precision for each group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fisher_rows(gradients: Tensor, observations: int) -> Tensor:
    """Return rows G with GᵀG = H of all observations, from the gradients of some inputs, (inputs, weights)."""
    if not gradients.isfinite().all():
        raise ValueError("inputs: a gradient of the network's output is not finite")
    rows = gradients * (observations / len(gradients)) ** 0.5
    return torch.linalg.qr(rows, mode="r")[1] if len(rows) > rows.shape[1] else rows


def posterior(
    rows: Sequence[Tensor], precision: Sequence[float], squares: Sequence[float], weight: float = 1.0
) -> tuple[list[float], float]:
    """Return γ of each group, and the price of their weights: what log p(data) has beside the loss.

    Args:
        rows: the columns of G of each group.
        precision: δ of each.
        squares: ‖α‖² of each.
        weight: a factor of H.
    """
    # Σ is never made. With A = G δ^(−½), δ(H + δ)⁻¹ is 1 − Aᵀ(1 + AAᵀ)⁻¹A, whose inverse exists for every H; and
    # log det(Σ⁻¹/δ) is log det(1 + AAᵀ).
    if not rows:
        return [], 0.0
    scaled = torch.cat([of * (weight / delta) ** 0.5 for of, delta in zip(rows, precision, strict=True)], 1)
    factor = torch.linalg.cholesky(torch.eye(len(scaled), dtype=scaled.dtype, device="cpu") + scaled @ scaled.mT)
    each = torch.linalg.solve_triangular(factor, scaled, upper=False).square().sum(0)
    determined = [float(of.sum()) for of in each.split([of.shape[1] for of in rows])]
    energy = sum(delta * square for delta, square in zip(precision, squares, strict=True))
    return determined, energy / 2 + float(factor.diagonal().log().sum())
