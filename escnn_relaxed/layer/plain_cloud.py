"""The plain form of a convolution of clouds, this package's or escnn's: on tensors, without escnn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..group.edges import shells
from ..integral.edges import CloudConvolution, EdgeFunctions, NodeFactors
from ..kernel.point_kernel import PointBasis, PointKernel
from ..on_escnn.point_sampler import ShellFunctions
from .gate import Terms


@torch.no_grad()
def plain_convolution(kernel: PointKernel, weights: Tensor, bias: Tensor | None, terms: Terms) -> CloudConvolution:
    """Return the plain form of the sum of averages of a kernel, each with its coefficient."""
    functions, strict = kernel.basis.in_shell_functions(weights)
    banks, polynomials, factors = [], [], None
    for is_soft in (False, True):
        # f_T is the same for all averages that have it.
        some = {names: c for names, c in terms.items() if kernel.varies(names) is is_soft}
        if some:
            bank, polynomial = kernel.in_monomials(strict, some)
            banks.append(bank)
            polynomials.append(polynomial)
            factors = _factors(kernel, weights) if is_soft else None
    polynomial = torch.cat(polynomials)
    degrees = kernel.modulation.degrees if kernel.modulation is not None and polynomial.shape[1] > 1 else ()
    return _on_tensors(functions, torch.cat(banks), bias, weights, polynomial.T, degrees, factors, len(banks))


@torch.no_grad()
def plain_strict_convolution(layer: Any) -> CloudConvolution:
    """Return the plain form of escnn's convolution of clouds."""
    points = shells(layer._rings, layer.in_type.gspace.dimensionality)
    basis = PointBasis(layer.in_type, layer.out_type, layer.basissampler, points)
    bias = layer.expand_bias()
    return _on_tensors(*basis.to(layer.weights.device).in_shell_functions(layer.weights), bias, layer.weights)


def _on_tensors(
    functions: ShellFunctions,
    bank: Tensor,
    bias: Tensor | None,
    like: Tensor,
    polynomial: Tensor | None = None,
    degrees: tuple[int, ...] = (),
    factors: NodeFactors | None = None,
    blocks: int = 1,
) -> CloudConvolution:
    """Return the module with the functions that are used, in the dtype of a layer."""
    used = bank.flatten(0, 1).any(0).nonzero().flatten()
    weight = bank[:, :, used].permute(2, 1, 0)
    edges = EdgeFunctions(*functions, used=used)
    along = polynomial if degrees else None
    plain = CloudConvolution(edges, weight, bias, along, degrees, factors, blocks)
    return plain.to(device=like.device, dtype=like.dtype).eval()


def _factors(kernel: PointKernel, like: Tensor) -> NodeFactors:
    """Return f_T as a module on plain tensors."""
    of = kernel.position_modulation
    if of is None:
        raise RuntimeError("translation is strict")
    scale = kernel.frequency.scale(("translation",) * kernel.config.domain.dimension, of.like)
    return NodeFactors(of.action, scale, of.means(scale, of), of.node_coefficients(), of.radius, of.orbit)
