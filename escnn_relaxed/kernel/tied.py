"""The default: the strict kernel, modulated over the domain (docs/concepts/mathematics.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import SUBGROUPS
from ..group.points import tap_grid
from ..group.regions import RegionPartition
from .domain_frequency import DEFAULT_FREQUENCY, DomainFrequency
from .kernel import Kernel, KernelPlace
from .modulation import Modulation
from .strict import StrictKernel

# At a small ω′ weights are drawn at most this many times as large as at the reference, so that the kernel changes
# smoothly while a learned ω′ grows.
_LARGEST_START = 1.5


class TiedKernel(StrictKernel):
    """K = K_strict ⊙ (1 + f), with a modulation f of a few weights for each output field.

    f has no mean over the domain, so PK is K_strict. This is equation (2) for κ = (1 + m) K_strict, since K_strict is
    steerable: both parts have the same weights, as in the paper.

    Args:
        place: where the kernel stands.

    Attributes:
        modulation: f, None where no weights would make K soft.

    Example:
        >>> from escnn import gspaces
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
        >>> layer = RelaxedR2Conv(image, image, 3)
        >>> type(layer.kernel).__name__, len(layer.kernel.modulation.weights)
        ('TiedKernel', 2)
    """

    modulation: Modulation | None

    def __init__(self, place: KernelPlace) -> None:
        super().__init__(place)
        self.modulation = None
        if not place.relax:
            return
        taps = tap_grid(place.kernel_size, place.dilation, place.domain.dimension)
        modulation = Modulation(place.out_type.representations, place.domain, tuple(place.relax), taps)
        if len(modulation.weights):
            self.modulation = modulation
            self.frequency = DomainFrequency(place.relax, place.learn_relaxation, place.domain.dimension)
        else:
            self.cannot_be_soft = tuple(place.relax)

    def forward(
        self, weights: Tensor | None, partition: RegionPartition | None = None, averaged: Sequence[str] = ()
    ) -> Tensor:
        """Return K, (C_out, C_in, k, …), or in each region of an output, (regions, C_out, C_in, k, …)."""
        strict: Tensor = self.basis(weights)
        if self.modulation is None or not (self.training or self._is_soft(averaged)):
            return strict if partition is None else strict.expand(math.prod(partition.counts), *strict.shape)
        f = self.modulation(self.frequency, averaged, partition).unsqueeze(2).unflatten(-1, strict.shape[2:])
        return torch.addcmul(strict, strict, f.squeeze(0) if partition is None else f)

    def _is_soft(self, averaged: Sequence[str]) -> bool:
        """Whether f may be other than 0, as far as is known without waiting for an accelerator."""
        return len(averaged) < len(SUBGROUPS) and self.frequency.may_vary()

    def energies(
        self, weights: Tensor | None, hardened: Sequence[str], averaged: Sequence[str]
    ) -> tuple[Tensor, Tensor]:
        """Return ‖K − PK‖² and ‖PK‖² in the same unit, as means over the positions and the entries of K."""
        strict = self.orthogonal_basis(self.basis(weights))
        # A square might overflow or vanish, and a sum of squares overflow in float16.
        peak = strict.detach().abs().amax()
        of_channels = (strict / torch.where(peak > 0, peak, 1)).square().mean(1).flatten(1)
        if self.modulation is None:
            return of_channels.mean() * 0, of_channels.mean()
        cells = RegionPartition.of_cells(self.cells, self.place.domain.dimension) if self.varies(hardened) else None
        whole, projected = (self.modulation(self.frequency, names, cells) for names in (hardened, averaged))
        unit = 1 / whole.detach().abs().amax().clamp_min(1)
        soft, kept = (((part * unit).square() * of_channels).mean() for part in (whole - projected, projected))
        # The part of PK that is soft in other subgroups is orthogonal to K_strict.
        return soft, kept + of_channels.mean() * unit**2

    @torch.no_grad()
    def start(self, weights: Tensor | None, softness: float) -> None:
        """Draw the weights of f so that the softness is s; 0 where none is wanted."""
        if self.modulation is None:
            return
        nn.init.normal_(self.modulation.weights)
        factors = []
        for least in (0.0, DEFAULT_FREQUENCY):
            with self.frequency.at_least(least):
                soft, strict = (float(energy) for energy in self.energies(weights, (), SUBGROUPS))
            factors.append(math.sqrt(softness / (1 - softness) * strict / soft) if soft > 0 else math.inf)
        factor = min(factors[0], _LARGEST_START * factors[1])
        self.scale_soft_part(0.0 if math.isinf(factor) else factor)

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield ω′ where it is learned, and the weights of f."""
        yield from self.frequency.parameters()
        if self.modulation is not None:
            yield self.modulation.weights

    def weight_groups(self) -> dict[str, list[tuple[nn.Parameter, Tensor]]]:
        """Return the weights of f that belong to each subgroup, and to rotation and reflection together."""
        if self.modulation is None:
            return {}
        labels = [" × ".join(names) for names in self.modulation.weight_subgroups()]
        return {
            label: [(self.modulation.weights, torch.tensor([n for n, of in enumerate(labels) if of == label]))]
            for label in dict.fromkeys(labels)
        }

    def adopt_earlier_state(self, state: dict[str, Any], prefix: str) -> None:
        """Rename the entries of an earlier state; its weights were in units of its own ω′ at the start."""
        super().adopt_earlier_state(state, prefix)
        units = state.pop(f"{prefix}kernel.units", None)
        weights = state.pop(f"{prefix}kernel.weights", None)
        if weights is not None and units is not None and self.modulation is not None:
            state[f"{prefix}kernel.modulation.weights"] = self.modulation.of_earlier_units(weights, units)

    def strict_kernel(self) -> Kernel:
        """Return K_strict, with the same basis."""
        strict = StrictKernel(self.place, self.basis)
        # Of the layer's dtype and device.
        strict.orthogonal_basis = self.orthogonal_basis
        return strict

    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function the tensors of a state dict stand for."""
        return {**super().describe(), **({} if self.modulation is None else {"soft part": "tied"})}
