"""The share of a kernel's energy that is not equivariant (equations (6) and (7))."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["soft_share"]

# Below this many units in the last place √s is rounding. In bfloat16 that alone would be a percent of the energy.
_ROUNDING = 16
_MOST_ROUNDING = 5e-3


def soft_share(soft: Tensor, strict: Tensor) -> Tensor:
    """Return ‖K − PK‖² / (‖PK‖² + ‖K − PK‖²) from both energies; 0 where the first is rounding, NaN of NaN."""
    # ‖K‖² where the group maps the pixel grid to itself. Elsewhere K − PK and PK are only nearly orthogonal, and this
    # form keeps the result in [0, 1].
    total = soft + strict
    # Equal kernels differ by rounding alone. There the gradient of √s would point in a random direction.
    rounding = min(_ROUNDING * torch.finfo(total.dtype).eps, _MOST_ROUNDING)
    is_rounding = soft <= rounding**2 * total
    return torch.where(is_rounding, 0, soft / torch.where(is_rounding, 1, total))
