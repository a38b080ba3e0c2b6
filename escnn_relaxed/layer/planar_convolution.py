"""A convolution of the plane: soft translation by regions or by pixels, and grids that are turned at random."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn

from ..group.regions import RegionPartition
from ..integral.per_pixel import PixelKernel, integrate_per_pixel
from ..integral.plain_layers import PerPixelConvolution, RegionConvolution
from ..integral.regions import integrate_regions
from ..integral.stationary import ConvolutionGeometry
from ..kernel.soft_part import SoftPart
from ..torch_modes import full_precision
from .softened_convolution import SoftenedConvolution

__all__ = ["PlanarConvolution"]


class PlanarConvolution(SoftenedConvolution):
    """A planar convolution, or its adjoint, whose kernel may also depend on the position."""

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

    def filter_bank(self) -> Tensor:
        """Return K of a stationary layer in the form of ``conv2d``'s weight, (C_out, C_in/groups, k, k).

        K of a transposed layer has the form of ``conv_transpose2d``'s weight, (C_in, C_out/groups, k, k).

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
        return super().filter_bank()

    def region_banks(self, output_size: tuple[int, int]) -> Tensor:
        """Return K in each region of an output where translation is soft: (rows, columns, C_out, C_in/groups, k, k).

        Args:
            output_size: height and width of the output in pixels, or of the input of a transposed layer. Small images
                have fewer regions than ``regions``.

        Raises:
            RuntimeError: where K is the same at every position, or different at every pixel.

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
        return self._banks_of(partition).unflatten(0, partition.counts)

    def _banks_of(self, partition: RegionPartition) -> Tensor:
        """Return K in each region, row after row: (regions, C_out, C_in/groups, k, k)."""
        if self.bank is None:
            raise RuntimeError("this layer has no soft part")
        return self._laid_out(self.bank(self.domain_frequency, self.hardened, self._strict_part, partition))

    def _pixel_kernel(self, bank: SoftPart, frequency: dict[str, Tensor]) -> PixelKernel:
        """Return K at every pixel, given the soft part and its ω′."""
        strict = self._strict_part
        return PixelKernel(bank, None if strict is None else strict.kernel(), frequency, self.hardened)

    def _integrate(self, features: Tensor, is_biased: bool = True) -> Tensor:
        if self.bank is not None and self.random_offset and self.training:
            return self._integrate_turned(features, is_biased, self.bank)
        return self._integrate_on_grid(features, is_biased)

    # escnn and NumPy turn the grid, which torch.compile cannot look into.
    @torch.compiler.disable
    def _integrate_turned(self, features: Tensor, is_biased: bool, bank: SoftPart) -> Tensor:
        """h(x) by a grid that is turned at random."""
        with bank.turned(bank.random_offset()):
            return self._integrate_on_grid(features, is_biased)

    def _integrate_on_grid(self, features: Tensor, is_biased: bool) -> Tensor:
        """h(x) by the grid as it is."""
        if self.bank is None or self.is_stationary:
            return super()._integrate(features, is_biased)
        if isinstance(self.geometry, ConvolutionGeometry) and self.regions is None:
            with full_precision(features):
                kernel = self._pixel_kernel(self.bank, self.domain_frequency)
                bias = self.expanded_bias() if is_biased else None
            return integrate_per_pixel(features, kernel, bias, self.geometry)
        partition = RegionPartition.of(self.geometry.domain_size(features), self.regions or 1)
        banks, bias = self._bank_and_bias(lambda: self._banks_of(partition), features, partition)
        return integrate_regions(features, banks, bias if is_biased else None, self.geometry, partition)

    @property
    def _setting(self) -> tuple[Hashable, ...]:
        return self.hardened, None if self.bank is None else self.bank.frame.offset

    def _exported(self) -> nn.Module:
        if self.bank is None or self.is_stationary:
            return super()._exported()
        bias = self.expanded_bias()
        if isinstance(self.geometry, ConvolutionGeometry) and self.regions is None:
            frequency = {name: value.detach().clone() for name, value in self.domain_frequency.items()}
            kernel = self._pixel_kernel(self.bank.without_escnn(), frequency)
            return PerPixelConvolution(kernel, bias, self.geometry).eval()
        cells = self.regions or 1
        return RegionConvolution(self._banks_of(RegionPartition.of_cells(cells)), bias, self.geometry, cells).eval()
