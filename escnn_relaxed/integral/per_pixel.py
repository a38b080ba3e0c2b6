"""Soft translation with a kernel for every pixel: equation (1) word for word, the paper's form. It is slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from einops import rearrange
from torch import Tensor

from ..kernel.soft_part import SoftPart
from ..torch_modes import full_precision
from .stationary import ConvolutionGeometry, image_size

__all__ = ["PixelKernel", "integrate_per_pixel"]


@dataclass(frozen=True)
class PixelKernel:
    """K(d; x) at each pixel x of an output.

    Attributes:
        bank: the soft part.
        strict: the strict part beside it, (C_out, C_in/groups, k, k), or None.
        frequency: ω′ of each subgroup.
        hardened: subgroups to which the kernel is made equivariant.
    """

    bank: SoftPart
    strict: Tensor | None
    frequency: Mapping[str, Tensor]
    hardened: Sequence[str]

    def taps(self) -> list[int]:
        """Return the numbers of the taps where K may be non-zero, in the order of a flattened k×k grid."""
        return self.bank.taps if self.strict is None else list(range(self.strict[0, 0].numel()))

    def at(self, tap: int, positions: Tensor) -> Tensor:
        """Return K at a tap for positions (P, 2): (C_out, C_in/groups, P)."""
        strict = None if self.strict is None else self.strict.flatten(2)
        with full_precision(positions):
            return self.bank.at_pixels(self.frequency, tap, positions, self.hardened, strict)


def integrate_per_pixel(
    features: Tensor, kernel: PixelKernel, bias: Tensor | None, geometry: ConvolutionGeometry
) -> Tensor:
    """Return h(x) = Σ_d K(d; x) f(x + d) by a plain sum over taps, with a matrix for every pixel at each of them.

    Args:
        features: f, the feature map, (batch, C_in, H, W).
        kernel: K.
        bias: (C_out,) or None.
        geometry: padding, stride and the like.
    """
    size = geometry.output_size(*image_size(features))
    padded = geometry.pad(features)
    groups = geometry.groups
    positions = kernel.bank.grid.pixel_grid(*size)
    parts = []
    for tap in kernel.taps():
        # One matrix product for each position and group. Contiguous, since otherwise bmm copies matrix by matrix.
        bank = rearrange(kernel.at(tap, positions), "(group o) i p -> (p group) o i", group=groups).contiguous()
        values = padded[geometry.slices(tap, size)].flatten(2)
        values = rearrange(values, "batch (group i) p -> (p group) i batch", group=groups).contiguous()
        parts.append(torch.bmm(bank, values))
    output: Tensor = sum(parts[1:], parts[0])
    result = rearrange(output, "(p group) o batch -> batch (group o) p", p=prod(size), group=groups)
    # Autocast casts the bias of a convolution too.
    added = result if bias is None else result + bias.to(result.dtype).view(-1, 1)
    return added.unflatten(2, size)
