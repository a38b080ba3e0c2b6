"""The attributes and methods of ``R2Conv`` that a layer shares with it, beside those that make its output."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from escnn.gspaces import GSpace
from escnn.nn import EquivariantModule, FieldType
from torch import Tensor

from ..group.exact_constants import ExactConstants
from ..integral.geometry import Geometry, TransposedGeometry
from ..on_escnn.basis_elements import BasisElements
from .arguments import check_shape
from .equivariance_check import check_equivariance
from .soft_layer import SoftLayer
from .state_dict import DescribedState, describe_fields

if TYPE_CHECKING:
    from escnn.group import GroupElement


def has_trivial_irrep(field_type: FieldType) -> bool:
    """Whether a bias can be added to any channel without breaking equivariance."""
    return any(field_type.fibergroup.irrep(*irrep).is_trivial() for irrep in field_type.irreps)


class InvariantBias(ExactConstants):
    """The map from one value for each trivial irrep, in ``R2Conv``'s order, to the bias of each channel."""

    expansion: Tensor

    def __init__(self, out_type: FieldType) -> None:
        super().__init__()
        columns = []
        start = 0
        for representation in out_type.representations:
            position = 0
            for irrep_id in representation.irreps:
                irrep = out_type.fibergroup.irrep(*irrep_id)
                if irrep.is_trivial():
                    column = np.zeros(out_type.size)
                    column[start : start + representation.size] = representation.change_of_basis[:, position]
                    columns.append(column)
                position += irrep.size
            start += representation.size
        self.set_constant("expansion", np.stack(columns, axis=1))
        self.dimension = len(columns)

    def forward(self, values: Tensor) -> Tensor:
        """Return the bias of each channel, (C,), for the values (dimension,)."""
        return self.expansion @ values


class EscnnLayer(SoftLayer, DescribedState, EquivariantModule):
    """A layer with the interface of escnn's convolutions."""

    in_type: FieldType
    out_type: FieldType
    space: GSpace
    geometry: Geometry
    bias_expansion: InvariantBias | None

    @property
    def basisexpansion(self) -> BasisElements | None:
        """The basis of the strict part, as of ``R2Conv``; None of a continuous kernel.

        It says what each of ``weights`` multiplies, for ``escnn.nn.init``, and makes a filter of them.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(fields, fields, 3)
            >>> nn.init.deltaorthonormal_init(layer.weights.data, layer.basisexpansion)
            >>> layer.set_softness(0.001)
        """
        return None if self.kernel.basis is None else self.kernel.basis.elements

    @property
    def kernel_types(self) -> tuple[FieldType, FieldType]:
        """The fields that the kernel connects, of the input (of the output of an adjoint) those of one group."""
        if isinstance(self.geometry, TransposedGeometry):
            return self.in_type, _first_group(self.out_type, self.groups)
        return _first_group(self.in_type, self.groups), self.out_type

    @property
    def kernel_size(self) -> int:
        """Side of the kernel in taps."""
        return self.geometry.kernel_size

    @property
    def padding_mode(self) -> str:
        """The values of the padding, ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``."""
        return self.geometry.padding_mode

    @property
    def stride(self) -> int:
        """Pixels from one output to the next."""
        return self.geometry.stride

    @property
    def dilation(self) -> int:
        """Pixels from one tap to the next."""
        return self.geometry.dilation

    @property
    def groups(self) -> int:
        """The number of blocks of fields that are convolved apart."""
        return self.geometry.groups

    @property
    def padding(self) -> int | tuple[int, ...]:
        """Pixels added on each side: one number, or (rows, columns) where they differ."""
        return one_or_each(self.geometry.padding)

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the output, (batch, C_in, H, W) → (batch, C_out, H_out, W_out).

        Raises:
            ValueError: for a shape that is not (batch, C_in, H, W), or smaller than the kernel.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> RelaxedR2Conv(fields, fields, 3, stride=2).evaluate_output_shape((2, 4, 9, 9))
            (2, 4, 4, 4)
        """
        check_shape("input_shape", tuple(input_shape), self.in_type, self.geometry)
        return input_shape[0], self.out_type.size, *self.geometry.output_size(*input_shape[2:])

    def check_equivariance(
        self,
        atol: float = 0.1,
        rtol: float = 0.1,
        assertion: bool = True,
        verbose: bool = True,
        device: str = "cpu",
    ) -> list[tuple[GroupElement, float]]:
        """Check that the layer is equivariant where it is strict, as ``R2Conv.check_equivariance``.

        Smooth images of mean square 1 are turned and flipped; outputs are averaged over 5 × 5 pixels and compared in a
        disk about their centre. Volumes are turned by the elements that map voxels to voxels. Of a soft layer the
        elements in which it is strict are checked, and a warning names the rest;
        :func:`~escnn_relaxed.equivariance_error` measures how soft it is, and without such a tolerance.

        Args:
            atol: error allowed of any value of the output.
            rtol: error allowed as a part of the value.
            assertion: raise an error beyond the tolerance.
            verbose: print a line for each element.
            device: where a copy of the layer computes.

        Returns:
            The elements checked, of those that escnn tests, each with its mean error.

        Raises:
            AssertionError: beyond the tolerance, where ``assertion`` is set.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax=None)
            >>> [round(error, 4) for _, error in layer.check_equivariance(verbose=False)]
            [0.0, 0.0, 0.0, 0.0]
        """
        return check_equivariance(self, atol, rtol, assertion, verbose, device)

    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function a state dict's tensors stand for; kept in its metadata."""
        operator = "transposed convolution" if isinstance(self.geometry, TransposedGeometry) else "convolution"
        return {
            "operator": operator if self.geometry.padding else "linear map",
            "kernel size": self.kernel_size,
            "group": self.space.name,
            "input": describe_fields(self.in_type),
            "output": describe_fields(self.out_type),
            "number of groups": self.groups,
            **self.kernel.describe(),
        }

    def extra_repr(self) -> str:
        """Return the field types, the convolution's arguments that are not default, and what relaxes the layer."""
        geometry = self.geometry
        parts = [f"{self.in_type}, {self.out_type}"]
        if geometry.padding:
            parts.append(f"kernel_size={geometry.kernel_size}, stride={geometry.stride}")
        for field in fields(geometry):
            value = getattr(geometry, field.name)
            is_default = value == field.default or (isinstance(value, tuple) and not any(value))
            if field.name not in ("kernel_size", "stride") and not is_default:
                parts.append(f"{field.name}={value!r}")
        if self.bias_expansion is None:
            parts.append("bias=False")
        if self.hardened:
            parts.append(f"hardened={self.hardened}")
        parts.append(self.relaxed_by or f"relax={self.kernel.frequency.described() or None}")
        if self.kernel.place.domain.kept.name:
            parts.append(f"keep='{self.kernel.place.domain.kept}'")
        return ", ".join(parts)

    def __repr__(self) -> str:
        # One line, as for R2Conv: the modules inside are not the user's layers.
        return f"{type(self).__name__}({self.extra_repr()})"


def one_or_each(numbers: tuple[int, ...]) -> int | tuple[int, ...]:
    """Return one number for all axes, or a number for each where they differ, as escnn's layers take them."""
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _first_group(field_type: FieldType, groups: int) -> FieldType:
    """Return the first of equal groups of fields."""
    return field_type if groups == 1 else field_type.index_select(list(range(len(field_type) // groups)))
