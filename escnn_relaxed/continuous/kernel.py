"""One continuous kernel for the strict and the soft part: the paper's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..group.frame import GroupFrame
from .calibration_maps import SyntheticMaps, few_of, gain, spread, synthetic_maps
from .continuous_kernel import ContinuousKernel
from .filter_bank import ContinuousFilterBank
from .initialization import start_at_softness, start_features

if TYPE_CHECKING:  # exported layers come here too, and run without escnn
    from escnn.group import Representation

    from .steerable_basis import StrictPart

__all__ = ["SingleKernel", "continuous_maps"]

# The number of layers after which synthetic feature maps are as smooth as those inside a deep network; found by the
# variance through ten layers.
_LAYERS = 6


class SingleKernel(ContinuousFilterBank):
    """κ with its mean over the domain, which is the strict part.

    Its hidden size is the paper's. Its band limit is the higher one: a strict part learns more slowly with a lower one
    (docs/results/soft-part.md).
    """

    holds_strict_part = True
    default_softness = 0.01
    default_hidden_size = 32
    bandwidth_per_pixel = 0.12

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the weights of the domain coordinates; all others make the strict part too."""
        if self.kernel.domain_weight is not None:
            yield self.kernel.domain_weight

    @torch.no_grad()
    def start(self, frequency: Mapping[str, Tensor], softness: float, strict: StrictPart | None = None) -> None:
        """Draw the weights, and fix the softness of the start and the scale of the output."""
        start_at_softness(self, frequency, softness)
        scale = gain(self(frequency), continuous_maps(self), self.out_representations, self.frame.gspace)
        for pair in self.steered_average.block_pairs:
            pair.weights.div_(scale)


def continuous_maps(bank: SingleKernel) -> SyntheticMaps:
    """Return feature maps like those behind strict continuous layers of the same options as ``bank``."""
    few = few_of(bank.in_representations)
    strict = _strict_between(few, bank.frame, bank.options, bank.kernel_size, bank.dilation).to(bank.grid.taps)
    average = strict.steered_average

    def draw_bank() -> Tensor:
        features = start_features(strict, strict.kernel, {})
        average.initialize(features, average.count_directions(features))
        filter_bank: Tensor = strict({})
        return filter_bank

    maps = synthetic_maps(few, bank.kernel_size, bank.frame.gspace, draw_bank, _LAYERS)
    return SyntheticMaps(maps, spread(bank.in_representations))


def _strict_between(
    fields: Sequence[Representation], frame: GroupFrame, kernel: ContinuousKernel, kernel_size: int, dilation: int
) -> SingleKernel:
    """Return a strict kernel from some fields to themselves, newly drawn."""
    return SingleKernel(fields, fields, frame, kernel, kernel_size=kernel_size, dilation=dilation)
