"""The bias of a layer: a value for each trivial irrep of its output."""

from __future__ import annotations

import numpy as np
from escnn.nn import FieldType
from torch import Tensor

from ..group.exact_constants import ExactConstants
from ..group.fields import block_diagonal


class InvariantBias(ExactConstants):
    """The map from a value for each trivial irrep, in ``R2Conv``'s order, to the bias of each channel."""

    expansion: Tensor

    def __init__(self, out_type: FieldType) -> None:
        super().__init__()
        # The columns of the change of basis of all fields together are those of irreps, one after the other.
        irreps = [out_type.fibergroup.irrep(*name) for name in out_type.irreps]
        is_trivial = np.repeat([irrep.is_trivial() for irrep in irreps], [irrep.size for irrep in irreps])
        self.dimension = int(is_trivial.sum())
        # Not FieldType.change_of_basis, which calls what newer releases of SciPy warn of.
        whole = block_diagonal([field.change_of_basis for field in out_type.representations])
        self.set_constant("expansion", whole[:, is_trivial])

    def forward(self, values: Tensor) -> Tensor:
        """Return the bias of each channel, (C,), for the values (dimension,)."""
        return self.expansion @ values
