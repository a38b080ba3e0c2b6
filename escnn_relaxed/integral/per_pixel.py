"""Soft translation with a kernel of its own for every pixel: equation (1) as it stands, or its adjoint, slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional

from ..kernel.filter_bank import ContinuousFilterBank
from ..torch_modes import full_precision
from .stationary import ConvolutionGeometry, PlanarGeometry, TransposedGeometry, image_size

__all__ = ["PixelKernel", "integrate_per_pixel"]


@dataclass(frozen=True)
class PixelKernel:
    """K(d; x) = strict(d) + κ(d; x) at each pixel x of an output, or of the input of a transposed convolution.

    Attributes:
        bank: the continuous kernel.
        strict: a kernel that is added to it, (C_out, C_in/groups, k, k), or None.
        frequency: ω′ of each subgroup.
        hardened: subgroups on which the kernel is projected.
    """

    bank: ContinuousFilterBank
    strict: Tensor | None
    frequency: Mapping[str, Tensor]
    hardened: Sequence[str]

    def taps(self) -> list[int]:
        """Numbers of the taps where K may be non-zero, in the order of a flattened k×k grid."""
        support = self.bank.grid.support
        return support if self.strict is None else list(range(self.strict[0, 0].numel()))

    def at(self, tap: int, positions: Tensor) -> Tensor:
        """K at a tap for positions (P, 2): (C_out, C_in/groups, P)."""
        parts = []
        if self.strict is not None:
            parts.append(self.strict.flatten(2)[..., tap, None].expand(-1, -1, len(positions)))
        if tap in self.bank.grid.support:
            with full_precision(positions):
                parts.append(self.bank.at_pixels(self.frequency, tap, positions, self.hardened))
        at_tap: Tensor = sum(parts[1:], parts[0])
        return at_tap


def integrate_per_pixel(features: Tensor, kernel: PixelKernel, bias: Tensor | None, geometry: PlanarGeometry) -> Tensor:
    """h(x) = Σ_d K(d; x) f(x + d), or its adjoint, by plain sums over taps, of one at a time a filter for every pixel.

    Args:
        features: f, (batch, C_in, H, W).
        kernel: K.
        bias: (C_out,) or None.
        geometry: where taps and pixels meet.
    """
    if isinstance(geometry, TransposedGeometry):
        result = _added(features, kernel, geometry)
    else:
        result = _gathered(features, kernel, geometry)
    # Autocast casts the bias of a convolution too.
    return result if bias is None else result + bias.to(result.dtype).view(-1, 1, 1)


def _gathered(features: Tensor, kernel: PixelKernel, geometry: ConvolutionGeometry) -> Tensor:
    """Σ_d K(d; x) f(x + d)."""
    height, width = geometry.output_size(*image_size(features))
    padded = geometry.pad(features)
    groups = geometry.groups
    positions = kernel.bank.grid.pixel_grid(height, width)
    parts = []
    for tap in kernel.taps():
        rows, columns = geometry.window(tap, height, width)
        # A matrix product for each position and group; contiguous, or bmm copies matrix by matrix.
        bank = rearrange(kernel.at(tap, positions), "(group o) i p -> (p group) o i", group=groups).contiguous()
        values = padded[:, :, rows, columns]
        values = rearrange(values, "batch (group i) h w -> (h w group) i batch", group=groups).contiguous()
        parts.append(torch.bmm(bank, values))
    output: Tensor = sum(parts[1:], parts[0])
    return rearrange(output, "(h w group) o batch -> batch (group o) h w", h=height, w=width, group=groups)


def _added(features: Tensor, kernel: PixelKernel, geometry: TransposedGeometry) -> Tensor:
    """What K(d; x) f(x) adds to the output for each pixel x of the input and tap d."""
    height, width = image_size(features)
    groups = geometry.groups
    positions = kernel.bank.grid.pixel_grid(height, width)
    values = rearrange(features, "batch (group i) h w -> (h w group) i batch", group=groups).contiguous()
    parts = {}
    for tap in kernel.taps():
        bank = rearrange(kernel.at(tap, positions), "o (group i) p -> (p group) o i", group=groups).contiguous()
        parts[tap] = rearrange(torch.bmm(bank, values), "(p group) o batch -> batch (group o) p", group=groups)
    nothing = torch.zeros_like(next(iter(parts.values())))
    taps = torch.stack([parts.get(tap, nothing) for tap in range(geometry.kernel_size**2)], dim=2)
    rows, columns = geometry.output_size(height, width)
    (top, left), (below, right) = geometry.padding, geometry.output_padding
    # `fold` adds up the whole output, of which the padding is cut away; what is added behind may be within it.
    whole = rows + 2 * top - below, columns + 2 * left - right
    output = functional.fold(
        taps.flatten(1, 2), whole, geometry.kernel_size, dilation=geometry.dilation, stride=geometry.stride
    )
    return functional.pad(output, (-left, right - left, -top, below - top))
