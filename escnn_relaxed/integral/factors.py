"""The integral: one convolution, and where translation is soft factors of its filter banks at each pixel.

Runs without escnn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional

from ..group.points import PositionFactors
from .geometry import Geometry, TransposedGeometry, image_size

# The operator by the number of axes, of a convolution and of its adjoint.
_CONVOLVE = {2: functional.conv2d, 3: functional.conv3d}
_CONVOLVE_TRANSPOSED = {2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def as_weight(banks: Tensor, geometry: Geometry, is_factored: bool = False) -> Tensor:
    """Return a filter bank (C_out, C_in/groups, T), or R of them beside factors, as the weight of a convolution."""
    sides = [geometry.kernel_size] * len(geometry.padding)
    banks = banks.unflatten(-1, sides) if sides else banks.squeeze(-1)
    if isinstance(geometry, TransposedGeometry):
        pattern = "bank out given ... -> given (bank out) ..." if is_factored else "out given ... -> given out ..."
        return rearrange(banks, pattern).contiguous()
    if not is_factored or len(banks) == 1:
        return banks[0] if is_factored else banks
    # The outputs of a group follow each other bank by bank.
    return rearrange(banks, "bank (group out) ... -> (group bank out) ...", group=geometry.groups)


def integrate(
    features: Tensor,
    weight: Tensor,
    factors: Tensor | None,
    bias: Tensor | None,
    geometry: Geometry,
    gates: Sequence[Tensor] = (),
) -> Tensor:
    """Return h(x) = Σ_r F_r(x) g_r(x) Σ_d B_r(d) f(x + d), or its adjoint.

    Args:
        features: (batch, C_in, …).
        weight: B of R banks, as :func:`as_weight` returns it.
        factors: F of the last banks, (R, C_out, pixels along each axis); None for 1.
        bias: (C_out,) or None.
        geometry: of the convolution.
        gates: g of the last banks, which broadcast to (batch, 1, pixels along each axis); none for 1.
    """
    padding, stride, dilation, groups = geometry.padding, geometry.stride, geometry.dilation, geometry.groups
    is_plain = factors is None and not gates
    alone = bias if is_plain else None
    if not padding:
        products = functional.linear(features, weight, alone)
    elif isinstance(geometry, TransposedGeometry):
        transposed = _CONVOLVE_TRANSPOSED[len(padding)]
        products = transposed(features, weight, alone, stride, padding, geometry.output_padding, groups, dilation)
    else:
        if geometry.padding_mode != "zeros":
            features, padding = geometry.pad(features), (0,) * len(padding)
        products = _CONVOLVE[len(padding)](features, weight, alone, stride, padding, dilation, groups)
    return products if is_plain else _sum_of_banks(products, factors, bias, geometry, gates)


def _sum_of_banks(
    products: Tensor, factors: Tensor | None, bias: Tensor | None, geometry: Geometry, gates: Sequence[Tensor]
) -> Tensor:
    """Return the sum of the outputs of R banks, (batch, R · C_out, …), times their factors and gates."""
    groups = geometry.groups
    # All groups of an adjoint have the same factors.
    of_groups = 1 if isinstance(geometry, TransposedGeometry) else groups
    count = 1 + len(gates) if factors is None else products.shape[1] // (factors.shape[1] // of_groups * groups)
    # The bank follows the group, and the channels of a group follow it.
    products = products.unflatten(1, (groups, count, -1))
    # One product is no part of a stack: unbinding it would take an operation more in the backward pass.
    of_banks = products.unbind(2) if count > 1 else (products.squeeze(2),)
    # (batch, 1, pixels) → (batch, group, channel, pixels)
    scales = [gate.to(products.dtype).unsqueeze(1) for gate in gates]
    if factors is not None:
        of_channels = factors.to(products.dtype).unflatten(1, (of_groups, -1))
        scales = [f * g for f, g in zip(of_channels, scales, strict=True)] if gates else [*of_channels]
    axes = products.dim() - 4
    added = products.new_zeros(1) if bias is None else bias.to(products.dtype).view(groups, -1, *[1] * axes)
    alone = count - len(scales)
    for product in of_banks[:alone]:
        added = product if bias is None else added + product
    for product, scale in zip(of_banks[alone:], scales, strict=True):
        added = torch.addcmul(added, product, scale)
    return added.flatten(1, 2)


class FactoredConvolution(nn.Module):
    """A convolution, or its adjoint, with factors of its filter banks at each pixel."""

    def __init__(self, weight: Tensor, bias: Tensor | None, geometry: Geometry, factors: PositionFactors) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = None if bias is None else nn.Parameter(bias.clone())
        self.geometry = geometry
        self.factors = factors

    def forward(self, features: Tensor) -> Tensor:
        """Apply the convolution: (batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        factors = self.factors(self.geometry.output_size(*image_size(features)))
        return integrate(features, self.weight, factors, self.bias, self.geometry)
