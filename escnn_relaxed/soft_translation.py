"""A kernel that depends on the position, applied to a feature map in the way that costs least; runs without escnn."""

from __future__ import annotations

import torch
from torch import Tensor

from .bank_first import BankFirst
from .basis_first import BasisFirst
from .contraction import KernelContraction
from .integral_operator import image_size, integrate_non_stationary
from .positional_kernel import PositionalKernel
from .precision import full_precision
from .tracing import has_no_values, is_traced

__all__ = ["choose_contraction", "integrate_soft_translation"]


def integrate_soft_translation(features: Tensor, kernel: PositionalKernel, bias: Tensor | None) -> Tensor:
    """h(x) = Σ_d K(d; y) f(y) on a feature map.

    In tiles, in the cheaper order of contraction. Compilers, exporters, traces and the transforms of ``torch.func``
    see the plain sum over taps instead, which consists of operations that they know.

    Args:
        features: f, (batch, C_in, H, W).
        kernel: K.
        bias: (C_out,) or None.
    """
    if has_no_values() or is_traced() or features.is_meta or features.numel() == 0:
        size = image_size(features)
        return integrate_non_stationary(features, kernel.bank_at(size), kernel.taps(), bias, kernel.geometry)
    features = features.to(_product_dtype(features))
    with full_precision(features):
        return choose_contraction(kernel, features).integrate(features, bias)


def choose_contraction(kernel: PositionalKernel, features: Tensor) -> KernelContraction:
    """The order that costs less for this layer and batch: multiplications, and values moved at 45 of them each.

    Args:
        kernel: of the layer.
        features: f, (batch, C_in, H, W).
    """
    orders: list[type[KernelContraction]] = [BankFirst, BasisFirst]
    best = min(orders, key=lambda order: order.cost(kernel, features.shape[0]))
    return best(kernel, image_size(features), features.shape[0])


def _product_dtype(features: Tensor) -> torch.dtype:
    """The type in which autocast multiplies."""
    device = features.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else features.dtype
