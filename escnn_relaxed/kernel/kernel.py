"""The interface of a kernel K, with its mean PK over any subgroups and its strict part."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch
from escnn.group import GroupElement
from torch import Tensor, nn

from ..checks import ALL_SUBGROUPS
from ..group.elements import grid_symmetries
from ..group.linear_maps import GroupAverage, OrthogonalBasis
from ..group.points import tap_grid
from .config import KernelConfig, Names, Size, WeightGroup
from .domain_frequency import DomainFrequency
from .steerable_basis import SteerableBasis

# Steps in which a softness is met, and the change of the soft weights that ends them.
_MOST_STEPS, _CLOSE = 20, 1e-7
# A softness that is met to this part of itself is met.
_FAR = 1e-2
_HALF = frozenset({torch.float16, torch.bfloat16})
# Values of filter banks, and of what they are made of, that are made at a time.
_MOST_VALUES = 2**23
# Below this many units in the last place √s is rounding. In bfloat16 that alone would be a percent of the energy.
_ROUNDING = 16
_MOST_ROUNDING = 5e-3


class Kernel(nn.Module, ABC):
    """A kernel K between two lists of fields, (C_out, C_in, T) at T taps; subclass it for a new kernel.

    The weights of the strict part are the layer's, so that state dicts of ``R2Conv`` keep their keys. A kernel takes
    them as an argument, None where it has a strict part of its own. A subclass writes :meth:`forward` and sets the
    attributes whose default does not fit; each may be a property.

    Args:
        config: fields, taps and sampled group.

    Attributes:
        basis: the steerable basis of the strict part, whose weights the layer holds. Default: None, without one.
        relaxed_subgroups: the subgroups that K may be soft in. Default: none.
        is_random: whether each forward in the present mode calls :meth:`draw` first, so that no filters are kept.
        settings: what K depends on beside its tensors and ω′, as numbers: filters are kept for each. Default: nothing.
        default_softness: the softness s at the start.
        default_frequency: ω′ of subgroups that ``relax`` names without one, where it differs from the usual 0.25. A
            layer reads it from what it is given as ``kernel``: this class, or an object that builds a kernel.
        cannot_be_soft: subgroups that ``relax`` names and in which no weights could make K soft.
        frequency: ω′ of each subgroup that has one.
        relaxed_by: the quantity that relaxes K in words; empty where it is ω′.
        public_name: the name by which users know the kernel, for messages. Default: that of the class.
        values_at_a_pixel: the numbers that one pixel takes while its bank is made. Default: those of the bank.

    Example:
        >>> from escnn import gspaces
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = gspace.type(gspace.regular_repr)
        >>> layer = RelaxedR2Conv(fields, fields, 3)
        >>> projected = layer.kernel(layer.weights, ("rotation",))
        >>> torch.equal(projected, layer.kernel.basis(layer.weights))
        True
    """

    basis: SteerableBasis | None
    relaxed_subgroups: tuple[str, ...] = ()
    is_random: bool = False
    settings: Hashable = ()
    default_softness = 0.001
    default_frequency: Mapping[str, float] = MappingProxyType({})
    cannot_be_soft: tuple[str, ...] = ()
    relaxed_by: str = ""

    def __init__(self, config: KernelConfig) -> None:
        super().__init__()
        # Functions that shaped the basis, which lambdas may be, would keep a layer from being pickled.
        self.config = replace(config, basis_arguments={})
        self.frequency = DomainFrequency({})
        self.basis = None
        self.orthogonal_basis = OrthogonalBasis(config.in_type.representations, config.out_type.representations)
        self.public_name = type(self).__name__
        self.values_at_a_pixel = config.out_type.size * config.in_type.size * len(config.taps)

    @abstractmethod
    def forward(self, weights: Tensor | None, averaged: Sequence[str] = ()) -> Tensor:
        """Return K where it is the same at all positions, (C_out, C_in, T).

        Args:
            weights: those of the layer.
            averaged: subgroups over which K is averaged. This projects it on the kernels that are equivariant to them.
        """

    def filters(
        self, weights: Tensor | None, size: tuple[int, ...], averaged: Sequence[str] = ()
    ) -> tuple[Tensor, Tensor | None] | None:
        """Return the filter banks and, if K depends on the position, the factor of each bank at each output pixel.

        By default a kernel that depends on the position has none, and is made at every pixel (:meth:`at_pixels`).

        Args:
            weights: those of the layer.
            size: pixels along each axis of the output.
            averaged: subgroups over which K is averaged.

        Returns:
            K and None, or R banks (R, C_out, C_in, T) and factors (R, C_out, pixels along each axis), whose products
            make K when they are added (equation (3)). None where K is no such sum.
        """
        return None if self.varies(averaged) else (self(weights, averaged), None)

    def at_pixels(
        self, weights: Tensor | None, size: tuple[int, ...], averaged: Sequence[str], start: int, end: int
    ) -> Tensor:
        """Return K at the pixels from number ``start`` up to ``end`` of an image, (pixels, C_out, C_in, T)."""
        filters = self.filters(weights, size, averaged)
        if filters is None:
            raise NotImplementedError(f"{type(self).__name__} depends on the position: override filters or at_pixels")
        banks, factors = filters
        if factors is None:
            return banks.expand(end - start, *banks.shape)
        return torch.einsum("roi...,rop->poi...", banks, factors.flatten(2)[..., start:end])

    def draw(self) -> None:
        """Draw the random part of K; called before each forward where ``is_random`` is True.

        What is drawn stays until the next call, so that activation checkpointing repeats it.
        """

    @torch.no_grad()
    def start(self, weights: Tensor | None, softness: float) -> None:
        """Draw the soft weights, and scale them until the softness is s."""
        for parameter, numbers in _soft_entries(self):
            parameter.view(-1)[numbers] = torch.randn(len(numbers)).to(parameter)
        scale_to(self, weights, softness)

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that a strict kernel does not have."""
        yield from self.parameters()

    def weight_groups(self) -> list[WeightGroup]:
        """Return the soft weights, which are 0 where K is strict, by the subgroups that they belong to."""
        return []

    def varies(self, averaged: Sequence[str] = ()) -> bool:
        """Return whether K may depend on the position after an average."""
        is_named = "translation" in self.relaxed_subgroups and "translation" not in averaged
        return is_named and self.frequency.may_vary("translation")

    def energies(
        self, weights: Tensor | None, hardened: Names, averaged: Names, size: Size = None
    ) -> tuple[Tensor, Tensor]:
        """Return ‖K − PK‖² and ‖PK‖² in the same scale, as means over the pixels of an output of a size.

        K is averaged over the subgroups ``hardened``, PK over ``averaged``.
        """
        if self.varies(hardened):
            return energies_at_pixels(self, weights, hardened, averaged, size or self.config.domain.reference_size)
        kernel, projected = self(weights, hardened), self(weights, averaged)
        # A square might overflow, or vanish.
        peak = kernel.detach().abs().amax()
        scale = torch.where(peak > 0, peak, 1)
        soft, strict = (kernel - projected) / scale, projected / scale
        return self.orthogonal_basis.energy(soft), self.orthogonal_basis.energy(strict)

    def element_energies(
        self, weights: Tensor | None, hardened: Names, elements: Sequence[GroupElement]
    ) -> tuple[Tensor, Tensor]:
        """Return ‖hK − K‖² for each element h, and ‖K‖², in the same scale, as means over the positions.

        h moves a kernel to ρ(h) K(h⁻¹d; h⁻¹x) ρ(h)⁻¹. The energy is NaN where h moves taps off their grid.
        """
        return energies_of_moves(self, weights, hardened, elements)

    @torch.no_grad()
    def scale_soft_part(self, factor: float) -> None:
        """Multiply the soft weights by a factor; a ``ValueError`` where K has none."""
        if not _soft_entries(self):
            raise ValueError(f"softness cannot be set, since a {type(self).__name__} has no soft weights of its own")
        if any("parametrizations" in part._modules for part in self.modules()):
            raise ValueError(
                "softness cannot be set where soft weights are parametrized and other tensors make them: set those or "
                "remove the parametrization with torch.nn.utils.parametrize.remove_parametrizations"
            )
        for parameter, numbers in _soft_entries(self):
            parameter.view(-1)[numbers] *= factor

    def strict_state(self) -> dict[str, Tensor]:
        """Return the entries of the state with which K is the strict kernel: those of soft weights are 0."""
        soft = {id(parameter) for parameter, _ in _soft_entries(self)}
        names = {name for name, parameter in self.named_parameters() if id(parameter) in soft}
        return {name: value * 0 if name in names else value for name, value in self.state_dict().items()}

    def describe(self) -> dict[str, Any]:
        """Return the settings on which the meaning of a state dict depends."""
        config = self.config
        is_soft_in = list(self.relaxed_subgroups)
        is_sampled = config.domain.gspace.fibergroup.continuous and bool(is_soft_in)
        facts: dict[str, Any] = {
            "strict kernel": "steerable",
            "soft in": is_soft_in,
            "keeps": str(config.domain.kept),
            "samples": config.domain.samples if is_sampled else None,
        }
        if is_sampled and config.in_type.gspace.dimensionality == 3:
            # escnn optimises its finer grids of rotations on each machine anew.
            values = config.domain.sample.action.ravel()
            facts["fingerprint of the samples"] = [round(float(values @ np.cos(np.arange(values.size))), 6)]
        return facts


def _soft_entries(kernel: Kernel) -> list[tuple[nn.Parameter, Tensor]]:
    """Return the soft weights of all subgroups."""
    return [entry for group in kernel.weight_groups() for entry in group.entries]


# Called with a configuration it returns a kernel: a class, or an object with the options of one, as ContinuousKernel.
KernelBuilder: TypeAlias = Callable[[KernelConfig], Kernel]


def energies_at_pixels(
    kernel: Kernel, weights: Tensor | None, hardened: Names, averaged: Names, size: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return ‖K − PK‖² and ‖PK‖² of a kernel that depends on the position, in chunks of pixels."""
    count, energy = math.prod(size), kernel.orthogonal_basis.energy
    chunk = max(1, _MOST_VALUES // kernel.values_at_a_pixel)
    soft = strict = kernel.orthogonal_basis.like.new_zeros(())
    mean = None if kernel.varies(averaged) else kernel(weights, averaged).unsqueeze(0)
    for start in range(0, count, chunk):
        end = min(start + chunk, count)
        bank = kernel.at_pixels(weights, size, hardened, start, end)
        projected = kernel.at_pixels(weights, size, averaged, start, end) if mean is None else mean
        # The position last, as another axis of the taps.
        soft = soft + energy((bank - projected).movedim(0, -1))
        strict = strict + energy(projected.movedim(0, -1)) * (len(bank) if len(projected) == 1 else 1)
    return soft / count, strict / count


def energies_of_moves(
    kernel: Kernel, weights: Tensor | None, hardened: Names, elements: Sequence[GroupElement]
) -> tuple[Tensor, Tensor]:
    """Return ‖hK − K‖² for each element h, and ‖K‖², of any kernel: by its taps as h moves them."""
    config, space = kernel.config, kernel.config.in_type.gspace
    size, is_stationary = config.domain.reference_size, not kernel.varies(hardened)
    if is_stationary:
        banks = kernel(weights, hardened).unsqueeze(0)
    else:
        banks = kernel.at_pixels(weights, size, hardened, 0, math.prod(size))
    peak = banks.detach().abs().amax()
    banks = banks / torch.where(peak > 0, peak, 1)
    taps = tap_grid(config.kernel_size, config.dilation, space.dimensionality)
    pixels = tap_grid(1 if is_stationary else size[0], dimension=space.dimensionality)

    def energy(kernels: Tensor) -> Tensor:
        # The position last, as another axis of the taps.
        return kernel.orthogonal_basis.energy(kernels.movedim(0, -1)) / len(kernels)

    found = []
    for element in elements:
        symmetry, places = (grid_symmetries(space, points, [element]) for points in (taps, pixels))
        if symmetry:
            fields = config.in_type.representations, config.out_type.representations
            moved = GroupAverage(*fields, symmetry).to(banks)(banks[places[0][1]])
            found.append(energy(moved - banks))
        else:
            found.append(banks.new_full((), math.nan))
    return torch.stack(found), energy(banks)


def softness_from_energies(soft: Tensor, strict: Tensor) -> Tensor:
    """Return ‖K − PK‖² / (‖PK‖² + ‖K − PK‖²) from both energies; 0 where the first is rounding, NaN of NaN."""
    # ‖K‖² where the group maps the pixel grid to itself. Elsewhere K − PK and PK are only nearly orthogonal, and this
    # form keeps the result in [0, 1].
    total = soft + strict
    # Equal kernels differ by rounding alone. There the gradient of √s would point in a random direction.
    rounding = min(_ROUNDING * torch.finfo(total.dtype).eps, _MOST_ROUNDING)
    is_rounding = soft <= rounding**2 * total
    return torch.where(is_rounding, 0, soft / torch.where(is_rounding, 1, total))


def at_least_single(kernel: Kernel, weights: Tensor | None) -> tuple[Kernel, Tensor | None]:
    """Return a kernel and its weights, or a float32 copy of both in half precision, where K and PK would be equal."""
    tensors = [] if weights is None else [weights]
    for part in kernel.modules():
        for value in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):
            if isinstance(value, Tensor):
                tensors.append(value)
    if _HALF.isdisjoint(map(attrgetter("dtype"), tensors)):
        return kernel, weights
    # The copy holds tensors that gradients flow through.
    singles = {id(value): value.float() if value.is_floating_point() else value for value in tensors}
    return copy.deepcopy(kernel, dict(singles)), None if weights is None else singles[id(weights)]


@torch.no_grad()
def scale_to(kernel: Kernel, weights: Tensor | None, softness: float, hardened: Names = ()) -> None:
    """Scale the soft weights of a kernel until the softness is s; nothing where it has no soft part."""
    # Where K has factors of group elements and of positions, s is no quadratic function of the weights.
    for _ in range(_MOST_STEPS):
        soft, strict = (float(energy) for energy in kernel.energies(weights, hardened, ALL_SUBGROUPS))
        if soft <= 0:
            return
        factor = math.sqrt(softness / (1 - softness) * strict / soft)
        kernel.scale_soft_part(factor)
        if abs(factor - 1) < _CLOSE:
            return
    reached = soft / (soft + strict)
    if abs(reached - softness) > _FAR * softness:
        raise ValueError(f"softness {softness:.3g} cannot be reached by these weights, which come to {reached:.3g}")
