"""Residual pathway: a strict kernel plus a free one that a prior keeps small (Finzi, Benton & Wilson 2021)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from escnn.nn import FieldType
from torch import Tensor, nn

from ..checks import check_module, check_positive
from ..kernel.sampled_basis import sampled_basis
from ..kernel.steerable_basis import SteerableBasis
from ..layer.arguments import check_softness
from ..layer.default_device import built_on_the_cpu
from .group_mean import KernelMean
from .nearest_steerable import nearest_steerable
from .strict_kernel import BaselineConvolution, StrictKernel, strict_layer

__all__ = ["ResidualR2Conv", "free_weight_penalty"]


class ResidualR2Conv(BaselineConvolution):
    r"""A strict convolution and a free one side by side, in one filter bank.

    .. math::
        K(d) = K_{strict}(d) + F(d)

    F is any kernel. It has one weight for each channel pair and tap, with the prior N(0, σ²), whose negative logarithm
    is :func:`free_weight_penalty`. With F = 0 the layer is strict. It is defined for every field type and group.
    Translations stay exact, because a free kernel for each position would depend on the size of the image.

    The method is that of Finzi, Benton and Wilson, "Residual Pathway Priors for Soft Equivariance Constraints" (arXiv
    2112.01388, NeurIPS 2021).
    The layer has as many free weights as a ``Conv2d``: ``|G|`` times those of a strict layer of regular fields, or
    more.

    Args:
        in_type: field type of the input.
        out_type: field type of the output, on the same gspace.
        kernel_size: k, odd or even.
        padding: pixels on both sides, an integer or a pair (rows, columns).
        initial_softness: ‖F‖² / ‖K‖² at the start, an upper bound on the part of K that is not equivariant.
        **keywords: ``R2Conv``'s further arguments by keyword, and those of a strict
            :class:`~escnn_relaxed.RelaxedR2Conv`: ``strict_kernel``, ``samples``, ``kernel``.

    Attributes:
        free_weight: F, (C_out, C_in/groups, k, k).

    Raises:
        TypeError: for an argument of the wrong type, or an unknown one.
        ValueError: for a value that has no meaning.

    Shape:
        GeometricTensor (batch, C_in, H, W) → (batch, C_out, H_out, W_out).

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.flipRot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = ResidualR2Conv(fields, fields, 3, padding=1)
        >>> layer(fields(torch.randn(2, 8, 28, 28))).shape
        torch.Size([2, 8, 28, 28])
    """

    @built_on_the_cpu
    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int] = 0,
        *,
        initial_softness: float = 0.01,
        **keywords: Any,
    ) -> None:
        layer = strict_layer("ResidualR2Conv", in_type, out_type, kernel_size, padding, keywords)
        super().__init__(layer)
        softness = check_softness(initial_softness)
        self.strict = StrictKernel(layer)
        place = self.geometry.kernel_size, self.geometry.dilation
        self.mean = KernelMean(self.space, self.kernel_types[0].representations, out_type.representations, *place)
        with torch.no_grad():
            strict = self.strict()
            free = torch.randn_like(strict)
            free *= math.sqrt(softness / (1 - softness)) * strict.norm() / free.norm()
        self.free_weight = nn.Parameter(free)

    def projected_bank(self, subgroups: tuple[str, ...]) -> Tensor:
        """Return PK, (C_out, C_in/groups, k, k): the strict kernel plus the strict part of the free one."""
        bank: Tensor = self.strict() + self._strict_part(self.free_weight, subgroups)
        return bank

    def _strict_part(self, kernel: Tensor, subgroups: tuple[str, ...]) -> Tensor:
        """Return PF: the mean over the subgroups, or ``R2Conv``'s nearest kernel where they do not map taps to taps."""
        names = tuple(name for name in self.relaxed_subgroups if name in subgroups)
        if not names:
            return kernel
        if self.mean.is_defined(names):
            mean: Tensor = self.mean(kernel, names)
            return mean
        return nearest_steerable(kernel, self._steerable_basis(names), self.orthogonal_basis)

    def _steerable_basis(self, subgroups: tuple[str, ...]) -> SteerableBasis:
        """Return the basis of kernels steerable for these subgroups: the strict kernel's own, else ``R2Conv``'s."""
        if subgroups == self.relaxed_subgroups and isinstance(self.strict.source, SteerableBasis):
            return self.strict.source
        in_type, out_type = self.in_type, self.out_type
        if subgroups != self.relaxed_subgroups:
            subgroup = (None, self.space.rotations_order) if subgroups == ("rotation",) else (0, 1)
            in_type, out_type = in_type.restrict(subgroup), out_type.restrict(subgroup)
        place = in_type, out_type, self.kernel_size, self.geometry.dilation, self.groups
        return SteerableBasis(*place, sampled_basis(*place, rings=None, frequencies_cutoff=None)).to(self.free_weight)

    @property
    def relaxed_by(self) -> str:
        """The size of the free kernel, in words."""
        return f"free kernel of {self.free_weight.numel():,} weights"

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the weights that relax the strict kernel."""
        yield self.free_weight

    def make_strict(self) -> None:
        """Set the free kernel to 0 in place; training may relax the layer again."""
        with torch.no_grad():
            self.free_weight.zero_()


def free_weight_penalty(network: nn.Module, deviation: float = 1.0) -> Tensor:
    """Return the loss of the prior on free kernels: Σ ‖F‖² / 2σ² over layers, −log N(F; 0, σ²) up to a constant.

    Args:
        network: any module with :class:`ResidualR2Conv` in it.
        deviation: σ, the standard deviation of the prior; the smaller, the closer to strict.

    Returns:
        A differentiable tensor without dimensions.

    Raises:
        TypeError: for a network that is no module, or a σ that is no number.
        ValueError: for a network without such a layer, or a σ that is not finite and positive.

    Example:
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = ResidualR2Conv(fields, fields, 3)
        >>> layer.make_strict()
        >>> free_weight_penalty(layer).item()
        0.0
    """
    check_positive("deviation", deviation)
    layers = [module for module in check_module("network", network).modules() if isinstance(module, ResidualR2Conv)]
    if not layers:
        raise ValueError("network has no ResidualR2Conv, and so no free weights")
    return torch.stack([layer.free_weight.square().sum() for layer in layers]).sum() / (2 * deviation**2)
