"""The posterior of soft weights, from the Fisher matrix H = GᵀG and priors of precision δ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..measure.reports import Report, plain_table
from .prior import LEAST_PRECISION, LearnedGroup, Prior

# Steps of the fixed point in an update. More would follow weights that are still on their way.
_STEPS = 3


def fisher_rows(gradients: Tensor, observations: int) -> Tensor:
    """Return rows G with GᵀG = H of all observations, from the gradients of some inputs, (inputs, weights)."""
    if not gradients.isfinite().all():
        raise ValueError("inputs: a gradient of the network's output is not finite")
    rows = gradients * (observations / len(gradients)) ** 0.5
    return torch.linalg.qr(rows, mode="r")[1] if len(rows) > rows.shape[1] else rows


def fixed_point(groups: Sequence[LearnedGroup], prior: Prior) -> list[LearnedGroup]:
    """Return all soft groups with δ and γ after some steps of the prior's update."""
    groups = _determined([replace(group, precision=max(group.precision, LEAST_PRECISION)) for group in groups])
    for _ in range(_STEPS):
        pairs = zip(groups, prior.precisions(groups), strict=True)
        groups = _determined([replace(group, precision=precision) for group, precision in pairs])
    return groups


def _determined(groups: Sequence[LearnedGroup]) -> list[LearnedGroup]:
    """Return all soft groups with γ at their present δ."""
    return [replace(group, determined=gamma) for group, gamma in zip(groups, determined_numbers(groups), strict=True)]


def posterior_draws(groups: Sequence[LearnedGroup], count: int, generator: torch.Generator) -> Tensor:
    """Return draws from N(0, Σ), (count, weights): posterior deviations of the weights of all groups."""
    floats: dict[str, Any] = {"dtype": torch.float64, "device": "cpu", "generator": generator}
    updated = [(group.rows, group.precision) for group in groups if group.rows is not None]
    rows = torch.cat([rows for rows, _ in updated], 1)
    deviation = torch.cat([rows.new_full((rows.shape[1],), precision**-0.5) for rows, precision in updated])
    # u of the prior, and data that it and noise of their own make: u less its estimate from them has the covariance Σ
    # (Bhattacharya et al. 2016), and no matrix of weights × weights is made.
    from_prior = deviation * torch.randn(count, len(deviation), **floats)
    data = from_prior @ rows.mT + torch.randn(count, len(rows), **floats)
    scaled = rows * deviation
    return from_prior - torch.cholesky_solve(data.mT, _cholesky_factor(scaled)).mT @ (scaled * deviation)


def determined_numbers(groups: Sequence[LearnedGroup]) -> list[float]:
    """Return γ of each soft group, the number of its weights that the data determine."""
    # δΣ is 1 − Aᵀ(1 + AAᵀ)⁻¹A, whose inverse exists for every H.
    columns = _scaled_rows(groups)
    if not columns:
        return []
    scaled = torch.cat(columns, 1)
    each = torch.linalg.solve_triangular(_cholesky_factor(scaled), scaled, upper=False).square().sum(0)
    return [float(values.sum()) for values in each.split([own.shape[1] for own in columns])]


def occam_factor_of(groups: Sequence[LearnedGroup]) -> float:
    """Return the Occam factor of log p(data)."""
    # log det(Σ⁻¹/δ) is log det(1 + AAᵀ).
    columns = _scaled_rows(groups)
    if not columns:
        return 0.0
    energy = sum(group.precision * group.square for group in groups)
    return energy / 2 + float(_cholesky_factor(torch.cat(columns, 1)).diagonal().log().sum())


def _scaled_rows(groups: Sequence[LearnedGroup]) -> list[Tensor]:
    """Return A = G δ^(−½) of each soft group, by which Σ = (H + diag δ)⁻¹ is never made."""
    return [group.rows * (1 / group.precision) ** 0.5 for group in groups if group.rows is not None]


def _cholesky_factor(scaled: Tensor) -> Tensor:
    """Return the Cholesky factor of 1 + AAᵀ."""
    return torch.linalg.cholesky(torch.eye(len(scaled), dtype=scaled.dtype, device="cpu") + scaled @ scaled.mT)


@dataclass(frozen=True)
class EvidenceRow:
    """The soft weights of one layer and subgroup; ``pandas.DataFrame(table)`` has one row for each.

    Attributes:
        layer: name of the layer.
        subgroup: the subgroup, or ``"rotation × reflection"`` for functions of both.
        weights: their number n.
        determined: γ, the number of them that the data determine; not a number before the first update.
        softness: s of the layer in that subgroup.
        precision: δ of their prior.

    Example:
        >>> EvidenceRow("conv", "rotation", 20, 3.0, 0.002, 50.0).gamma_per_weight
        0.15
    """

    layer: str
    subgroup: str
    weights: int
    determined: float
    softness: float
    precision: float

    @property
    def gamma_per_weight(self) -> float:
        """γ/n. Near 1 the data determine the weights. Near 0 they do not, or the network fits all of them already."""
        return self.determined / self.weights

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        numbers = f"{self.weights}", f"{self.determined:.1f}", f"{self.gamma_per_weight:.2f}", f"{self.softness:.1e}"
        return (self.layer, self.subgroup, *numbers)


class EvidenceTable(tuple[EvidenceRow, ...], Report):
    """A tuple of a row for each layer and subgroup that is soft.

    Its text is a table with sums below: of each subgroup that several layers are soft in, and of all rows. Softness
    there is that of the softest.

    Example:
        >>> turns = EvidenceRow("conv", "rotation", 20, 3.0, 0.002, 50.0)
        >>> flips = EvidenceRow("conv", "reflection", 5, 2.0, 0.001, 50.0)
        >>> print(EvidenceTable((turns, flips)))
        layer  subgroup    weights n  determined γ  γ/n   softness s
        conv   rotation    20         3.0           0.15  2.0e-03
        conv   reflection  5          2.0           0.40  1.0e-03
        all    all         25         5.0           0.20  2.0e-03
    """

    @property
    def rows(self) -> tuple[EvidenceRow, ...]:
        """The rows in the order of the layers, without sums."""
        return tuple(self)

    def __str__(self) -> str:
        groups = {row.subgroup: [each for each in self if each.subgroup == row.subgroup] for row in self}
        sums = [_sum(f"{len(rows)} layers", name, rows) for name, rows in groups.items() if len(rows) > 1]
        if len(groups) > 1:
            sums.append(_sum("all", "all", self))
        header = ("layer", "subgroup", "weights n", "determined γ", "γ/n", "softness s")
        return plain_table(header, [row.cells() for row in (*self, *sums)])


def _sum(layer: str, subgroup: str, rows: Sequence[EvidenceRow]) -> EvidenceRow:
    """Return the row of the sum of several rows."""
    sums = sum(row.weights for row in rows), sum(row.determined for row in rows)
    return EvidenceRow(layer, subgroup, *sums, max(row.softness for row in rows), math.nan)
