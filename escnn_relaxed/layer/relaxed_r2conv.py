"""`RelaxedR2Conv`: `escnn.nn.R2Conv` with a kernel that may also depend on the absolute group element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from escnn.nn import FieldType
from torch import nn

from ..checks import check_bool, check_choice, check_integer
from ..kernel.basis_arguments import check_basis_arguments
from ..kernel.filter_bank import KernelSettings
from ..kernel.initialization import DEFAULT_SOFTNESS, start_continuous, start_hybrid
from ..kernel.steerable_basis import refuse_emptied_basis
from .arguments import (
    check_random_offset,
    check_softness,
    filter_frequencies,
    nominal_frequency,
    resolve_relaxation,
    rotations_of,
    warn_ignored,
)
from .domain_frequency import DomainFrequency, Frequency, RegionSamples, RotationSamples
from .relaxed_convolution import RelaxedConvolution
from .state_dict import adopt_r2conv_state

__all__ = ["RelaxedR2Conv"]

HIDDEN_SIZE = 32
SOFT_HIDDEN_SIZE = 8
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
        stride: step between output points in pixels.
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
        initialize: draw the strict weights; without, they are 0. The soft part is always drawn.
        relax: starting ω′ of each subgroup that may be soft: ``"rotation"``, ``"reflection"``,
            ``"translation"`` (one value, or a pair for x and y). A subgroup left out is strict for good, one
            at 0.0 is strict until changed. None: strict everywhere. Default: rotation and reflection, where
            the group has them.
        strict_kernel: ``"steerable"``: the strict part of K in ``R2Conv``'s basis, weight for weight, and a
            continuous soft part that is centred on the domain. ``"continuous"``: one continuous kernel for both,
            the paper's form, whose number of weights does not grow with the group.
        learn_relaxation: make ω′ parameters, one for each layer and axis
            (:func:`~escnn_relaxed.learning.share_domain_frequency`). A start of 0.0 is left as soon as the task asks
            for it.
        samples: number N of rotations by which a continuous group is sampled.
        random_offset: turn the grid of a continuous group by a random angle at each training step.
        regions: G: where translation is soft, the output is divided into at most G×G regions, symmetric about its
            centre and of at least 4 pixels a side, and the kernel is one filter bank in each: the layer is one grouped
            convolution. More of them follow the position more finely (ω′ up to G/4) and cost more. None: a kernel for
            every pixel, the paper's form, which is slow.
        frame: ``"group"``: the position that κ sees is g⁻¹x, so that soft translation leaves rotations about
            the image centre exact. ``"image"``: it is x.
        rotation_coordinates: ``"circle"``: a rotation is (cos θ, sin θ); ``"log"``: its angle over 2π, the
            paper's form, smooth for integer frequencies only.
        filter_frequency: ω of ``"position"``, ``"rotation"``, ``"reflection"``, or one number for the position.
            Default: 0.05 per pixel of the radius, with which kernels turn as well off the pixel grid as those of
            ``R2Conv``; 0.12 for ``strict_kernel="continuous"``, which trains better and turns worse.
        kernel_net: ``"fourier"`` or ``"siren"``.
        hidden_size: J, hidden values of the kernel net. Default: 32, the paper's; 8 where the continuous kernel
            is the soft part alone.
        initial_softness: part of the kernel's energy that depends on the domain at the start; 0 for a soft part that
            starts at 0 and learns. Default: 0.001; 0.01 for ``strict_kernel="continuous"``.
        support: ``"smooth"``: a disk with an edge that falls over a pixel; ``"disk"``: the paper's hard disk.

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

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int] = 0,
        stride: int = 1,
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
        strict_kernel: str = "steerable",
        learn_relaxation: bool = False,
        samples: int = 16,
        random_offset: bool = False,
        regions: int | None = DEFAULT_REGIONS,
        frame: str = "group",
        rotation_coordinates: str = "circle",
        filter_frequency: Mapping[str, float] | float | None = None,
        kernel_net: str = "fourier",
        hidden_size: int | None = None,
        initial_softness: float | None = None,
        support: str = "smooth",
    ) -> None:
        super().__init__(in_type, out_type, kernel_size, padding, stride, dilation, padding_mode, groups, bias)
        self.samples = check_integer("samples", samples, 1)
        self.regions = None if regions is None else check_integer("regions", regions, 1)
        self.random_offset = check_random_offset(random_offset, self.space)
        check_choice("rotation_coordinates", rotation_coordinates, ("circle", "log"))
        check_choice("strict_kernel", strict_kernel, ("steerable", "continuous"))
        initial_softness = (
            DEFAULT_SOFTNESS[strict_kernel] if initial_softness is None else check_softness(initial_softness)
        )
        check_choice("kernel_net", kernel_net, ("fourier", "siren"))
        check_choice("support", support, ("smooth", "disk"))
        if hidden_size is None:
            hidden_size = SOFT_HIDDEN_SIZE if strict_kernel == "steerable" else HIDDEN_SIZE
        rotations = RotationSamples(rotations_of(self.space, self.samples), rotation_coordinates)
        soft = resolve_relaxation(relax, self.space, rotations)
        frequencies = filter_frequencies(filter_frequency, self.kernel_size, strict_kernel)
        basis_arguments: dict[str, Any] = {
            "sigma": sigma,
            "frequencies_cutoff": frequencies_cutoff,
            "rings": rings,
            "maximum_offset": maximum_offset,
            "recompute": recompute,
            "basis_filter": basis_filter,
        }
        samples_of: dict[str, RotationSamples | RegionSamples] = {"rotation": rotations}
        if self.regions is not None:
            samples_of["translation"] = RegionSamples(self.regions)
        self._domain_frequency = DomainFrequency(soft, check_bool("learn_relaxation", learn_relaxation), samples_of)
        settings = KernelSettings(
            kernel_size=self.geometry.kernel_size,
            dilation=self.geometry.dilation,
            edge=1.0 if support == "smooth" else 0.0,
            filter_frequency=frequencies,
            domain_subgroups=tuple(soft),
            rotation_coordinates=rotation_coordinates,
            frame=check_choice("frame", frame, ("group", "image")),
            cells=self.regions or CELLS_OF_PIXELS,
            kernel_net=kernel_net,
            hidden_size=check_integer("hidden_size", hidden_size, 1),
            samples=self.samples,
        )
        frequency = nominal_frequency(self.domain_frequency)
        check_bool("initialize", initialize)
        if strict_kernel == "steerable":
            place = self.geometry.kernel_size, self.geometry.dilation
            basis_arguments = check_basis_arguments(*place, basis_arguments)
            self.steerable_basis, start, self.bank = start_hybrid(
                in_type, out_type, self.groups, settings, basis_arguments, frequency, initial_softness
            )
            if len(start) == 0:
                refuse_emptied_basis(in_type, out_type, *place, self.groups, **basis_arguments)
            self.weights = nn.Parameter(start if initialize else torch.zeros_like(start))
        else:
            if soft and not initial_softness:
                raise ValueError(
                    "initial_softness must be above 0 with strict_kernel='continuous', where the weights are those of "
                    "the strict part too; relax={'rotation': 0.0} starts strict"
                )
            warn_ignored(basis_arguments)
            self.steerable_basis = None
            self.register_parameter("weights", None)
            fields = self.in_fields, out_type.representations
            self.bank = start_continuous(*fields, self.space, settings, frequency, initial_softness)

    def describe(self) -> dict[str, Any]:
        """What decides which function the tensors of a state dict stand for; kept in its metadata."""
        kind: dict[str, Any] = {
            "strict kernel": "continuous" if self.steerable_basis is None else "steerable",
            "soft in": [],
        }
        if self.bank is None:
            return {**super().describe(), **kind}
        settings = self.bank.settings
        return {
            **super().describe(),
            **kind,
            "soft in": list(settings.domain_subgroups),
            "kernel net": [settings.kernel_net, settings.hidden_size],
            "dilation": settings.dilation,
            "support": "smooth" if settings.edge else "disk",
            "filter frequency": dict(settings.filter_frequency),
            "rotation coordinates": settings.rotation_coordinates,
            "frame": settings.frame,
            "regions": self.regions if "translation" in settings.domain_subgroups else None,
            "samples": self.samples if self.space.fibergroup.continuous else None,
        }

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *arguments: Any
    ) -> None:
        if self.steerable_basis is not None:
            adopt_r2conv_state(state_dict, prefix, self.state_dict())
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)
