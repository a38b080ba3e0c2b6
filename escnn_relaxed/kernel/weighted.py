"""Relaxed group convolution: a sum of kernels whose weights depend on the group element (Wang et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from escnn.nn import FieldType
from torch import Tensor, nn

from ..checks import check_integer
from ..group.elements import GroupSample, sample_group
from ..group.exact_constants import ExactConstants
from ..group.field_elements import channel_elements
from ..layer.arguments import check_softness
from ..layer.default_device import built_on_the_cpu
from .group_mean import FunctionMean
from .strict_kernel import BaselineConvolution, StrictKernel, strict_layer

__all__ = ["WeightedR2Conv"]


class WeightedR2Conv(BaselineConvolution):
    r"""A sum of strict convolutions whose weights depend on the group element.

    .. math::
        K_{g, g'}(d) = \sum_l w_l(g')\, k_l(g'^{-1}d,\ g'^{-1}g)

    k_l are the kernels of L strict layers. Where the input field has no group elements (lifting, g′ is missing), the
    weight is that of the output, w_l(g). Channels of a quotient field take the mean weight of their coset. With the
    same weight at every element the layer is strict.

    The method is the relaxed group convolution of Wang, Walters and Yu, "Approximately Equivariant Networks for
    Imperfectly Symmetric Dynamics" (arXiv 2201.11969, ICML 2022).

    Args:
        in_type: field type of the input.
        out_type: field type of the output. The channels of all input fields or of all output fields must be group
            elements (regular or quotient fields).
        kernel_size: k, odd or even.
        padding: pixels on both sides, an integer or a pair (rows, columns).
        banks: L, the number of strict kernels.
        initial_softness: expected part of the energy of K that is not equivariant at the start.
        **keywords: ``R2Conv``'s further arguments by keyword, and those of a strict
            :class:`~escnn_relaxed.RelaxedR2Conv`: ``strict_kernel``, ``samples``, ``kernel``.

    Attributes:
        group_weights: w, ``(L, |G|)``.

    Raises:
        TypeError: for an argument of the wrong type, or an unknown one.
        ValueError: for a value that has no meaning, or fields whose channels are not group elements.

    Shape:
        GeometricTensor (batch, C_in, H, W) → (batch, C_out, H_out, W_out).

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR2(8)
        >>> in_type = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> out_type = nn.FieldType(gspace, [gspace.regular_repr] * 4)
        >>> layer = WeightedR2Conv(in_type, out_type, 5, padding=2, banks=3)
        >>> layer(in_type(torch.randn(2, 1, 28, 28))).shape, layer.group_weights.shape
        (torch.Size([2, 32, 28, 28]), torch.Size([3, 8]))
    """

    @built_on_the_cpu
    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int] = 0,
        *,
        banks: int = 2,
        initial_softness: float = 0.01,
        **keywords: Any,
    ) -> None:
        count, softness = check_integer("banks", banks, 1), check_softness(initial_softness)
        place = in_type, out_type, kernel_size, padding
        layers = [strict_layer("WeightedR2Conv", *place, keywords) for _ in range(count)]
        super().__init__(layers[0])
        sample = sample_group(self.space, samples=1)
        self.entries = _EntryWeights(self.kernel_types[0].representations, out_type.representations, sample)
        self.mean = FunctionMean(sample)
        self.strict = nn.ModuleList(map(StrictKernel, layers))
        self.group_weights = nn.Parameter(_starting_weights(count, len(sample), softness))

    def projected_bank(self, subgroups: tuple[str, ...]) -> Tensor:
        """Return PK, (C_out, C_in/groups, k, k): P replaces weights by their means over the subgroups."""
        weights = self.entries(self.mean(self.group_weights, subgroups))
        parts = [weight[..., None, None] * kernel() for weight, kernel in zip(weights, self.strict, strict=True)]
        bank: Tensor = sum(parts[1:], parts[0])
        return bank

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the weights on the group and those of every strict kernel but the first."""
        yield self.group_weights
        for kernel in self.strict[1:]:
            yield from kernel.parameters()

    def make_strict(self) -> None:
        """Replace the weights by their means over the group in place; training may relax the layer again."""
        with torch.no_grad():
            self.group_weights.copy_(self.group_weights.mean(dim=1, keepdim=True))

    @property
    def relaxed_by(self) -> str:
        """The number of weights, in words."""
        count, elements = self.group_weights.shape
        return f"weights of {elements} elements, {count} kernel{'s' if count > 1 else ''}"

    def extra_repr(self) -> str:
        """Return the field types, the convolution's arguments that are not default, and the number of kernels."""
        return f"{super().extra_repr()}, banks={len(self.strict)}"


class _EntryWeights(ExactConstants):
    """The map from weights of group elements, (L, M), to weights of the entries of K.

    These are (L, C_out, C_in or 1) or (L, C_out or 1, C_in).

    Args:
        in_fields: fields of (one group of) the input.
        out_fields: fields of the output.
        sample: the M elements of the group.
    """

    in_elements: Tensor
    out_elements: Tensor
    in_has_elements: Tensor

    def __init__(self, in_fields: list[Any], out_fields: list[Any], sample: GroupSample) -> None:
        super().__init__()
        in_elements, in_has_any = channel_elements(in_fields, sample)
        out_elements, out_has_any = channel_elements(out_fields, sample)
        # With one element there is nothing to tell apart.
        if len(sample) > 1 and not (in_has_any.all() or out_has_any.all()):
            names = [[field.name for field in fields] for fields in (in_fields, out_fields)]
            raise ValueError(
                f"in_type or out_type must be of regular and quotient fields, whose channels are the group elements "
                f"that weights are for, got {names[0]} and {names[1]}"
            )
        self.set_constant("in_elements", in_elements)
        self.set_constant("out_elements", out_elements)
        self.set_constant("in_has_elements", in_has_any.astype(np.int64))

    def forward(self, group_weights: Tensor) -> Tensor:
        columns = (group_weights @ self.in_elements.mT).unsqueeze(1)
        rows = (group_weights @ self.out_elements.mT).unsqueeze(2)
        return torch.where(self.in_has_elements.bool(), columns, rows)


def _starting_weights(banks: int, elements: int, softness: float) -> Tensor:
    """Return weights around 1/√L, which keeps the variance of one strict kernel. Their spread makes K this soft."""
    spread = torch.randn(banks, elements)
    spread = spread - spread.mean(dim=1, keepdim=True)
    energy = spread.square().mean()
    scale = math.sqrt(softness / (1 - softness)) if elements > 1 else 0.0
    return (1 + scale * spread / energy.sqrt().clamp_min(1e-12)) / math.sqrt(banks)
