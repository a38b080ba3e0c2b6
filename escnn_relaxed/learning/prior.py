"""The prior of soft weights: normal in each group, with a precision δ that an update finds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..checks import check_not_negative, check_positive

# Below this δ a prior of α asks for nothing.
LEAST_PRECISION = 1e-2
# The largest second derivative of the penalty, so that SGD without Adam's scaling is stable up to a rate of 0.2.
_STEEPEST = 10.0


@dataclass(frozen=True)
class LearnedGroup:
    """The soft weights α of a layer and subgroup, with the statistics that an update computes.

    Attributes:
        precision: δ.
        determined: γ, the number of weights that the data determine at this δ.
        square: ‖α‖².
        rows: the group's columns of G, where GᵀG is the Fisher matrix of all observations; None before an update.

    Example:
        >>> import torch
        >>> LearnedGroup(precision=4.0, square=0.5, rows=torch.ones(10, 3)).size
        3
    """

    precision: float = 0.0
    determined: float = math.nan
    square: float = 0.0
    rows: Tensor | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Number n of weights; 0 before an update."""
        return 0 if self.rows is None else self.rows.shape[1]


class Prior(ABC):
    """Base of the priors of :class:`~escnn_relaxed.SoftnessEvidence`: the weights of group i are from N(0, 1/δᵢ).

    Another prior is a subclass with :meth:`update`, which says which δ the groups have from an update on. With
    δ = λ/‖α‖ the penalty is, near the weights of that update, the group lasso λ‖α‖.

    Example:
        >>> import torch
        >>> from escnn import gspaces
        >>> from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
        >>> class FixedPrecision(Prior):
        ...     def update(self, groups):
        ...         return [50.0 for group in groups]
        >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
        >>> layer = RelaxedR2Conv(image, image, 5)
        >>> evidence = SoftnessEvidence(layer, 100, "binary", prior=FixedPrecision())
        >>> evidence.update(image(torch.randn(100, 1, 5, 5)))
        >>> [row.precision for row in evidence.table()]
        [50.0]
    """

    @abstractmethod
    def update(self, groups: Sequence[LearnedGroup]) -> Sequence[float]:
        """Return the next δ of each soft group, from its γ and ‖α‖².

        An update of the evidence calls this three times, and finds γ anew before each. δ below 0.01 counts as 0.01.
        """

    def precisions(self, groups: Sequence[LearnedGroup]) -> list[float]:
        """Return the result of :meth:`update`, checked and clamped to the least δ.

        Raises:
            TypeError: for something else than a list of numbers.
            ValueError: for another number of precisions than of groups, or one that is not finite and ≥ 0.
        """
        precisions = self.update(groups)
        if not isinstance(precisions, list | tuple):
            wanted = f"a list of {len(groups)} precisions, one a group"
            raise TypeError(f"prior: update must return {wanted}, got {precisions!r}")
        if len(precisions) != len(groups):
            raise ValueError(f"prior: update must return {len(groups)} precisions, one a group, got {len(precisions)}")
        checked = [check_not_negative("prior: a precision of update", precision) for precision in precisions]
        return [max(precision, LEAST_PRECISION) for precision in checked]

    def factors(self, precisions: Tensor, observations: int, loss_unit: float = 1.0) -> Tensor:
        """Return the factor of each group's ‖α‖² in the penalty, δ/2N in the units of the loss.

        Args:
            precisions: δ of each group.
            observations: N.
            loss_unit: the loss over the negative log likelihood of an input.
        """
        return (precisions * loss_unit / (2 * observations)).clamp_max(_STEEPEST / 2)


class GammaPrior(Prior):
    """The default prior: MacKay's fixed point, δ ← (γ + n₀) / (‖α‖² + n₀σ₀²), where δ has a gamma prior.

    Args:
        weights: n₀, how many more weights the gamma prior counts as.
        deviation: σ₀, their size. A weight of 1 changes a kernel by about a fifth.

    Raises:
        TypeError: for an argument that is no number.
        ValueError: for a number that is not finite and > 0.

    Example:
        >>> GammaPrior(weights=1.0, deviation=0.5).update(
        ...     [LearnedGroup(4.0, determined=1.0, square=0.15)]
        ... )
        [5.0]
    """

    def __init__(self, weights: float = 1.0, deviation: float = 0.5) -> None:
        self.weights = check_positive("weights", weights)
        self.deviation = check_positive("deviation", deviation)

    def update(self, groups: Sequence[LearnedGroup]) -> list[float]:
        """Return δ by one step of the fixed point."""
        prior_square = self.weights * self.deviation**2
        return [(group.determined + self.weights) / (group.square + prior_square) for group in groups]


def check_prior(prior: Any) -> Prior:
    """Return a checked prior; the default for None."""
    if not isinstance(prior, Prior | None):
        raise TypeError(f"prior must be a Prior, as GammaPrior(), or None, got {prior!r}")
    return GammaPrior() if prior is None else prior
