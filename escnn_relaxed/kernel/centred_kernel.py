"""A continuous soft part that is centred on the domain, beside a strict part in escnn's basis (equation (9))."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from .filter_bank import ContinuousFilterBank
from .initialization import start_centred

if TYPE_CHECKING:  # exported layers come here too, and run without escnn
    from .steerable_basis import StrictPart

__all__ = ["CentredKernel"]


class CentredKernel(ContinuousFilterBank):
    """κ without its mean over the domain, so that it has no strict part.

    Its band limit is the lower one: a soft part does as well with it, and turns better off the pixel grid. A start ten
    times as soft as the default costs accuracy where softness is not needed, and brings none where it is
    (docs/results/soft-part.md).
    """

    default_hidden_size = 8
    bandwidth_per_pixel = 0.05

    def start(self, frequency: Mapping[str, Tensor], softness: float, strict: StrictPart | None) -> None:
        """Draw the weights so that the soft part is as large as the wanted softness says; 0 where none is wanted.

        The units of the weights are scaled, not the weights. So an optimiser's steps on the soft part are small too.
        Where no softness is wanted, the units are those of the default.
        """
        energy = 0.0 if strict is None else float(strict.energy().detach())
        start_centred(self, frequency, softness or self.default_softness, energy)
        if not softness:
            for pair in self.steered_average.block_pairs:
                nn.init.zeros_(pair.weights)
