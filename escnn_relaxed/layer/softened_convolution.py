"""A convolution with a strict and a soft part, for a base space of any dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from escnn.nn import FieldType
from torch import Tensor, distributed, nn

from ..checks import check_bool, check_choice, check_integer
from ..group.elements import NOTHING_KEPT, SUBGROUPS, KeptGroup
from ..group.frame import GroupFrame
from ..group.kept_in_space import KeptInSpace
from ..integral.stationary import Geometry
from ..kernel.basis_arguments import check_basis_arguments
from ..kernel.basis_elements import BasisElements
from ..kernel.centred_kernel import CentredKernel
from ..kernel.continuous_kernel import ContinuousKernel
from ..kernel.sampled_basis import refuse_emptied_basis, sampled_basis
from ..kernel.single_kernel import SingleKernel
from ..kernel.soft_part import SoftPart
from ..kernel.softness import soft_share
from ..kernel.steerable_basis import SteerableBasis, StrictPart
from ..kernel.tied_kernel import TiedKernel
from .adopted_basis import adopt_basis
from .arguments import (
    check_kept,
    check_kernel,
    check_random_offset,
    check_softness,
    nominal_frequency,
    resolve_relaxation,
    warn_ignored,
)
from .convolution import Convolution
from .domain_frequency import DomainFrequency, Frequency, RegionSamples, RotationSamples
from .options import Softening
from .state_dict import adopt_r2conv_state

__all__ = ["SoftenedConvolution"]

# The number of positions along each axis for means where every pixel has its own kernel, for images of any size.
CELLS_OF_PIXELS = 8
STRICT_KERNELS = "steerable", "continuous"


class SoftenedConvolution(Convolution):
    """A convolution, or its adjoint, with the kernel K = strict part + soft part.

    Args:
        in_type: field type of the input.
        out_type: field type of the output.
        geometry: padding, stride and the like.
        bias: add a bias to the trivial irreps of the output.
        basis_arguments: escnn's arguments that shape the steerable basis.
        initialize: draw the strict weights.
        softening: the options of softness.

    Attributes:
        steerable_basis: basis of the strict part, None where the soft part holds it.
        weights: the weights of the steerable basis, None without one.
        bank: the soft part, None where nothing may be soft.
        cannot_be_soft: subgroups that were to be soft where no weights would make the kernel so; their ω′ is left out.
        regions: G, the number of regions along each axis that soft translation divides the output into; None for its
            pixels.
        random_offset: turn the grid of a continuous group at each training step.
    """

    steerable_basis: SteerableBasis | None
    bank: SoftPart | None
    weights: nn.Parameter

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        geometry: Geometry,
        bias: bool,
        basis_arguments: dict[str, Any],
        initialize: bool,
        softening: Softening,
    ) -> None:
        super().__init__(in_type, out_type, geometry, bias)
        check_choice("strict_kernel", softening.strict_kernel, STRICT_KERNELS)
        check_bool("initialize", initialize)
        kernel = check_kernel(softening.kernel)
        self.samples = check_integer("samples", softening.samples, 1)
        self.regions = None if softening.regions is None else check_integer("regions", softening.regions, 1)
        self.random_offset = check_random_offset(softening.random_offset, self.space)
        self._kept = self._checked_kept(softening.keep)
        form = _form_of(softening.strict_kernel, kernel)
        coordinates = "circle" if kernel is None else kernel.rotation_coordinates
        frame = GroupFrame(self.space, self.samples, coordinates, self._kept, sees_cosets=form.sees_cosets)
        soft = resolve_relaxation(softening.relax, frame)
        given = softening.initial_softness
        softness = form.default_softness if given is None else check_softness(given)
        self.bank, self.steerable_basis = None, None
        self.register_parameter("weights", None)
        if form.holds_strict_part:
            warn_ignored(basis_arguments)
            if soft and not softness:
                raise ValueError(
                    "initial_softness must be above 0 with strict_kernel='continuous', where the same weights make the "
                    "strict part; relax={'rotation': 0.0} starts strict"
                )
        else:
            self._start_strict_part(basis_arguments)
        if soft or form.holds_strict_part:
            self.bank = self._new_soft_part(form, frame, kernel, tuple(soft))
        if self.bank is None:
            self.cannot_be_soft, soft = tuple(soft), {}
        self._domain_frequency = self._new_domain_frequency(soft, softening.learn_relaxation, frame)
        if self.bank is not None:
            self.bank.start(nominal_frequency(self.domain_frequency), softness, self._strict_part)
        if not (form.holds_strict_part or initialize):
            nn.init.zeros_(self.weights)

    def _new_soft_part(
        self, form: type[SoftPart], frame: GroupFrame, kernel: ContinuousKernel | None, soft: tuple[str, ...]
    ) -> SoftPart | None:
        """Return a soft part that is not started, None where no weights of it would make the kernel soft."""
        options: dict[str, Any] = {} if form is TiedKernel else {"kernel": kernel or ContinuousKernel()}
        build: Callable[..., SoftPart] = form
        bank = build(
            *(of.representations for of in self.kernel_types),
            frame,
            **options,
            kernel_size=self.kernel_size,
            dilation=self.dilation,
            domain_subgroups=soft,
            cells=self.regions or CELLS_OF_PIXELS,
            remembered=self._remembered,
        )
        return bank if form.holds_strict_part or bank.can_be_soft else None

    def _checked_kept(self, keep: Any) -> KeptGroup | KeptInSpace:
        """Return the group to which the layer stays strict."""
        return check_kept(keep, self.space, self.samples)

    def _new_domain_frequency(self, soft: dict[str, Frequency], learn: bool, frame: GroupFrame) -> DomainFrequency:
        samples: dict[str, RotationSamples | RegionSamples] = {}
        if self.bank is not None and self.bank.has_waves:
            samples["rotation"] = RotationSamples(frame.rotations, frame.form, frame.resolved_frequency())
            if self.regions is not None:
                samples["translation"] = RegionSamples(self.regions)
        return DomainFrequency(soft, check_bool("learn_relaxation", learn), samples, frame.dimension)

    def _start_strict_part(self, basis_arguments: dict[str, Any]) -> None:
        """Build the strict part of escnn's layer, with its weights."""
        arguments = check_basis_arguments(self.kernel_size, self.dilation, basis_arguments, self.space.dimensionality)
        # One group of fields is like another, and each of them has no more groups.
        place = *self.kernel_types, self.kernel_size, self.dilation, 1
        self.steerable_basis = SteerableBasis(*place, sampled_basis(*place, **arguments))
        if not self.steerable_basis.dimension:
            refuse_emptied_basis(*place, **arguments)
        self.weights = nn.Parameter(self.steerable_basis.start_weights().to(torch.get_default_dtype()))

    @property
    def domain_frequency(self) -> dict[str, Tensor]:
        """ω′ of each subgroup that may be soft; 2 values (x, y) for translation, else 1.

        ω′ has no unit, since coordinates of the domain are in [−1, 1]. The tensors are parameters where
        ``learn_relaxation`` is set.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
            >>> RelaxedR2Conv(
            ...     image, image, 3, relax={"rotation": 0.25, "translation": 0.5}
            ... ).domain_frequency
            {'translation': tensor([0.5000, 0.5000]), 'rotation': tensor([0.2500])}
        """
        return self._domain_frequency.values()

    def set_domain_frequency(self, **frequencies: Frequency) -> None:
        """Set ω′ of subgroups in place; 0 for all makes the layer strict.

        Nothing is set for a subgroup in which no weights of the layer could make it soft.

        Raises:
            TypeError: for a value that is not a number or, for translation, a pair of them.
            ValueError: for a subgroup that was not named in ``relax``, or a value that is not finite.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25})
            >>> layer.set_domain_frequency(rotation=0.0)
            >>> layer.domain_frequency
            {'rotation': tensor([0.])}
        """
        known = {name: value for name, value in frequencies.items() if name not in self.cannot_be_soft}
        self._domain_frequency.set(**known)

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """Subgroups that have an ω′."""
        return tuple(self.domain_frequency)

    @property
    def basisexpansion(self) -> BasisElements | None:
        """The basis of the strict part, as of ``R2Conv``; None where ``strict_kernel="continuous"``.

        It says what each of ``weights`` multiplies, for ``escnn.nn.init``, and makes a filter of them.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(fields, fields, 3)
            >>> nn.init.deltaorthonormal_init(layer.weights.data, layer.basisexpansion)
            >>> layer.set_softness(0.001)
        """
        return None if self.steerable_basis is None else self.steerable_basis.elements

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield ω′ where it is learned, and the parameters of the soft part that the strict part does without."""
        yield from self._domain_frequency.parameters()
        if self.bank is not None:
            yield from self.bank.soft_parameters()

    def filter_bank(self) -> Tensor:
        """Return K as the weight of one convolution, (C_out, C_in/groups, k, …)."""
        return self._laid_out(self._kernel())

    @property
    def filter(self) -> Tensor:
        """The filter bank, as in ``R2Conv``.

        Raises:
            AttributeError: where K depends on the position. torch expects this error of a missing attribute.
        """
        if not self.is_stationary:
            raise AttributeError("filter: this layer is soft in translation and has several, see region_banks")
        return self.filter_bank()

    def strict_energy(self) -> Tensor:
        """Return ‖·‖² of the strict part in the steerable basis, 0 without one."""
        strict = self._strict_part
        return torch.zeros(()) if strict is None else strict.energy()

    @property
    def _strict_part(self) -> StrictPart | None:
        """The kernel in the steerable basis, None without one."""
        return None if self.steerable_basis is None else StrictPart(self.steerable_basis, self.weights)

    @property
    def _soft_part(self) -> SoftPart | None:
        """The soft part; None where it is 0, because its domain is averaged over or ω′ = 0."""
        if self.bank is None or self.bank.holds_strict_part:
            return self.bank
        is_soft = self.hardened != SUBGROUPS and self._domain_frequency.may_vary()
        return self.bank if is_soft else None

    def _kernel(self) -> Tensor:
        """Return K between ``kernel_types`` where it is the same at every position, (C_out, C_in, k, k)."""
        soft, strict = self._soft_part, self._strict_part
        if soft is not None:
            kernel: Tensor = soft(self.domain_frequency, self.hardened, strict)
            return kernel
        if strict is None:
            raise RuntimeError("this layer has no kernel")
        is_waited_for = self.bank is not None and distributed.is_available() and distributed.is_initialized()
        return strict.kernel() + self._idle() if self.training and is_waited_for else strict.kernel()

    def _laid_out(self, banks: Tensor) -> Tensor:
        """Return filter banks (…, C_out, C_in, k, k) between ``kernel_types`` as the integral takes them."""
        return banks

    def _idle(self) -> Tensor:
        """Return a 0 that depends on the parameters that K does not use at present, so that their gradient is 0.

        Processes that train together wait for a gradient of every parameter.
        """
        return sum((0 * parameter.sum() for parameter in self.soft_parameters()), self.weights.new_zeros(()))

    def _softness(self, subgroups: tuple[str, ...]) -> Tensor:
        soft = self._soft_part
        if soft is None:
            return self.strict_energy().new_zeros(())
        part, rest = soft.energies(self.domain_frequency, self.hardened, subgroups, self._strict_part)
        return soft_share(part, rest if soft.holds_strict_part else rest + self.strict_energy())

    @torch.no_grad()
    def set_softness(self, softness: float) -> None:
        """Scale the soft part until the softness is s, for instance after strict weights were set from outside.

        Args:
            softness: s in (0, 1), of all subgroups together; ``initial_softness`` for a new start.

        Raises:
            ValueError: for another value, and where the strict part or the soft part is missing.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(fields, fields, 3, initialize=False)
            >>> nn.init.generalized_he_init(layer.weights.data, layer.basisexpansion)
            >>> layer.set_softness(0.01)
            >>> round(layer.softness().item(), 6)
            0.01
        """
        wanted, present = check_softness(softness, "softness"), self.softness().item()
        if not wanted:
            raise ValueError("softness must be above 0, or the soft part cannot learn; harden() makes a layer strict")
        if self.bank is None or self.bank.holds_strict_part or not 0 < present < 1:
            raise ValueError(
                f"softness can be set where strict_kernel='steerable' and both parts of the kernel are above 0, got "
                f"{softness!r} for {self} of softness {present:.3g}"
            )
        self.bank.scale(math.sqrt(wanted / (1 - wanted) * (1 - present) / present))

    def drop_soft_part(self) -> None:
        """Remove the soft part of a hardened layer that has a strict part beside it."""
        if self.hardened == SUBGROUPS and self.steerable_basis is not None:
            self.bank, self.hardened = None, ()
            self._domain_frequency = DomainFrequency({}, learn=False).train(self.training)

    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function a state dict's tensors stand for; kept in its metadata."""
        kind: dict[str, Any] = {
            "strict kernel": "continuous" if self.steerable_basis is None else "steerable",
            "soft in": [],
        }
        facts = {**super().describe(), **kind}
        if self.bank is not None:
            facts |= {
                **self.bank.describe(),
                "regions": self.regions if "translation" in self.bank.domain_subgroups else None,
                "samples": self.samples if self.space.fibergroup.continuous else None,
            }
        if self.steerable_basis is not None:
            facts["fingerprint of the steerable basis"] = self.steerable_basis.fingerprint
        return facts

    def extra_repr(self) -> str:
        """Return the field types, the convolution's arguments that are not default, and ω′."""
        frequencies = self._domain_frequency.described()
        regions = f", regions={self.regions}" if "translation" in frequencies else ""
        kept = "" if self._kept == NOTHING_KEPT else f", keep='{self._kept}'"
        return f"{super().extra_repr()}, domain_frequency={frequencies or 'strict'}{regions}{kept}"

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *arguments: Any
    ) -> None:
        if self.steerable_basis is not None:
            arguments[-1].extend(adopt_basis(state_dict, prefix, self.steerable_basis))
            adopt_r2conv_state(state_dict, prefix, self.state_dict())
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)


def _form_of(strict_kernel: str, kernel: ContinuousKernel | None) -> type[SoftPart]:
    """Return the form of the soft part: tied to the strict part unless a continuous kernel is given."""
    if strict_kernel == "continuous":
        return SingleKernel
    return TiedKernel if kernel is None else CentredKernel
