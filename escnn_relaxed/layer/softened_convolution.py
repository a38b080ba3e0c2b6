"""How a layer's strict and soft parts are built of its arguments, whatever map the kernel is for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from escnn.nn import FieldType
from torch import Tensor, nn

from ..checks import check_bool, check_choice, check_integer
from ..group.elements import NOTHING_KEPT
from ..integral.stationary import PlanarGeometry
from ..kernel.basis_arguments import check_basis_arguments
from ..kernel.basis_elements import BasisElements
from ..kernel.continuous_kernel import ContinuousKernel
from ..kernel.filter_bank import ContinuousFilterBank
from ..kernel.initialization import DEFAULT_SOFTNESS, start_filter_bank, start_soft_part
from ..kernel.steerable_basis import SteerableBasis, refuse_emptied_basis, sampled_basis
from .arguments import (
    check_kept,
    check_kernel,
    check_random_offset,
    check_softness,
    nominal_frequency,
    resolve_relaxation,
    rotations_of,
    warn_ignored,
)
from .domain_frequency import DomainFrequency, Frequency, RegionSamples, RotationSamples
from .relaxed_convolution import RelaxedConvolution
from .state_dict import adopt_r2conv_state

__all__ = ["DEFAULT_REGIONS", "SoftenedConvolution"]

DEFAULT_REGIONS = 4
# Where every pixel has its own kernel, means over positions are taken over as many, whatever the size of the image.
CELLS_OF_PIXELS = 8


class SoftenedConvolution(RelaxedConvolution):
    """A relaxed convolution, or its adjoint, built of the arguments of ``RelaxedR2Conv``.

    Args:
        in_type: field type of the input.
        out_type: field type of the output.
        geometry: where the taps meet the image.
        bias: add a bias to the trivial irreps of the output.
        basis_arguments: escnn's, which shape the steerable basis.
        initialize: draw the strict weights.
        relax: as of ``RelaxedR2Conv``, and so are those that follow.
    """

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        geometry: PlanarGeometry,
        bias: bool,
        basis_arguments: dict[str, Any],
        initialize: bool,
        *,
        relax: Mapping[str, Frequency] | str | None,
        learn_relaxation: bool,
        keep: str | None,
        initial_softness: float | None,
        regions: int | None,
        strict_kernel: str,
        samples: int,
        random_offset: bool,
        kernel: ContinuousKernel | None,
    ) -> None:
        super().__init__(in_type, out_type, geometry, bias)
        check_choice("strict_kernel", strict_kernel, ("steerable", "continuous"))
        self.samples = check_integer("samples", samples, 1)
        self.regions = None if regions is None else check_integer("regions", regions, 1)
        self.random_offset = check_random_offset(random_offset, self.space)
        shape = check_kernel(kernel).completed(self.kernel_size, strict_kernel)
        rotations = RotationSamples(rotations_of(self.space, self.samples), shape.rotation_coordinates)
        self._kept = check_kept(keep, self.space, rotations.number)
        soft = resolve_relaxation(relax, self.space, rotations, self._kept)
        samples_of: dict[str, RotationSamples | RegionSamples] = {"rotation": rotations}
        if self.regions is not None:
            samples_of["translation"] = RegionSamples(self.regions)
        self._domain_frequency = DomainFrequency(soft, check_bool("learn_relaxation", learn_relaxation), samples_of)
        softness = DEFAULT_SOFTNESS[strict_kernel] if initial_softness is None else check_softness(initial_softness)
        check_bool("initialize", initialize)
        if strict_kernel == "steerable":
            self._start_steerable(basis_arguments)
            self.bank = self._new_bank(shape, tuple(soft), is_centred=True) if soft else None
            if self.bank is not None:
                start_soft_part(self.bank, self._nominal_frequency(), softness, float(self.strict_energy().detach()))
            if not initialize:
                nn.init.zeros_(self.weights)
        else:
            warn_ignored(basis_arguments)
            if soft and not softness:
                raise ValueError(
                    "initial_softness must be above 0 with strict_kernel='continuous', where the weights are those of "
                    "the strict part too; relax={'rotation': 0.0} starts strict"
                )
            self.steerable_basis = None
            self.register_parameter("weights", None)
            self.bank = self._new_bank(shape, tuple(soft), is_centred=False)
            start_filter_bank(self.bank, self._nominal_frequency(), softness)

    def _start_steerable(self, basis_arguments: dict[str, Any]) -> None:
        """The strict part of escnn's layer, with its weights."""
        arguments = check_basis_arguments(self.kernel_size, self.dilation, basis_arguments)
        # One group of fields is like another, and each of them has no more groups.
        place = *self.kernel_types, self.kernel_size, self.dilation, 1
        self.steerable_basis = SteerableBasis(*place, sampled_basis(*place, **arguments))
        if not self.steerable_basis.dimension:
            refuse_emptied_basis(*place, **arguments)
        self.weights = nn.Parameter(self.steerable_basis.start_weights().to(torch.get_default_dtype()))

    def _new_bank(self, kernel: ContinuousKernel, subgroups: tuple[str, ...], is_centred: bool) -> ContinuousFilterBank:
        """A continuous kernel for the fields of this layer."""
        in_type, out_type = self.kernel_types
        return ContinuousFilterBank(
            in_type.representations,
            out_type.representations,
            self.space,
            kernel,
            kernel_size=self.kernel_size,
            dilation=self.dilation,
            samples=self.samples,
            domain_subgroups=subgroups,
            cells=self.regions or CELLS_OF_PIXELS,
            centred=is_centred,
            kept=self._kept,
        )

    def _nominal_frequency(self) -> dict[str, Tensor]:
        """ω′ with the default in place of 0: what the start of a layer that may soften later is fixed on."""
        return nominal_frequency(self.domain_frequency)

    @property
    def basisexpansion(self) -> BasisElements | None:
        """What each of ``weights`` multiplies, as of ``R2Conv``, for ``escnn.nn.init``; None without a steerable basis.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(fields, fields, 3)
            >>> nn.init.deltaorthonormal_init(layer.weights.data, layer.basisexpansion)
            >>> layer.set_softness(0.001)
        """
        return None if self.steerable_basis is None else self.steerable_basis.elements

    @property
    def filter(self) -> Tensor:
        """What ``filter_bank`` gives, as of ``R2Conv``; there is none where K depends on the position.

        Raises:
            AttributeError: there, as torch expects of what a module has not.
        """
        if not self.is_stationary:
            raise AttributeError("filter: this layer is soft in translation and has several, see region_banks")
        return self.filter_bank()

    @torch.no_grad()
    def set_softness(self, softness: float) -> None:
        """Scale the soft part to a part of the kernel's energy, beside strict weights that were set from outside.

        Its units are scaled, as at the start, so that steps of an optimiser are as small as it is.

        Args:
            softness: s in (0, 1), of all subgroups; ``initial_softness`` for a new start.

        Raises:
            ValueError: for another value, and where there is no strict part, or no soft one, of which to be a part.

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
        if self.bank is None or self.steerable_basis is None or not 0 < present < 1:
            raise ValueError(
                f"softness can be set where strict_kernel='steerable' and both parts of the kernel are above 0, got "
                f"{softness!r} for {self} of softness {present:.3g}"
            )
        scale = math.sqrt(wanted / (1 - wanted) * (1 - present) / present)
        for pair in self.bank.steered_average.block_pairs:
            pair.units.mul_(scale)

    def describe(self) -> dict[str, Any]:
        """What decides which function the tensors of a state dict stand for; kept in its metadata."""
        kind: dict[str, Any] = {
            "strict kernel": "continuous" if self.steerable_basis is None else "steerable",
            "soft in": [],
        }
        if self.bank is None:
            return {**super().describe(), **kind}
        bank, shape = self.bank, self.bank.options
        return {
            **super().describe(),
            **kind,
            "soft in": list(bank.domain_subgroups),
            "keeps": str(self._kept),
            "kernel net": [shape.net.state_name or shape.net.__name__, shape.hidden_size],
            "dilation": bank.dilation,
            "support": shape.support,
            "filter frequency": shape.frequencies,
            "rotation coordinates": shape.rotation_coordinates,
            "frame": shape.frame,
            "regions": self.regions if "translation" in bank.domain_subgroups else None,
            "samples": self.samples if self.space.fibergroup.continuous else None,
        }

    def extra_repr(self) -> str:
        """What any layer says, and the group that is kept."""
        return super().extra_repr() + ("" if self._kept == NOTHING_KEPT else f", keep='{self._kept}'")

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *arguments: Any
    ) -> None:
        if self.steerable_basis is not None:
            adopt_r2conv_state(state_dict, prefix, self.state_dict())
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)
