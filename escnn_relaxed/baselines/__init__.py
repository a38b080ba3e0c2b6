"""Other ways to relax equivariance, as layers with the interface of ``RelaxedR2Conv``. One word chooses among them.

Each relaxes a strict convolution as its paper does: by a window on the group (partial.py), a free kernel with a prior
(residual.py), or weights that depend on the group element (weighted.py). docs/concepts/ways-to-relax.md compares them.

Example:
    >>> from escnn import gspaces, nn
    >>> gspace = gspaces.rot2dOnR2(4)
    >>> in_type = nn.FieldType(gspace, [gspace.trivial_repr])
    >>> out_type = nn.FieldType(gspace, [gspace.regular_repr])
    >>> for name, Layer in LAYERS.items():
    ...     layer = Layer(in_type, out_type, 5, padding=2)
    ...     print(name, sum(p.numel() for p in layer.parameters() if p.requires_grad))
    relaxed 16
    partial 13
    residual 112
    weighted 31
"""

from __future__ import annotations

from collections.abc import Callable

from ..layer.convolution import Convolution
from ..layer.relaxed_r2conv import RelaxedR2Conv
from .partial import PartialR2Conv
from .residual import ResidualR2Conv, free_weight_penalty
from .weighted import WeightedR2Conv

__all__ = ["LAYERS", "PartialR2Conv", "ResidualR2Conv", "WeightedR2Conv", "free_weight_penalty"]

LAYERS: dict[str, Callable[..., Convolution]] = {
    "relaxed": RelaxedR2Conv,
    "partial": PartialR2Conv,
    "residual": ResidualR2Conv,
    "weighted": WeightedR2Conv,
}
