"""`RelaxedR2Conv`: `escnn.nn.R2Conv` with a kernel that may also depend on the absolute group element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn

from .arguments import (
    check_choice,
    check_integer,
    check_softness,
    filter_frequencies,
    nominal_frequency,
    resolve_relaxation,
    rotations_of,
    warn_ignored,
)
from .domain_frequency import DomainFrequency, Frequency
from .filter_bank import ContinuousFilterBank, KernelSettings
from .initialization import STEERABLE_LAYERS, gain, start_filter_bank, start_soft_part, steerable_drawer
from .integral_operator import PositionalBank
from .planar_convolution import PlanarConvolution
from .r2conv_state import adopt_r2conv_state
from .steerable_basis import SteerableBasis

__all__ = ["RelaxedR2Conv"]

HIDDEN_SIZE = 32
SOFT_HIDDEN_SIZE = 8


class RelaxedR2Conv(PlanarConvolution):
    r"""A planar convolution whose equivariance can be relaxed, in place of :class:`escnn.nn.R2Conv`.

    .. math::
        h(x) = \sum_d K(d; y) f(y), \quad y = x + d, \qquad
        K(d; y) = \operatorname{mean}_{g} \rho_{out}(g)\, \kappa(g^{-1}d;\ \omega' \odot a(g, y))\, \rho_{in}(g)^{-1}

    κ is a continuous kernel and a(g, y) the coordinates of the absolute group element and position. The domain
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
        learn_relaxation: make ω′ parameters.
        samples: number N of rotations by which a continuous group is sampled.
        random_offset: turn the grid of a continuous group by a random angle at each training step.
        frame: ``"group"``: the position that κ sees is g⁻¹y, so that soft translation leaves rotations about
            the image centre exact. ``"image"``: it is y.
        domain: ``"input"``: κ sees the position y of the input; ``"output"``: that of the output, x.
        rotation_coordinates: ``"circle"``: a rotation is (cos θ, sin θ); ``"log"``: its angle over 2π, the
            paper's form, smooth for integer frequencies only.
        filter_frequency: ω of ``"position"``, ``"rotation"``, ``"reflection"``, or one number for the position.
            Default: 0.05 per pixel of the radius, above which
            kernels turn worse off the pixel grid than those of ``R2Conv``.
        kernel_net: ``"fourier"`` or ``"siren"``.
        hidden_size: J, hidden values of the kernel net. Default: 32, the paper's; 8 where the continuous kernel
            is the soft part alone.
        initial_softness: part of the kernel's energy that depends on the domain at the start.
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
        frame: str = "group",
        domain: str = "input",
        rotation_coordinates: str = "circle",
        filter_frequency: Mapping[str, float] | float | None = None,
        kernel_net: str = "fourier",
        hidden_size: int | None = None,
        initial_softness: float = 0.01,
        support: str = "smooth",
    ) -> None:
        super().__init__(in_type, out_type, kernel_size, padding, stride, dilation, padding_mode, groups, bias)
        self.samples = check_integer("samples", samples, 1)
        self.domain = check_choice("domain", domain, ("input", "output"))
        initial_softness = check_softness(initial_softness)
        self.random_offset = random_offset and self.space.fibergroup.continuous
        check_choice("rotation_coordinates", rotation_coordinates, ("circle", "log"))
        check_choice("strict_kernel", strict_kernel, ("steerable", "continuous"))
        check_choice("kernel_net", kernel_net, ("fourier", "siren"))
        check_choice("support", support, ("smooth", "disk"))
        if hidden_size is None:
            hidden_size = SOFT_HIDDEN_SIZE if strict_kernel == "steerable" else HIDDEN_SIZE
        rotations = rotations_of(self.space, self.samples)
        start = resolve_relaxation(relax, self.space, rotations, rotation_coordinates)
        frequencies = filter_frequencies(filter_frequency, self.kernel_size)
        basis_arguments = {
            "sigma": sigma,
            "frequencies_cutoff": frequencies_cutoff,
            "rings": rings,
            "maximum_offset": maximum_offset,
            "recompute": recompute,
            "basis_filter": basis_filter,
        }
        self._domain_frequency = DomainFrequency(start, learn_relaxation)
        settings = KernelSettings(
            kernel_size=self.geometry.kernel_size,
            dilation=self.geometry.dilation,
            edge=1.0 if support == "smooth" else 0.0,
            filter_frequency=frequencies,
            domain_subgroups=tuple(start),
            rotation_coordinates=rotation_coordinates,
            frame=check_choice("frame", frame, ("group", "image")),
            kernel_net=kernel_net,
            hidden_size=check_integer("hidden_size", hidden_size, 1),
            samples=self.samples,
        )
        self.steerable_basis: SteerableBasis | None = None
        self.bank: ContinuousFilterBank | None = None
        self.register_parameter("weights", None)
        if strict_kernel == "steerable":
            self._build_hybrid(settings, basis_arguments, initial_softness, initialize)
        else:
            warn_ignored(basis_arguments)
            self._build_continuous(settings, initial_softness)

    def _build_continuous(self, settings: KernelSettings, initial_softness: float) -> None:
        """One continuous kernel, strict and soft (the paper's form)."""
        self.bank = self._continuous_bank(settings, centred=False)
        start_filter_bank(self.bank, nominal_frequency(self.domain_frequency), initial_softness)

    def _build_hybrid(
        self,
        settings: KernelSettings,
        basis_arguments: dict[str, Any],
        initial_softness: float,
        initialize: bool,
    ) -> None:
        """The strict part in ``R2Conv``'s basis, the soft part continuous and centred (design §4)."""
        kernel_size, dilation = settings.kernel_size, settings.dilation
        basis = SteerableBasis(self.in_type, self.out_type, kernel_size, dilation, self.groups, **basis_arguments)
        start = basis.start_weights().to(torch.get_default_dtype())
        if settings.domain_subgroups:
            # R2Conv's own start is kept only where the layer is R2Conv: its gain is a matter of chance.
            start = basis.centred(start)
            drawer = steerable_drawer(self.space, kernel_size, basis_arguments)
            start = start / gain(
                basis(start), self.in_fields, self.out_type.representations, self.space, drawer, STEERABLE_LAYERS
            )
            self.bank = self._continuous_bank(settings, centred=True)
            frequency = nominal_frequency(self.domain_frequency)
            start_soft_part(self.bank, frequency, initial_softness, basis(start))
        self.steerable_basis = basis
        self.weights = nn.Parameter(start if initialize else torch.zeros_like(start))

    def _continuous_bank(self, settings: KernelSettings, centred: bool) -> ContinuousFilterBank:
        return ContinuousFilterBank(self.in_fields, self.out_type.representations, self.space, settings, centred)

    @property
    def domain_frequency(self) -> dict[str, Tensor]:
        """ω′ of each subgroup that may be soft: 2 values (x, y) for translation, else 1."""
        return self._domain_frequency.values()

    def set_domain_frequency(self, **frequencies: Frequency) -> None:
        """Set ω′ of subgroups in place; 0 for all makes the layer strict.

        Raises:
            ValueError: for a subgroup that was not named in ``relax``, or a value that is not finite and ≥ 0.

        Example:
            >>> from escnn import gspaces, nn
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25})
            >>> layer.set_domain_frequency(rotation=0.0)
            >>> layer.domain_frequency
            {'rotation': tensor([0.])}
        """
        self._domain_frequency.set(**frequencies)

    @property
    def is_stationary(self) -> bool:
        """True where K does not depend on the position: the layer is a ``conv2d``."""
        return not self._domain_frequency.may_vary("translation")

    def filter_bank(self) -> Tensor:
        """K of a stationary layer, (C_out, C_in/groups, k, k).

        Raises:
            RuntimeError: where K depends on the position.
        """
        if not self.is_stationary:
            raise RuntimeError("filter_bank: this layer is soft in translation and has a filter bank per position")
        parts = []
        if self.steerable_basis is not None:
            parts.append(self.steerable_basis(self.weights))
        if self.bank is not None and (not self.bank.centred or self._domain_frequency.may_vary()):
            parts.append(self.bank(self.domain_frequency))
        bank: Tensor = sum(parts[1:], parts[0])
        return bank

    def positional_bank(self, height: int, width: int) -> tuple[list[int], PositionalBank]:
        """The taps where K may be non-zero, and K at a tap for an image of this size."""
        bank, geometry = self.bank, self.geometry
        if bank is None:
            raise RuntimeError("positional_bank: nothing is relaxed in this layer, use filter_bank")
        if self.domain == "input":
            grid = bank.grid.pixel_grid((height, width), geometry.padding, geometry.padding_mode)
        else:
            size = geometry.output_size(height, width)
            grid = bank.grid.output_grid((height, width), geometry.padding, size, geometry.stride)
        numbers = {tap: number for number, tap in enumerate(bank.grid.support.tolist())}
        strict = None
        if self.steerable_basis is not None:
            strict = self.steerable_basis(self.weights).flatten(2)

        def bank_at(tap: int, window: tuple[slice, slice]) -> Tensor:
            positions = (grid[window] if self.domain == "input" else grid).reshape(-1, 2)
            parts = []
            if strict is not None:
                parts.append(strict[..., tap, None].expand(-1, -1, len(positions)))
            if tap in numbers:
                parts.append(bank.at_positions(self.domain_frequency, numbers[tap], positions))
            at_tap: Tensor = sum(parts[1:], parts[0])
            return at_tap

        return list(numbers) if strict is None else list(range(geometry.kernel_size**2)), bank_at

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        """Apply the layer to a GeometricTensor (batch, C_in, H, W) of ``in_type``.

        Raises:
            TypeError: for anything but a floating-point GeometricTensor of ``in_type``.
            ValueError: for an image smaller than the kernel.
        """
        if self.random_offset and self.training and self.bank is not None:
            self.bank.turn(self.bank.random_offset())
        return super().forward(input)

    def train(self, mode: bool = True) -> RelaxedR2Conv:
        """Set the mode; evaluation goes back to the fixed grid of a continuous group."""
        if not mode and self.bank is not None:
            self.bank.turn(0.0)
        super().train(mode)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        if self.steerable_basis is not None:
            adopt_r2conv_state(state_dict, prefix, self.state_dict())
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        """Field types, the convolution's arguments that are not default, and ω′."""
        frequencies = {name: [round(v, 4) for v in value.tolist()] for name, value in self.domain_frequency.items()}
        return f"{super().extra_repr()}, domain_frequency={frequencies or 'strict'}"
