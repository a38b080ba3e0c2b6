"""The bias of trivial irreps, expanded to the channels of a field type."""

from __future__ import annotations

import numpy as np
from escnn.nn import FieldType
from torch import Tensor

from ..group.exact_constants import ExactConstants

__all__ = ["InvariantBias", "has_trivial_irrep"]


def has_trivial_irrep(field_type: FieldType) -> bool:
    """Whether a bias can be added to any channel without breaking equivariance."""
    return any(field_type.fibergroup.irrep(*irrep).is_trivial() for irrep in field_type.irreps)


class InvariantBias(ExactConstants):
    """The map from one value for each trivial irrep, in ``R2Conv``'s order, to the bias of each channel."""

    expansion: Tensor

    def __init__(self, out_type: FieldType) -> None:
        super().__init__()
        columns = []
        start = 0
        for representation in out_type.representations:
            position = 0
            for irrep_id in representation.irreps:
                irrep = out_type.fibergroup.irrep(*irrep_id)
                if irrep.is_trivial():
                    column = np.zeros(out_type.size)
                    column[start : start + representation.size] = representation.change_of_basis[:, position]
                    columns.append(column)
                position += irrep.size
            start += representation.size
        self.set_constant("expansion", np.stack(columns, axis=1))
        self.dimension = len(columns)

    def forward(self, values: Tensor) -> Tensor:
        """Return the bias of each channel, (C,), for the values (dimension,)."""
        return self.expansion @ values
