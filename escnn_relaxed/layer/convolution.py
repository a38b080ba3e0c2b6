"""Convolutions of the plane and of space, and their adjoints: layers whose kernel has taps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from escnn.gspaces import GSpace
from escnn.nn import FieldType
from torch import Tensor, nn
from typing_extensions import Unpack

from ..checks import check_no_hooks, check_size
from ..group.points import PositionFactors
from ..integral.factors import FactoredConvolution, as_weight
from ..integral.geometry import Geometry, TransposedGeometry, as_convolution
from ..kernel.tied import position_factors
from ..on_escnn.sampled_basis import built_on_the_cpu
from .arguments import check_derived_tensor, check_field_types, checked_geometry
from .gate import added_banks, check_for_all, gated_sum, gated_terms
from .relaxed_layer import RelaxedLayer
from .softness_options import SoftnessOptions, shows_softness_options


class RelaxedConvolution(RelaxedLayer):
    """A convolution of fields, or its adjoint, with a kernel that may be soft and the attributes of ``R2Conv``."""

    output_padding: int | tuple[int, ...]

    def __init__(self, in_type: FieldType, out_type: FieldType, geometry: Geometry, *others: Any) -> None:
        super().__init__(in_type, out_type, geometry, *others)
        self.kernel_size, self.stride, self.dilation = geometry.kernel_size, geometry.stride, geometry.dilation
        self.groups, self.padding, self.padding_mode = geometry.groups, _number(geometry.padding), geometry.padding_mode
        if isinstance(geometry, TransposedGeometry):
            self.output_padding = _number(geometry.output_padding)

    @property
    def kernel_types(self) -> tuple[FieldType, FieldType]:
        """The field types that the kernel connects; with ``groups`` the input (of an adjoint, output) of one."""
        if isinstance(self.geometry, TransposedGeometry):
            return self.in_type, _first_group(self.out_type, self.geometry.groups)
        return _first_group(self.in_type, self.geometry.groups), self.out_type

    def filter_banks(self, size: int | tuple[int, ...]) -> Tensor:
        """Return K at each pixel where translation is soft: (rows, columns, C_out, C_in/groups, k, k).

        For inspection only; ``forward`` does not build these banks.

        Args:
            size: height and width of the output in pixels, or one number for all axes. Of a transposed layer the output
                too, but with ``ContinuousKernel`` the input.

        Raises:
            RuntimeError: where K is the same at every position.
            TypeError: for a size that is not of integers.
            ValueError: for a size without a pixel, or not of a number for each axis.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> layer = RelaxedR2Conv(image, image, 3, padding=1, relax={"translation": 0.5})
            >>> layer.filter_banks((8, 6)).shape
            torch.Size([8, 6, 1, 1, 3, 3])
        """
        if self.is_stationary:
            raise RuntimeError("filter_banks: this layer has one filter bank, see filter_bank")
        pixels = check_size("size", size, len(self.geometry.padding))
        check_for_all("filter_banks", self.gates)
        terms, last = gated_terms(self.gates, self._hardened), math.prod(pixels)
        banks = gated_sum(terms, [self.kernel.at_pixels(self.weights, pixels, names, 0, last) for names in terms])
        return banks.unflatten(-1, [self.kernel_size] * len(pixels)).unflatten(0, pixels)

    @property
    def filter(self) -> Tensor:
        """The filter bank, as in ``R2Conv``; computed from the weights in both modes, so it cannot be set.

        Raises:
            AttributeError: where K depends on the position. torch expects this error of a missing attribute.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> RelaxedR2Conv(image, image, 5).filter.shape
            torch.Size([1, 1, 5, 5])
        """
        if not self.is_stationary:
            raise AttributeError("filter: this layer is soft in translation and has several, see filter_banks")
        return self.expand_parameters()[0]

    @filter.setter
    def filter(self, value: Tensor) -> None:
        check_derived_tensor("filter", value, self.filter_bank(), "weights")

    @torch.no_grad()
    def export(self) -> nn.Module:
        """Return a copy of this layer on plain tensors, without escnn, that gives the same numbers as in eval mode.

        It shares no memory with this layer. It is a ``Conv2d`` (or ``ConvTranspose2d``) where the layer is stationary,
        otherwise a module with factors at each pixel, for images of any size.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> RelaxedR2Conv(fields, fields, 5, padding=2).export()
            Conv2d(4, 4, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2))
        """
        check_no_hooks(type(self).__name__, self, "remove them, and register them on the result")
        if self.is_stationary or self.expands_itself:
            return as_convolution(*self.one_filter_bank(), self.geometry)
        factors, filters = position_factors(self.kernel), self._filters(self.domain.reference_size, self._hardened)
        if factors is None or filters is None:
            raise RuntimeError(
                f"export: a {self.kernel.public_name} that is soft in translation has no form on plain tensors, since "
                f"its own code makes what belongs to each pixel; harden('translation') gives it one, and the default "
                f"kernel has one"
            )
        weight, _, bias = filters
        if self.gates:
            weight, factors = self._gated(factors)
        return FactoredConvolution(weight, bias, self.geometry, factors).eval()

    def _gated(self, factors: PositionFactors) -> tuple[Tensor, PositionFactors]:
        """Return the weight of K_g and its factors, given those of K; a ``RuntimeError`` where each input has its g."""
        check_for_all("export", self.gates)
        terms = gated_terms(self.gates, self._hardened)
        filters = self._filters_of_terms(self.domain.reference_size, tuple(terms)) or []
        # All means of K over elements of the group have the same factors.
        *alone, (banks, _) = added_banks(terms, [(bank, None if of is None else factors) for bank, of in filters])
        if alone:
            # Of (1 + a) B + C the banks are B + C with 1, and B with a.
            banks, factors = torch.cat([alone[0][0] + banks[:1], banks]), factors.with_ones()
        return as_weight(banks, self.geometry, is_factored=True), factors


class TransposedConvolution(RelaxedConvolution):
    """Base of the transposed convolutions of the plane and of space."""

    _space: ClassVar[type[GSpace]]

    @built_on_the_cpu
    @shows_softness_options
    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        stride: int | tuple[int, ...] = 1,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        sigma: list[float] | float | None = None,
        frequencies_cutoff: float | Callable[[float], int] | None = None,
        rings: list[float] | None = None,
        maximum_offset: int | None = None,
        recompute: bool = False,
        basis_filter: Callable[[dict[str, Any]], bool] | None = None,
        initialize: bool = True,
        **softness: Unpack[SoftnessOptions],
    ) -> None:
        check_field_types(in_type, out_type, self._space)
        shared = kernel_size, padding, stride, dilation, groups
        geometry = checked_geometry(in_type, out_type, *shared, output_padding=output_padding)
        basis: dict[str, Any] = {"sigma": sigma, "frequencies_cutoff": frequencies_cutoff, "rings": rings}
        basis |= {"recompute": recompute, "basis_filter": basis_filter, "maximum_offset": maximum_offset}
        super().__init__(in_type, out_type, geometry, bias, basis, initialize, softness)


def _number(numbers: tuple[int, ...]) -> int | tuple[int, ...]:
    """Return one number if all axes agree, else one for each axis, as escnn's layers accept them."""
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _first_group(field_type: FieldType, groups: int) -> FieldType:
    """Return the first of equal groups of fields."""
    return field_type if groups == 1 else field_type.index_select(list(range(len(field_type) // groups)))
