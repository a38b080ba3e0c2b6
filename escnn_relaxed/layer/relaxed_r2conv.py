"""`RelaxedR2Conv`: `escnn.nn.R2Conv` with a kernel that may also depend on the absolute group element."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from escnn.nn import FieldType
from torch import Tensor, nn

from ..checks import check_bool, check_choice, check_integer
from ..kernel.basis_arguments import check_basis_arguments
from ..kernel.basis_elements import BasisElements
from ..kernel.continuous_kernel import ContinuousKernel
from ..kernel.filter_bank import ContinuousFilterBank
from ..kernel.initialization import DEFAULT_SOFTNESS, start_filter_bank, start_soft_part
from ..kernel.steerable_basis import SteerableBasis, refuse_emptied_basis, sampled_basis
from .arguments import (
    check_field_types,
    check_kernel,
    check_random_offset,
    check_softness,
    checked_geometry,
    nominal_frequency,
    resolve_relaxation,
    rotations_of,
    warn_ignored,
)
from .default_device import built_on_the_cpu
from .domain_frequency import DomainFrequency, Frequency, RegionSamples, RotationSamples
from .relaxed_convolution import RelaxedConvolution
from .state_dict import adopt_r2conv_state

__all__ = ["RelaxedR2Conv"]

DEFAULT_REGIONS = 4
# Where every pixel has its own kernel, means over positions are taken over as many, whatever the size of the image.
CELLS_OF_PIXELS = 8


class RelaxedR2Conv(RelaxedConvolution):
    r"""A planar convolution whose equivariance can be relaxed, in place of :class:`escnn.nn.R2Conv`.

    .. math::
        h(x) = \sum_d K(d; x) f(x + d)

    .. math::
        K(d; x) = \operatorname{mean}_{g}
            \rho_{\mathrm{out}}(g)\, \kappa(g^{-1}d;\ \omega' \odot a(g, x))\, \rho_{\mathrm{in}}(g)^{-1}

    κ is a continuous kernel and a(g, x) the coordinates of the absolute group element and position. The domain
    frequency ω′ of a subgroup says how fast κ may change over it: 0 is strict equivariance. The method is
    van der Ouderaa, Romero and van der Wilk (NeurIPS 2022), section "Non-stationary Integral Operator".

    Arguments up to ``initialize`` are those of ``R2Conv``, in its order and with its meaning. Those that shape
    escnn's own basis (``sigma`` … ``basis_filter``) are ignored, with a warning, if ``strict_kernel`` is
    ``"continuous"``. With nothing relaxed the layer is ``R2Conv``, and state dicts of ``R2Conv`` load.

    Args:
        in_type: field type of the input.
        out_type: field type of the output, on the same gspace.
        kernel_size: k, odd or even.
        padding: pixels on both sides, an integer or a pair (rows, columns).
        stride: step between output points in pixels, an integer or a pair of equal ones.
        dilation: spacing of the taps in pixels.
        padding_mode: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        groups: number of blocks of fields that are convolved apart.
        bias: add a bias to the trivial irreps of the output.
        sigma: widths of the rings of the steerable basis.
        frequencies_cutoff: highest frequency of the basis at each radius.
        rings: radii of the basis.
        maximum_offset: number of additional aliased frequencies.
        recompute: build the basis anew instead of taking escnn's cached one.
        basis_filter: which elements of the basis to keep.
        initialize: draw the strict weights; without, they are 0. The soft part is always drawn, of the size that fits
            drawn weights.
        relax: starting ω′ of each subgroup that may be soft: ``"rotation"``, ``"reflection"``,
            ``"translation"`` (one value, or a pair for x and y). A subgroup left out is strict for good, one
            at 0.0 is strict until changed. None: strict everywhere. Default: rotation and reflection, where
            the group has them.
        learn_relaxation: make ω′ parameters, one for each layer and axis
            (:func:`~escnn_relaxed.learning.share_domain_frequency`). A start of 0.0 is left as soon as the task asks
            for it.
        initial_softness: part of the kernel's energy that depends on the domain at the start; 0 for a soft part that
            starts at 0 and learns. Default: 0.001; 0.01 for ``strict_kernel="continuous"``.
        regions: G: where translation is soft, the output is divided into at most G×G regions, symmetric about its
            centre and of at least 4 pixels a side, and the kernel is one filter bank in each: the layer is one grouped
            convolution. More of them follow the position more finely (ω′ up to G/4) and cost more. None: a kernel for
            every pixel, the paper's form, which is slow.
        strict_kernel: ``"steerable"``: the strict part of K in ``R2Conv``'s basis, weight for weight, and a
            continuous soft part that is centred on the domain. ``"continuous"``: one continuous kernel for both,
            the paper's form, whose number of weights does not grow with the group.
        samples: number N of rotations by which a continuous group is sampled.
        random_offset: turn the grid of a continuous group by a random angle at each training step.
        kernel: what shapes κ: its net, frequencies, coordinates and support. Default: ``ContinuousKernel()``.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a value that has no meaning for these field types.

    Shape:
        GeometricTensor (batch, C_in, H, W) → (batch, C_out, H_out, W_out).

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR2(8)
        >>> in_type = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> out_type = nn.FieldType(gspace, [gspace.regular_repr] * 4)
        >>> layer = RelaxedR2Conv(in_type, out_type, kernel_size=5, padding=2, relax={"rotation": 0.5})
        >>> layer(in_type(torch.randn(2, 1, 28, 28))).shape
        torch.Size([2, 32, 28, 28])
    """

    @built_on_the_cpu
    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int] = 0,
        stride: int | tuple[int, int] = 1,
        dilation: int = 1,
        padding_mode: str = "zeros",
        groups: int = 1,
        bias: bool = True,
        sigma: list[float] | float | None = None,
        frequencies_cutoff: float | Callable[[float], int] | None = None,
        rings: list[float] | None = None,
        maximum_offset: int | None = None,
        recompute: bool = False,
        basis_filter: Callable[[dict[str, Any]], bool] | None = None,
        initialize: bool = True,
        *,
        relax: Mapping[str, Frequency] | str | None = "default",
        learn_relaxation: bool = False,
        initial_softness: float | None = None,
        regions: int | None = DEFAULT_REGIONS,
        strict_kernel: str = "steerable",
        samples: int = 16,
        random_offset: bool = False,
        kernel: ContinuousKernel | None = None,
    ) -> None:
        check_field_types(in_type, out_type)
        place = (kernel_size, padding, stride, dilation, padding_mode, groups)
        super().__init__(in_type, out_type, checked_geometry(in_type, out_type, *place), bias)
        check_choice("strict_kernel", strict_kernel, ("steerable", "continuous"))
        self.samples = check_integer("samples", samples, 1)
        self.regions = None if regions is None else check_integer("regions", regions, 1)
        self.random_offset = check_random_offset(random_offset, self.space)
        shape = check_kernel(kernel).completed(self.kernel_size, strict_kernel)
        rotations = RotationSamples(rotations_of(self.space, self.samples), shape.rotation_coordinates)
        soft = resolve_relaxation(relax, self.space, rotations)
        samples_of: dict[str, RotationSamples | RegionSamples] = {"rotation": rotations}
        if self.regions is not None:
            samples_of["translation"] = RegionSamples(self.regions)
        self._domain_frequency = DomainFrequency(soft, check_bool("learn_relaxation", learn_relaxation), samples_of)
        softness = DEFAULT_SOFTNESS[strict_kernel] if initial_softness is None else check_softness(initial_softness)
        basis_arguments: dict[str, Any] = {
            "sigma": sigma,
            "frequencies_cutoff": frequencies_cutoff,
            "rings": rings,
            "maximum_offset": maximum_offset,
            "recompute": recompute,
            "basis_filter": basis_filter,
        }
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
        """The strict part of ``R2Conv``, with its weights."""
        arguments = check_basis_arguments(self.kernel_size, self.dilation, basis_arguments)
        place = self.in_type, self.out_type, self.kernel_size, self.dilation, self.groups
        self.steerable_basis = SteerableBasis(*place, sampled_basis(*place, **arguments))
        if not self.steerable_basis.dimension:
            refuse_emptied_basis(*place, **arguments)
        self.weights = nn.Parameter(self.steerable_basis.start_weights().to(torch.get_default_dtype()))

    def _new_bank(self, kernel: ContinuousKernel, subgroups: tuple[str, ...], is_centred: bool) -> ContinuousFilterBank:
        """A continuous kernel for the fields of this layer."""
        return ContinuousFilterBank(
            self.in_fields,
            self.out_type.representations,
            self.space,
            kernel,
            kernel_size=self.kernel_size,
            dilation=self.dilation,
            samples=self.samples,
            domain_subgroups=subgroups,
            cells=self.regions or CELLS_OF_PIXELS,
            centred=is_centred,
        )

    def _nominal_frequency(self) -> dict[str, Tensor]:
        """ω′ with the default in place of 0: what the start of a layer that may soften later is fixed on."""
        return nominal_frequency(self.domain_frequency)

    @property
    def basisexpansion(self) -> BasisElements | None:
        """What each of ``weights`` multiplies, as of ``R2Conv``, for ``escnn.nn.init``; None without a steerable basis.

        Example:
            >>> from escnn import gspaces, nn
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
            "kernel net": [shape.net.state_name or shape.net.__name__, shape.hidden_size],
            "dilation": bank.dilation,
            "support": shape.support,
            "filter frequency": shape.frequencies,
            "rotation coordinates": shape.rotation_coordinates,
            "frame": shape.frame,
            "regions": self.regions if "translation" in bank.domain_subgroups else None,
            "samples": self.samples if self.space.fibergroup.continuous else None,
        }

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *arguments: Any
    ) -> None:
        if self.steerable_basis is not None:
            adopt_r2conv_state(state_dict, prefix, self.state_dict())
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)
