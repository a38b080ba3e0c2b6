"""The slow oracle of transposed convolutions, by plain loops: each pixel x of the input adds K(d; x) f(x).

    h(y) = Σ_x K(y − s x; x) f(x)

K is evaluated as for a convolution, by the loops of ``reference``.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from reference import Oracle, Pixel, Point
from reference_fields import Fields
from reference_regions import Regions
from torch import Tensor

from escnn_relaxed import RelaxedR2ConvTransposed


class TransposedOracle(Oracle):
    """A transposed layer evaluated by loops.

    Args:
        layer: gives its numbers.
        arguments: those that the layer was built with, ``filter_frequency`` among them.
    """

    def __init__(self, layer: RelaxedR2ConvTransposed, **arguments: Any) -> None:
        super().__init__(layer, **arguments)
        added = arguments.get("output_padding", 0)
        self.output_padding: tuple[int, int] = added if isinstance(added, tuple) else (added, added)
        # escnn's filters are from all fields of the input to one group of the output.
        count = len(layer.out_type) // self.groups
        self.inputs = Fields(list(layer.in_type.representations), self.elements)
        self.outputs = Fields(list(layer.out_type.representations[:count]), self.elements)

    def __call__(self, features: Tensor) -> Tensor:
        layer = self.layer
        batch, _, height, width = features.shape
        size = [
            (side - 1) * self.stride + self.dilation * (self.kernel_size - 1) + 1 - 2 * padding + added
            for side, padding, added in zip((height, width), self.padding, self.output_padding, strict=True)
        ]
        regions = None if self.regions is None else Regions((height, width), self.regions)
        output = features.new_zeros(batch, layer.out_type.size, *size)
        for pixel in itertools.product(range(height), range(width)):
            for number, tap in enumerate(self.taps()):
                place = [
                    x * self.stride + t * self.dilation - padding
                    for x, t, padding in zip(pixel, divmod(number, self.kernel_size), self.padding, strict=True)
                ]
                if all(0 <= y < side for y, side in zip(place, size, strict=True)):
                    bank = self._bank_of_pixel(tap, pixel, (height, width), regions)
                    value = features[:, :, pixel[0], pixel[1]]
                    output[:, :, place[0], place[1]] += self._given(bank, value)
        bias = layer.expanded_bias()
        return output if bias is None else output + bias.view(-1, 1, 1)

    def _bank_of_pixel(self, tap: Point, pixel: Pixel, size: tuple[int, int], regions: Regions | None) -> Tensor:
        if regions is None:
            return self.bank(tap, self.position(pixel, size))
        return torch.stack([self._bank_of_region(tap, regions, region) for region in regions.at(pixel)]).mean(dim=0)

    def _given(self, bank: Tensor, value: Tensor) -> Tensor:
        """Return the share of a group of the input in its group of the output."""
        parts = zip(bank.chunk(self.groups, dim=1), value.chunk(self.groups, dim=1), strict=True)
        return torch.cat([value @ part.mT for part, value in parts], dim=1)
