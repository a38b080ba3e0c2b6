"""K_strict plus a free map, for linear maps between fields whose channels belong to no group elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import torch
from escnn.group import GroupElement
from torch import Tensor, nn

from .config import KernelConfig, Names, WeightGroup
from .kernel import Kernel
from .linear_map_means import mean_of_maps
from .strict import StrictKernel

# A part of a random map below this is rounding.
_ROUNDING = 1e-9


class FreeKernel(StrictKernel):
    """K = K_strict + F − PF, with a free matrix F, ``free_weight``.

    P is the mean over the whole group, so that PK = K_strict. It is exact, for continuous groups too. A layer that
    keeps a subgroup has the mean of F over it in the place of F, and so has one that is strict in a subgroup.

    Args:
        config: fields of features without a base space, and their group.

    Example:
        >>> from escnn import gspaces, group, nn
        >>> from escnn_relaxed import RelaxedLinear
        >>> space = gspaces.no_base_space(group.so3_group(1))
        >>> fields = nn.FieldType(space, [space.irrep(1)] * 2)
        >>> layer = RelaxedLinear(fields, fields, initial_softness=0.1)
        >>> (
        ...     type(layer.kernel).__name__,
        ...     layer.kernel.free_weight.shape,
        ...     round(layer.softness().item(), 4),
        ... )
        ('FreeKernel', torch.Size([6, 6]), 0.1)
    """

    default_softness = 0.01

    def __init__(self, config: KernelConfig) -> None:
        super().__init__(config)
        domain = config.domain
        names = [name for name in domain.fiber_subgroups if name in config.relax]
        self._strict_in = [name for name in domain.sample.subgroups if name not in names]
        self.free_weight = nn.Parameter(torch.zeros(config.out_type.size, config.in_type.size))
        choices = [choice for count in range(len(names) + 1) for choice in combinations(names, count)]
        means = {"_".join(choice): mean_of_maps(config, (*self._strict_in, *choice)) for choice in choices}
        self.means = nn.ModuleDict({f"over_{name}": mean for name, mean in means.items()})
        self.relaxed_subgroups = tuple(names)
        if not self._can_be_soft():
            self.relaxed_subgroups, self.cannot_be_soft = (), tuple(config.relax)
        if self.relaxed_subgroups:
            self.relaxed_by = f"free map of {self.free_weight.numel():,} weights"

    @torch.no_grad()
    def _can_be_soft(self) -> bool:
        """Return whether some map is equivariant to the kept group, and not to the whole group."""
        generator = torch.Generator().manual_seed(0)
        maps = torch.randn(*self.free_weight.shape, 1, generator=generator, dtype=torch.float64, device="cpu")
        kept, strict = (self._over(names).double()(maps) for names in ((), self.relaxed_subgroups))
        for mean in self.means.values():
            mean.to(self.free_weight)
        return bool((kept - strict).abs().max() > _ROUNDING)

    def _over(self, names: Sequence[str]) -> nn.Module:
        """Return the mean over the given, the kept and the strict subgroups."""
        return self.means[f"over_{'_'.join(name for name in self.relaxed_subgroups if name in names)}"]

    def forward(self, weights: Tensor | None, averaged: Sequence[str] = ()) -> Tensor:
        """Return K, (C_out, C_in, 1)."""
        strict, free = super().forward(weights), self.free_weight.unsqueeze(-1)
        if not {*self.relaxed_subgroups} <= {*averaged}:
            return strict + (self._over(averaged)(free) - self._over(self.relaxed_subgroups)(free))
        # Distributed training waits for the gradient of each parameter, here 0.
        return strict + 0 * free.sum() if self.training else strict

    def element_energies(
        self, weights: Tensor | None, hardened: Names, elements: Sequence[GroupElement]
    ) -> tuple[Tensor, Tensor]:
        """Return ‖hK − K‖² for each element h, and ‖K‖²."""
        return Kernel.element_energies(self, weights, hardened, elements)

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield F."""
        yield self.free_weight

    def weight_groups(self) -> list[WeightGroup]:
        """Return F, which belongs to all subgroups together."""
        entries = [(self.free_weight, torch.arange(self.free_weight.numel()))]
        return (
            [WeightGroup(frozenset(self.relaxed_subgroups), entries, needs_all=True)] if self.relaxed_subgroups else []
        )

    def describe(self) -> dict[str, Any]:
        """Return the settings on which the meaning of a state dict depends."""
        # P is exact, whatever the samples of a continuous group.
        return {**super().describe(), "samples": None, "soft part": "free"}
