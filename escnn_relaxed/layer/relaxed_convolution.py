"""A convolution whose kernel has a strict part and a soft one: what a layer does once it is built."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn

from ..group.elements import SUBGROUPS
from ..group.regions import RegionPartition
from ..integral.per_pixel import PixelKernel, integrate_per_pixel
from ..integral.plain_layers import PerPixelConvolution, RegionConvolution
from ..integral.regions import integrate_regions
from ..integral.stationary import as_convolution, integrate_stationary
from ..kernel.filter_bank import ContinuousFilterBank
from ..kernel.softness import softness
from ..kernel.steerable_basis import SteerableBasis
from ..torch_modes import full_precision
from .domain_frequency import DomainFrequency, Frequency
from .planar_convolution import PlanarConvolution

__all__ = ["RelaxedConvolution"]


class RelaxedConvolution(PlanarConvolution):
    """A planar convolution, or its adjoint, with the kernel K = strict part + continuous part; a subclass builds both.

    Attributes:
        steerable_basis: basis of the strict part, None where the continuous kernel has one of its own.
        bank: the continuous kernel, None where nothing may be soft.
        weights: of the steerable basis, None without one.
        regions: G, into how many regions along each axis soft translation divides the output (of a transposed layer
            the input); None for its pixels.
        random_offset: turn the grid of a continuous group at each training step.
    """

    steerable_basis: SteerableBasis | None
    bank: ContinuousFilterBank | None
    weights: nn.Parameter
    _domain_frequency: DomainFrequency
    regions: int | None
    random_offset: bool

    @property
    def domain_frequency(self) -> dict[str, Tensor]:
        """ω′ of each subgroup that may be soft; 2 values (x, y) for translation, else 1.

        Without units: coordinates of the domain are in [−1, 1]. Parameters where ``learn_relaxation`` is set.

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

        Raises:
            TypeError: for a value that is not a number or, of translation, a pair of them.
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
        self._domain_frequency.set(**frequencies)

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """Subgroups that have an ω′."""
        return tuple(self.domain_frequency)

    @property
    def is_stationary(self) -> bool:
        """Whether K is the same at every position, so that the layer is a ``conv2d``.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
            >>> layer = RelaxedR2Conv(image, image, 3, relax={"translation": 0.5})
            >>> layer.is_stationary
            False
            >>> layer.set_domain_frequency(translation=0.0)
            >>> layer.is_stationary
            True
        """
        return "translation" in self.hardened or not self._domain_frequency.may_vary("translation")

    def _softness(self, subgroups: tuple[str, ...]) -> Tensor:
        return softness(self._soft_bank, self.domain_frequency, self.strict_energy(), self.hardened, subgroups)

    def strict_energy(self) -> Tensor:
        """‖·‖² of the strict part in the steerable basis, 0 without one."""
        return torch.zeros(()) if self.steerable_basis is None else self.steerable_basis.energy(self.weights)

    def forget_constants(self) -> None:
        """Make anew, when it is wanted next, what is kept because nothing has been written to what it is made of."""
        self._domain_frequency.forget()
        if self.bank is not None:
            self.bank.forget()

    def drop_soft_part(self) -> None:
        """Remove the soft part of a hardened layer that has its strict part in the steerable basis."""
        if self.hardened == SUBGROUPS and self.steerable_basis is not None:
            self.bank, self.hardened = None, ()
            self._domain_frequency = DomainFrequency({}, learn=False).train(self.training)

    @property
    def _soft_bank(self) -> ContinuousFilterBank | None:
        """The continuous kernel; None where it is 0: a centred one whose domain is averaged or, at ω′ = 0, not seen."""
        if self.bank is None or not self.bank.centred:
            return self.bank
        is_soft = self.hardened != SUBGROUPS and self._domain_frequency.may_vary()
        return self.bank if is_soft else None

    def filter_bank(self) -> Tensor:
        """K of a stationary layer, (C_out, C_in/groups, k, k): what ``conv2d`` takes as its weight.

        Of a transposed layer what ``conv_transpose2d`` takes, (C_in, C_out/groups, k, k).

        Raises:
            RuntimeError: where K depends on the position.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> gspace = gspaces.rot2dOnR2(4)
            >>> image, hidden = (
            ...     nn.FieldType(gspace, [gspace.trivial_repr]),
            ...     nn.FieldType(gspace, [gspace.regular_repr]),
            ... )
            >>> RelaxedR2Conv(image, hidden, 5).filter_bank().shape
            torch.Size([4, 1, 5, 5])
        """
        if not self.is_stationary:
            raise RuntimeError(
                "filter_bank: this layer is soft in translation and has several filter banks, see region_banks"
            )
        return self._one_bank()

    def _one_bank(self) -> Tensor:
        """K where it is the same at every position, (C_out, C_in/groups, k, k)."""
        return self._laid_out(self._one_kernel())

    def _laid_out(self, banks: Tensor) -> Tensor:
        """Filter banks (…, C_out, C_in, k, k) of fields between ``kernel_types`` as the integral takes them."""
        return banks

    def _one_kernel(self) -> Tensor:
        bank = self._soft_bank
        if bank is not None:
            return bank(self.domain_frequency, self.hardened, self._added_to(bank))
        strict = self._strict_part()
        if strict is None:
            raise RuntimeError("this layer has no kernel")
        is_waited_for = self.bank is not None and distributed.is_available() and distributed.is_initialized()
        return strict + self._idle() if self.training and is_waited_for else strict

    def _idle(self) -> Tensor:
        """A 0 that depends on the parameters that K does not use at present, so that they have a gradient, of 0.

        Processes that train together wait for a gradient of every parameter.
        """
        idle = (*self._domain_frequency.parameters(), *([] if self.bank is None else self.bank.parameters()))
        return sum((0 * parameter.sum() for parameter in idle), self.weights.new_zeros(()))

    def region_banks(self, output_size: tuple[int, int]) -> Tensor:
        """K of a layer that is soft in translation, in each region of an output: (rows, columns, C_out, C_in, k, k).

        Args:
            output_size: height and width of the output in pixels, of a transposed layer those of the input. Small ones
                have fewer regions than ``regions``.

        Raises:
            RuntimeError: where K is the same at every position, or another at every pixel.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
            >>> layer = RelaxedR2Conv(image, image, 3, padding=1, relax={"translation": 0.5})
            >>> layer.region_banks((32, 32)).shape, layer.region_banks((8, 32)).shape
            (torch.Size([4, 4, 1, 1, 3, 3]), torch.Size([2, 4, 1, 1, 3, 3]))
        """
        if self.is_stationary or self.regions is None:
            raise RuntimeError(
                "region_banks: this layer has "
                + ("one filter bank, see filter_bank" if self.is_stationary else "a kernel for every pixel")
            )
        partition = RegionPartition.of(output_size, self.regions)
        return self._banks_of(partition).unflatten(0, (partition.rows.count, partition.columns.count))

    def _banks_of(self, partition: RegionPartition) -> Tensor:
        """K in each region, row after row: (regions, C_out, C_in/groups, k, k)."""
        if self.bank is None:
            raise RuntimeError("nothing is relaxed in this layer")
        banks = self.bank.at_regions(self.domain_frequency, partition, self.hardened, self._added_to(self.bank))
        return self._laid_out(banks)

    def _added_to(self, bank: ContinuousFilterBank) -> Tensor | list[Tensor] | None:
        """The kernel in the steerable basis, None without one, as it is added to that of a filter bank."""
        if self.steerable_basis is None:
            return None
        groups = bank.steered_average.pair_channels
        parts = None if groups is None else self.steerable_basis.products_between(self.weights, groups)
        return self.steerable_basis(self.weights).flatten(2) if parts is None else parts

    def _strict_part(self) -> Tensor | None:
        """The kernel in the steerable basis, None without one."""
        return None if self.steerable_basis is None else self.steerable_basis(self.weights)

    def _integrate(self, features: Tensor, bias: Tensor | None) -> Tensor:
        if self.bank is not None and self.random_offset and self.training:
            return self._integrate_turned(features, bias, self.bank)
        return self._integrate_on_grid(features, bias)

    # escnn and NumPy turn the grid, which torch.compile cannot look into.
    @torch.compiler.disable
    def _integrate_turned(self, features: Tensor, bias: Tensor | None, bank: ContinuousFilterBank) -> Tensor:
        """h(x) by a grid that is turned at random."""
        with bank.turned(bank.random_offset()):
            return self._integrate_on_grid(features, bias)

    def _integrate_on_grid(self, features: Tensor, bias: Tensor | None) -> Tensor:
        """h(x) by the grid as it is."""
        bank = self.bank
        setting = self.hardened, None if bank is None else bank.offset, self._domain_frequency.learn
        if bank is None or self.is_stationary:
            with full_precision(features):
                one = self._cache.get(self, self._one_bank, setting, self.forget_constants)
            return integrate_stationary(features, one, bias, self.geometry)
        if self.regions is None:
            with full_precision(features):
                kernel = PixelKernel(bank, self._strict_part(), self.domain_frequency, self.hardened)
            return integrate_per_pixel(features, kernel, bias, self.geometry)
        partition = RegionPartition.of(self.geometry.domain_size(features), self.regions)
        with full_precision(features):
            banks = self._cache.get(
                self, lambda: self._banks_of(partition), (setting, partition), self.forget_constants
            )
        return integrate_regions(features, banks, bias, self.geometry, partition)

    @torch.no_grad()
    def export(self) -> nn.Module:
        """This layer on plain tensors, without escnn, sharing no memory with it: the same numbers as in eval mode.

        A ``Conv2d`` (or ``ConvTranspose2d``) where the layer is stationary, else a module that holds the filter banks
        of all regions, or with ``regions=None`` one that evaluates the kernel at each pixel.

        Shape:
            of the result: (batch, C_in, H, W) → (batch, C_out, H_out, W_out).

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> gspace = gspaces.rot2dOnR2(4)
            >>> image, hidden = (
            ...     nn.FieldType(gspace, [gspace.trivial_repr]),
            ...     nn.FieldType(gspace, [gspace.regular_repr]),
            ... )
            >>> RelaxedR2Conv(image, hidden, 5, padding=2, relax={"rotation": 0.25}).export()
            Conv2d(1, 4, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2))
        """
        mode = self.training
        try:
            return self.eval()._exported()
        finally:
            self.train(mode)

    def _exported(self) -> nn.Module:
        bias = self.expanded_bias()
        if self.bank is None or self.is_stationary:
            return as_convolution(self.filter_bank(), bias, self.geometry)
        if self.regions is None:
            frequency = {name: value.detach().clone() for name, value in self.domain_frequency.items()}
            kernel = PixelKernel(self.bank.without_escnn(), self._strict_part(), frequency, self.hardened)
            return PerPixelConvolution(kernel, bias, self.geometry).eval()
        banks = self._banks_of(RegionPartition.of_cells(self.regions))
        return RegionConvolution(banks, bias, self.geometry, self.regions).eval()

    def extra_repr(self) -> str:
        """Field types, the convolution's arguments that are not default, and ω′."""
        frequencies = self._domain_frequency.described()
        regions = f", regions={self.regions}" if "translation" in frequencies else ""
        return f"{super().extra_repr()}, domain_frequency={frequencies or 'strict'}{regions}"
