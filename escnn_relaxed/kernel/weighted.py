"""Relaxed group convolution: a sum of kernels whose weights depend on the group element (Wang et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from scipy.linalg import helmert
from torch import Tensor, nn

from ..checks import check_integer
from ..group.domain import GroupMeans
from ..group.fields import channel_elements
from .config import KernelConfig, WeightGroup
from .kernel import KernelBuilder, scale_to
from .strict import RelaxingKernel, StrictKernel


class _ElementWeights(GroupMeans):
    """Functions of the group elements, and the elements of the channels of both sides."""

    of_columns: Tensor
    of_rows: Tensor
    weighs_columns: Tensor


class WeightedKernel(RelaxingKernel):
    """K = Σ_l w_l(g′) K_l, w_l = a_l + Σ_i b_li c_i, with orthonormal functions c of mean 0 on the group."""

    relaxation_name = "weighted"
    further: Any
    elements: _ElementWeights

    def __init__(self, config: KernelConfig, strict: KernelBuilder = StrictKernel, banks: int = 2) -> None:
        others = range(1, check_integer("banks", banks, 1))
        super().__init__(config, strict)
        sides, sample = (config.in_type.representations, config.out_type.representations), config.domain.sample
        (in_elements, in_has_any), (out_elements, out_has_any) = (channel_elements(fields, sample) for fields in sides)
        # With one element there is nothing to tell apart.
        if len(sample) > 1 and not (in_has_any.all() or out_has_any.all()):
            names = [[field.name for field in fields] for fields in sides]
            raise ValueError(
                f"in_type or out_type must be of regular and quotient fields, whose channels are the group elements "
                f"that weights are for, got {names[0]} and {names[1]}"
            )
        self.elements = _ElementWeights(config.domain, helmert(len(sample)))
        self.elements.set_constant("of_columns", in_elements.T)
        self.elements.set_constant("of_rows", out_elements.T)
        self.elements.set_constant("weighs_columns", in_has_any[:, None])
        self._weighs_columns_alone = bool(in_has_any.all())
        # a and b.
        self.means = nn.Parameter(torch.zeros(banks))
        self.deviations = nn.Parameter(torch.zeros(banks, len(sample) - 1))
        # The weights of the first K_l are the layer's, of the others here or their own; they are drawn at the start.
        with torch.random.fork_rng(devices=[]):
            weights = None if self.basis is None else self.basis.start_weights()
        self.further_weights = nn.ParameterList([] if weights is None else [torch.zeros_like(weights) for _ in others])
        self.further = nn.ModuleList([strict(self.strict.config) for _ in others] if weights is None else [])

    def group_weights(self, averaged: Sequence[str] = ()) -> Tensor:
        """Return w of each element, (L, M), or their means over some subgroups."""
        return torch.addmm(self.means[:, None], self.deviations, self.elements.averaged(averaged))

    def forward(self, weights: Tensor | None, averaged: Sequence[str] = ()) -> Tensor:
        """Return K, (C_out, C_in, T); its mean over subgroups has the means of the weights."""
        kernels = [self.strict(values) for values in (weights, *self.further_weights)]
        kernels += [kernel(None) for kernel in self.further]
        weights_of_elements, elements = self.group_weights(averaged), self.elements
        factors = (weights_of_elements @ elements.of_columns)[:, None, :, None]
        if not self._weighs_columns_alone:
            rows = (weights_of_elements @ elements.of_rows)[:, :, None, None]
            factors = torch.where(elements.weighs_columns, factors, rows)
        parts = [factor * kernel for factor, kernel in zip(factors, kernels, strict=True)]
        return sum(parts[1:], parts[0])

    @property
    def relaxed_by(self) -> str:  # type: ignore[override]
        """The number of weights, in words."""
        count, others = self.deviations.shape
        return f"weights of {others + 1} elements, {count} kernel{'s' if count > 1 else ''}"

    def weight_groups(self) -> list[WeightGroup]:
        """Return b, which belongs to all subgroups together."""
        numbers = torch.arange(self.deviations.numel())
        group = WeightGroup(frozenset(self.relaxed_subgroups), [(self.deviations, numbers)], needs_all=True)
        return [group] if len(numbers) else []

    @torch.no_grad()
    def start(self, weights: Tensor | None, softness: float) -> None:
        """Draw all weights so that the softness is s: a is 1/√L, which keeps the variance of one strict kernel."""
        super().start(weights, softness)
        if self.basis is not None:
            for further in self.further_weights:
                further.copy_(self.basis.start_weights())
        for kernel in self.further:
            kernel.start(None, kernel.default_softness)
        count, others = self.deviations.shape
        self.means.fill_(1 / math.sqrt(count))
        self.deviations.copy_(torch.randn(count, others + 1) @ self.elements.averaged().mT)
        scale_to(self, weights, softness)

    def strict_state(self) -> dict[str, Tensor]:
        """Return weights of 1 for the first kernel and 0 for the others."""
        first = (torch.arange(len(self.means)) == 0).to(self.means)
        return {"means": first, "deviations": torch.zeros_like(self.deviations)}
