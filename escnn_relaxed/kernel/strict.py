"""The strict kernel in the basis of ``R2Conv``, weight for weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..group.regions import RegionPartition
from ..on_escnn.sampled_basis import check_basis_arguments, refuse_emptied_basis, sampled_basis
from .kernel import Kernel, KernelPlace
from .steerable_basis import SteerableBasis

__all__ = ["StrictKernel"]


class StrictKernel(Kernel):
    """K of ``R2Conv``: a sum of the elements of its steerable basis, with its weights.

    Args:
        place: where the kernel stands.
        basis: the steerable basis; by default escnn's for this place.

    Example:
        >>> from escnn import gspaces
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
        >>> layer = RelaxedR2Conv(image, image, 3, relax=None, kernel=StrictKernel)
        >>> layer.kernel(layer.weights).shape
        torch.Size([1, 1, 3, 3])
    """

    basis: SteerableBasis

    def __init__(self, place: KernelPlace, basis: SteerableBasis | None = None) -> None:
        super().__init__(place)
        self.basis = _steerable_basis(place) if basis is None else basis

    def forward(
        self, weights: Tensor | None, partition: RegionPartition | None = None, averaged: Sequence[str] = ()
    ) -> Tensor:
        """Return K, (C_out, C_in, k, …)."""
        kernel: Tensor = self.basis(weights)
        return kernel

    def energies(
        self, weights: Tensor | None, hardened: Sequence[str], averaged: Sequence[str]
    ) -> tuple[Tensor, Tensor]:
        """Return ‖K − PK‖² = 0 and ‖PK‖²."""
        energy = self.orthogonal_basis.energy(self(weights))
        return energy * 0, energy

    def start_weights(self) -> Tensor:
        """Return weights drawn as ``R2Conv`` draws them."""
        return self.basis.start_weights().to(torch.get_default_dtype())

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield nothing."""
        yield from ()

    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function the tensors of a state dict stand for."""
        return {**super().describe(), "fingerprint of the steerable basis": self.basis.fingerprint}


def _steerable_basis(place: KernelPlace) -> SteerableBasis:
    """Return escnn's basis for a place, whose arguments are checked."""
    given = {**dict.fromkeys(("sigma", "frequencies_cutoff", "rings", "basis_filter")), "recompute": False}
    if place.domain.dimension == 2:
        given["maximum_offset"] = None
    arguments = check_basis_arguments(
        place.kernel_size, place.dilation, {**given, **place.basis_arguments}, place.domain.dimension
    )
    at = place.in_type, place.out_type, place.kernel_size, place.dilation
    basis = SteerableBasis(*at, sampled_basis(*at, **arguments))
    if not basis.dimension:
        refuse_emptied_basis(*at, **arguments)
    return basis
