"""Residual pathway: a strict kernel plus a free one that a prior keeps small (Finzi, Benton & Wilson 2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from escnn.group import O2, O3, DihedralGroup
from escnn.gspaces import GSpace
from torch import Tensor, nn

from ..group.elements import grid_symmetries
from ..group.exact_constants import ExactConstants
from ..group.linear_maps import GroupAverage, OrthogonalBasis
from ..on_escnn.sampled_basis import sampled_basis
from .config import KernelConfig, WeightGroup
from .kernel import KernelBuilder, scale_to
from .steerable_basis import SteerableBasis, field_named
from .strict import RelaxingKernel, StrictKernel

# Directions of a basis that are smaller than this part of the largest count as dependent on the others.
_DEPENDENT = 1e-10


class ResidualKernel(RelaxingKernel):
    """K = K_strict + F, with any kernel F, ``free_weight``."""

    relaxation_name = "residual"

    def __init__(self, config: KernelConfig, strict: KernelBuilder = StrictKernel) -> None:
        super().__init__(config, strict)
        sides = [config.kernel_size] * config.in_type.gspace.dimensionality
        self.free_weight = nn.Parameter(torch.zeros(config.out_type.size, config.in_type.size, *sides))
        choices = dict.fromkeys([*((name,) for name in self.relaxed_subgroups), self.relaxed_subgroups])
        self.projections = nn.ModuleDict({"_".join(names): self._projection(names) for names in choices if names})

    def forward(self, weights: Tensor | None, averaged: Sequence[str] = ()) -> Tensor:
        """Return K, (C_out, C_in, T); its mean over subgroups has the mean of F, or the nearest strict kernel."""
        return self.strict(weights) + self._projected(averaged)

    def _free(self) -> Tensor:
        """Return F, (C_out, C_in, T)."""
        return self.free_weight.view(*self.free_weight.shape[:2], -1)

    def _projected(self, averaged: Sequence[str]) -> Tensor:
        """Return PF."""
        name = "_".join(name for name in self.relaxed_subgroups if name in averaged)
        if not name:
            return self._free()
        projected: Tensor = self.projections[name](self._free())
        return projected

    def _projection(self, subgroups: tuple[str, ...]) -> nn.Module:
        """Return P: the mean where all elements map taps to taps, else the nearest kernel of ``R2Conv``'s basis."""
        config, domain = self.config, self.config.domain
        at = config.in_type, config.out_type, config.kernel_size, config.dilation
        if not (domain.gspace.fibergroup.continuous and "rotation" in subgroups):
            identity = np.abs(domain.sample.action - np.eye(domain.dimension)).max((1, 2)).argmin()
            elements = [domain.sample.elements[number] for number in domain.translates(subgroups)[identity]]
            symmetries = grid_symmetries(config.in_type.gspace, config.taps, elements)
            if len(symmetries) == len(elements):
                return GroupAverage(config.in_type.representations, config.out_type.representations, symmetries)
        if subgroups != self.relaxed_subgroups:
            restriction = _subgroup(config.in_type.gspace, subgroups)
            at = config.in_type.restrict(restriction), config.out_type.restrict(restriction), *at[2:]
        elif self.basis is not None:
            return NearestSteerable(self.basis, self.orthogonal_basis)
        basis = SteerableBasis(*at, sampled_basis(*at))
        return NearestSteerable(basis, self.orthogonal_basis)

    @property
    def relaxed_by(self) -> str:  # type: ignore[override]
        """The size of the free kernel, in words."""
        return f"free kernel of {self.free_weight.numel():,} weights"

    def weight_groups(self) -> list[WeightGroup]:
        """Return F, which belongs to all subgroups together."""
        entries = [(self.free_weight, torch.arange(self.free_weight.numel()))]
        subgroups = frozenset(self.relaxed_subgroups)
        return [WeightGroup(subgroups, entries, needs_all=True)] if subgroups else []

    @torch.no_grad()
    def start(self, weights: Tensor | None, softness: float) -> None:
        """Draw F so that the softness is s."""
        super().start(weights, softness)
        strict = self.strict(weights)
        free = torch.randn_like(strict)
        size = math.sqrt(softness / (1 - softness)) * strict.norm() / free.norm()
        self.free_weight.copy_((free * size).view_as(self.free_weight))
        scale_to(self, weights, softness)

    @torch.no_grad()
    def scale_soft_part(self, factor: float) -> None:
        """Multiply F − PF by a factor; PF is strict, and stays."""
        strict = self._projected(self.relaxed_subgroups)
        soft = self._free() - strict
        self.free_weight.copy_((strict + factor * soft).view_as(self.free_weight))


def _subgroup(gspace: GSpace, subgroups: tuple[str, ...]) -> tuple[float | None, int] | str:
    """Return escnn's id of the rotations of a group, or of its reflection; a ``ValueError`` where it has no such id."""
    group = gspace.fibergroup
    if gspace.dimensionality < 3 and isinstance(group, (O2, DihedralGroup)):
        order = -1 if isinstance(group, O2) else group.rotation_order
        return (None, order) if subgroups == ("rotation",) else (0.0, 1)
    if isinstance(group, O3) and subgroups == ("rotation",):
        return "so3"
    raise ValueError(
        f"kernel: a ResidualKernel has no mean over {' and '.join(subgroups)} alone on {gspace.name}, of which not all "
        f"elements map taps to taps: take a group without reflections, or one that maps taps to taps"
    )


class NearestSteerable(ExactConstants):
    """The projection of kernels (C_out, C_in, T) on a steerable basis, where ρ is orthogonal."""

    inverses: dict[int, Tensor]

    def __init__(self, basis: SteerableBasis, orthogonal: OrthogonalBasis) -> None:
        super().__init__()
        self.basis, self.orthogonal = basis, orthogonal
        inverses = {}
        for number, (names, _, elements) in enumerate(basis.by_pair("exact")):
            in_field, out_field = (field_named(name, fields) for name, fields in zip(names, basis.fields, strict=True))
            rows = OrthogonalBasis([in_field], [out_field]).double()(elements.movedim(0, -1)).flatten(0, 2)
            gram = (rows.mT @ rows).numpy()
            inverses[number] = np.linalg.pinv(gram, rcond=_DEPENDENT, hermitian=True)
        self.set_constant("inverses", inverses)

    def forward(self, kernel: Tensor) -> Tensor:
        """Return the nearest kernel of the basis."""
        entries = self.orthogonal.adjoint(self.orthogonal(kernel))
        weights = [kernel.new_zeros(0)]
        for number, (pair, (*_, elements)) in enumerate(zip(self.basis.pairs, self.basis.by_pair(), strict=True)):
            # (o, a, i, b, taps) → (o·i, a·b·taps)
            of_pair = entries[pair.outs][:, :, pair.ins].transpose(1, 2).flatten(0, 1).flatten(1)
            products = of_pair @ elements.flatten(1).mT
            weights.append((products @ self.inverses[number]).flatten())
        return self.basis(torch.cat(weights))
