"""The default kernel: the strict kernel, modulated over the domain (docs/concepts/mathematics.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from escnn.group import GroupElement
from numpy.typing import NDArray
from torch import Tensor, nn

from ..checks import ALL_SUBGROUPS
from ..group.elements import moved_elements
from ..group.points import PositionFactors
from ..torch_modes import has_values
from .config import KernelConfig, ModulatedKernel, Names, Size, WeightGroup
from .domain_frequency import DEFAULT_FREQUENCY, DomainFrequency
from .free import FreeKernel
from .kernel import Kernel, scale_to
from .modulation import ElementModulation, InputModulation, Modulation
from .position_modulation import PositionModulation
from .steerable_basis import SteerableBasis
from .strict import StrictKernel

# At a small ω′ weights are drawn at most this many times as large as at the reference, so that the kernel changes
# smoothly while a learned ω′ grows.
_LARGEST_START = 1.5


class TiedKernel(StrictKernel):
    """K = K_strict ⊙ (1 + f_G) ⊙ (1 + f_T), with modulations of a few weights for each output field.

    f_G depends on the group element, f_T on the position. Their means over the group and the positions are 0, so PK is
    K_strict. Both parts have the same weights, as in the paper: this is equation (2) of the page *Mathematics* for
    κ = (1 + f) K_strict, since K_strict is steerable.

    Args:
        config: fields, taps and sampled group.
        all_directions: let the position make the filters of every channel heavier on one side, too. By default only
            trivial fields and irreps of a group that is not trivial have this. It takes 1 + d filter banks in d
            dimensions: ``kernel=functools.partial(TiedKernel, all_directions=True)``.
        basis: the steerable basis; by default escnn's for these fields and taps.

    Attributes:
        modulation: f_G of the output's channels, None where no weights would make K soft.
        input_modulation: f_G of the input's channels, for fields of the output that have no weights of their own, as
            trivial ones of a 1×1 kernel; None without such fields.
        position_modulation: f_T, None where translation is strict.

    Example:
        >>> from escnn import gspaces
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
        >>> layer = RelaxedR2Conv(image, image, 3)
        >>> type(layer.kernel).__name__, len(layer.kernel.modulation.weights)
        ('TiedKernel', 2)
    """

    modulation: ElementModulation | None
    input_modulation: InputModulation | None
    position_modulation: PositionModulation | None

    def __init__(
        self, config: KernelConfig, all_directions: bool = False, *, basis: SteerableBasis | None = None
    ) -> None:
        super().__init__(config, basis)
        self.modulation = self.input_modulation = self.position_modulation = None
        fields = config.out_type.representations
        self._of_group = config.domain.fiber_subgroups
        names = [name for name in self._of_group if name in config.relax]
        if names:
            modulation = self._element_modulation(config, names)
            self.modulation = modulation if len(modulation.weights) else None
            rigid = [number for number, field in enumerate(fields) if field not in modulation.soft_representations()]
            if rigid:
                of_inputs = InputModulation(config.in_type.representations, config.domain, names, fields, rigid)
                self.input_modulation = of_inputs if len(of_inputs.weights) else None
        if "translation" in config.relax:
            self.position_modulation = self._position_modulation(config, all_directions)
        can_be_soft = {name for part in self._modulations() for names in part.weight_subgroups() for name in names}
        if not self.basis.dimension:
            can_be_soft = set()  # the factors of a kernel that is 0
        if can_be_soft & set(names):
            # Functions of one subgroup of the group break the others, too.
            can_be_soft |= set(names)
        self.cannot_be_soft = tuple(name for name in config.relax if name not in can_be_soft)
        relax = {name: value for name, value in config.relax.items() if name in can_be_soft}
        self.frequency = DomainFrequency(relax, config.learn_relaxation, config.domain.dimension)
        self.relaxed_subgroups = self.frequency.names

    def _element_modulation(self, config: KernelConfig, names: Sequence[str]) -> ElementModulation:
        """Return f_G of the output's channels, for some subgroups."""
        return ElementModulation(config.out_type.representations, config.domain, names, config.taps)

    def _position_modulation(self, config: KernelConfig, all_directions: bool) -> PositionModulation:
        """Return f_T of the output's channels."""
        return PositionModulation(config.out_type.representations, config.domain, config.taps, all_directions)

    def forward(self, weights: Tensor | None, averaged: Sequence[str] = (), strict: Tensor | None = None) -> Tensor:
        """Return K without its factors at positions, (C_out, C_in, T); of K_strict, where it is known already."""
        if strict is None:
            strict = self.basis(weights)
        if self.position_modulation is not None and self.training and not self.varies(averaged):
            strict = strict + self._zero_of_parameters(self.position_modulation)
        # f may be other than 0, as far as is known without waiting for an accelerator.
        if self.training or any([self.frequency.may_vary(name) for name in self._of_group if name not in averaged]):
            for modulation in (self.modulation, self.input_modulation):
                if modulation is not None:
                    f = modulation(self.frequency, tuple(averaged))
                    strict = torch.addcmul(strict, strict, f.unsqueeze(1) if modulation is self.modulation else f)
        return strict

    def _zero_of_parameters(self, modulation: Modulation) -> Tensor:
        """Return 0 as a function of the parameters of f_T, since distributed training waits for a gradient of each."""
        total: Any = sum(value.sum() for value in (modulation.weights, *self.frequency.parameters()))
        zero: Tensor = 0 * total
        return zero

    def filters(
        self, weights: Tensor | None, size: tuple[int, ...], averaged: Sequence[str] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Return filter banks, and factors at the pixels where K depends on the position (equation (3))."""
        bank = self(weights, averaged)
        if self.position_modulation is None or not self.varies(averaged):
            return bank, None
        factors = self.position_modulation.factors(self.frequency, size)
        if len(factors) == 1:
            return bank.unsqueeze(0), factors
        return bank * self.position_modulation.tap_directions[:, None, None], factors

    def _f(self, averaged: Names, numbers: NDArray[np.int64] | None = None) -> Tensor:
        """Return f_G, (C_out, 1 or C_in, T or 1); with numbers of h⁻¹g for each g as an element h moves it."""
        parts = []
        for modulation in (self.modulation, self.input_modulation):
            if modulation is not None:
                if numbers is None:
                    f = modulation(self.frequency, tuple(averaged))
                else:
                    f = modulation.moved(self.frequency, averaged, numbers)
                parts.append(f.unsqueeze(1) if modulation is self.modulation else f)
        # No channel has both, so that their product is their sum.
        return sum(parts, self.orthogonal_basis.like.new_zeros(1, 1, 1))

    def energies(
        self, weights: Tensor | None, hardened: Names, averaged: Names, size: Size = None
    ) -> tuple[Tensor, Tensor]:
        """Return ‖K − PK‖² and ‖PK‖² in the same scale, as means over the positions and the entries of K."""
        of_entries = self._squared_entries(weights)
        whole = self._f(hardened)
        is_mean = set(averaged) >= set(self._of_group)  # over the whole group, which is 0
        kept = torch.zeros_like(whole) if is_mean else self._f(averaged)
        moments = self._moments(hardened, size)
        scale = 1 / torch.maximum(whole.detach().abs().amax(), moments.detach().amax().sqrt()).clamp_min(1)
        whole, kept, moments, one = whole * scale, kept * scale, moments * scale**2, scale**2
        # (1 + f_T)(1 + f_G) less its mean over the subgroups, and that mean, squared. f_T has mean 0 over positions.
        # f_G has it over the group, but its products with moments and entries only where half turns cancel them.
        squared, strict_part = (scale + whole).square(), (scale + kept).square()
        if "translation" in averaged:
            soft = (whole - kept).square() + moments * squared / one
        else:
            soft = (whole - kept).square() * (one + moments) / one
            strict_part = strict_part * (one + moments) / one
        return (soft * of_entries).mean(), (strict_part * of_entries).mean()

    def element_energies(
        self, weights: Tensor | None, hardened: Names, elements: Sequence[GroupElement]
    ) -> tuple[Tensor, Tensor]:
        """Return ‖hK − K‖² for each element h, and ‖K‖²: exact for all elements that map the sample to itself."""
        domain = self.config.domain
        if domain.gspace.fibergroup != self.config.in_type.gspace.fibergroup:
            return super().element_energies(weights, hardened, elements)  # no action of the group is known
        # f_T is a function of g⁻¹x, so that elements leave it as it is.
        of_entries = self._squared_entries(weights) * (1 + self._moments(hardened))
        whole, found = self._f(hardened), []
        for element in elements:
            action = np.asarray(domain.gspace.basespace_action(element), dtype=np.float64)
            numbers = moved_elements(domain.sample, action)
            if numbers is None:
                found.append(of_entries.new_full((), math.nan))
            else:
                found.append(((self._f(hardened, numbers) - whole).square() * of_entries).mean())
        return torch.stack(found), ((1 + whole).square() * of_entries).mean()

    def _squared_entries(self, weights: Tensor | None) -> Tensor:
        """Return the squares of K_strict, (C_out, C_in, T), or means over the input where f is not of its channels."""
        strict = self.orthogonal_basis(self.basis(weights))
        # A square might overflow or vanish, and a sum of squares overflow in float16.
        peak = strict.detach().abs().amax()
        of_entries = (strict / torch.where(peak > 0, peak, 1)).square()
        return of_entries.mean(1, keepdim=True) if self.input_modulation is None else of_entries

    def _moments(self, hardened: Names, size: Size = None) -> Tensor:
        """Return the mean over positions of f_T², (C_out, 1, T), 0 where translation is strict."""
        if self.position_modulation is None or not self.varies(hardened):
            return self.orthogonal_basis.like.new_zeros(1, 1, 1)
        size = size or self.config.domain.reference_size
        return self.position_modulation.second_moments(self.frequency, size).unsqueeze(1)

    @torch.no_grad()
    def start(self, weights: Tensor | None, softness: float) -> None:
        """Draw the weights of f so that the softness is s; 0 where s is 0, except weights whose ω′ is 0."""
        modulations = self._modulations()
        if not modulations:
            return
        if softness == 0 and any(map(self._has_zero_frequency, self.weight_groups())):
            self.start(weights, self.default_softness)
            self.load_state_dict(self.strict_state())
            return
        for modulation in modulations:
            nn.init.normal_(modulation.weights)
        own = self.frequency
        values = {name: value.tolist() for name, value in own.values().items()}
        is_zero = not any(map(any, values.values()))
        raised = {
            name: [max(abs(part), DEFAULT_FREQUENCY) if part or is_zero else part for part in parts]
            for name, parts in values.items()
        }
        factors = []
        for frequency in (own, DomainFrequency(raised, axes=self.config.domain.dimension)):
            self.frequency = frequency.to(own.like)
            soft, strict = (float(energy) for energy in self.energies(weights, (), ALL_SUBGROUPS))
            factors.append(math.sqrt(softness / (1 - softness) * strict / soft) if soft > 0 else math.inf)
        self.frequency = own
        largest = _LARGEST_START * factors[1]
        factor = min(factors[0], largest)
        self.scale_soft_part(0.0 if math.isinf(factor) else factor)
        if 0 < factor < largest:
            scale_to(self, weights, softness)

    def _modulations(self) -> list[Modulation]:
        """Return f_T and those of f_G, where K has them."""
        found = self.position_modulation, self.modulation, self.input_modulation
        return [modulation for modulation in found if modulation is not None]

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield ω′ where it is learned, and the weights of f."""
        yield from self.frequency.parameters()
        for modulation in self._modulations():
            yield modulation.weights

    def weight_groups(self) -> list[WeightGroup]:
        """Return the weights of f by the subgroups that they depend on."""
        groups: dict[frozenset[str], list[tuple[nn.Parameter, Tensor]]] = {}
        for modulation in self._modulations():
            sets = [frozenset(names) for names in modulation.weight_subgroups()]
            for names in dict.fromkeys(sets):
                numbers = torch.tensor([number for number, own in enumerate(sets) if own == names])
                groups.setdefault(names, []).append((modulation.weights, numbers))
        return [WeightGroup(names, entries) for names, entries in groups.items()]

    def _has_zero_frequency(self, group: WeightGroup) -> bool:
        """Return whether weights have no effect because a learned ω′ is 0."""
        # Were the weights 0, too, neither they nor ω′ would have a gradient.
        known = [value for name, value in self.frequency.values().items() if name in group.subgroups]
        return self.config.learn_relaxation and any(has_values(value) and not value.any() for value in known)

    def strict_state(self) -> dict[str, Tensor]:
        """Return the entries of the state with which K is K_strict: soft weights are 0, except those whose ω′ is 0."""
        state = super().strict_state()
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        waiting = [group.entries for group in self.weight_groups() if self._has_zero_frequency(group)]
        for parameter, numbers in chain.from_iterable(waiting):
            state[names[id(parameter)]].view(-1)[numbers] = parameter.detach().view(-1)[numbers]
        return state

    def describe(self) -> dict[str, Any]:
        """Return the settings on which the meaning of a state dict depends."""
        return {**super().describe(), **({"soft part": "tied"} if self._modulations() else {})}


def strict_kernel(kernel: Kernel) -> Kernel:
    """Return K_strict, with the same basis; the kernel itself where it cannot be split."""
    return kernel.strict_kernel() if isinstance(kernel, (TiedKernel, FreeKernel)) else kernel


def filters_of_means(
    kernel: Kernel, weights: Tensor | None, size: tuple[int, ...], averages: Sequence[tuple[str, ...]]
) -> list[tuple[Tensor, Tensor | None]] | None:
    """Return the filters of several means of K, as ``filters``; None where some are made at each pixel.

    Of the default kernel, K_strict is made once, banks are one tensor where they are the same, and so are factors.
    """
    if type(kernel) is not TiedKernel:
        found = [kernel.filters(weights, size, averaged) for averaged in averages]
        filters = [of for of in found if of is not None]
        return filters if len(filters) == len(found) else None
    strict = kernel.basis(weights)
    varying = [averaged for averaged in averages if kernel.varies(averaged)]
    if kernel.position_modulation is None or not varying:
        return [(kernel(weights, averaged, strict), None) for averaged in averages]
    factors, directions = kernel.position_modulation.factors(kernel.frequency, size), None
    if len(factors) > 1:
        directions = kernel.position_modulation.tap_directions[:, None, None]
    is_soft_in_group = kernel.modulation is not None or kernel.input_modulation is not None
    banks: dict[tuple[str, ...], Tensor] = {}
    filters = []
    for averaged in averages:
        names = tuple([name for name in averaged if name in kernel.config.domain.fiber_subgroups and is_soft_in_group])
        if names not in banks:
            banks[names] = kernel(weights, names, strict).unsqueeze(0)
        bank = banks[names]
        if averaged not in varying:
            filters.append((bank, None))
        else:
            filters.append((bank if directions is None else bank * directions, factors))
    return filters


def position_factors(kernel: Kernel) -> PositionFactors | None:
    """Return the factors at pixels of a default kernel as a module on plain tensors; None where there is none."""
    modulation = kernel.position_modulation if type(kernel) is TiedKernel else None
    if modulation is None:
        return None
    frequency = kernel.frequency.scale(("translation",) * kernel.config.domain.dimension, modulation.like)
    return PositionFactors(modulation.action, frequency, modulation.coefficients())


def modulated(
    kernel: Kernel, weights: Tensor | None, size: tuple[int, ...], averaged: Sequence[str] = ()
) -> ModulatedKernel | None:
    """Return K as factors that hold all soft parameters, which makes their gradients cheap.

    None for another kernel, and where some factors are of pairs of channels, as many as K has values.
    """
    if type(kernel) is not TiedKernel or kernel.input_modulation is not None:
        return None
    strict, ones = kernel.basis(weights), kernel.orthogonal_basis.like.new_ones(1, 1)
    f, tap_functions, factors, directions = None, ones, None, ones
    if kernel.modulation is not None:
        f, tap_functions = kernel.modulation(kernel.frequency, tuple(averaged)), kernel.modulation.tap_functions()
    if kernel.position_modulation is not None and kernel.varies(averaged):
        factors = kernel.position_modulation.factors(kernel.frequency, size)
        directions = kernel.position_modulation.tap_directions[: len(factors)]
    return ModulatedKernel(strict, f, tap_functions, factors, directions)
