"""`RelaxedR3Conv`, which replaces `escnn.nn.R3Conv`, and its adjoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from escnn.gspaces import GSpace3D
from escnn.nn import FieldType, R3Conv, R3ConvTransposed
from typing_extensions import Unpack

from ..on_escnn.sampled_basis import built_on_the_cpu
from .arguments import check_field_types, checked_geometry
from .convolution import RelaxedConvolution, TransposedConvolution
from .softness_options import SoftnessOptions, shows_softness_options


class RelaxedR3Conv(RelaxedConvolution):
    """A convolution of volumes whose equivariance can be relaxed, in place of :class:`escnn.nn.R3Conv`.

    It is :class:`~escnn_relaxed.RelaxedR2Conv` in three dimensions. With
    ``relax=None`` the layer is ``R3Conv``, and state dicts of ``R3Conv`` load. The coordinates of a rotation are the
    entries of its matrix, divided by √2, so ω′ has the same meaning as in the plane. An element that reflects has one
    more coordinate. The softness of a layer of a continuous group is that over its sampled elements. Regular fields are
    heavy in space: a warning says how much memory escnn's basis takes.

    Args:
        in_type, out_type, kernel_size, dilation, padding_mode, groups, bias: as in
            :class:`~escnn_relaxed.RelaxedR2Conv`.
        sigma, frequencies_cutoff, rings, recompute, basis_filter, initialize: as in ``RelaxedR2Conv``.
        relax, learn_relaxation, initial_softness, kernel: as in ``RelaxedR2Conv``.
        padding: voxels added on both sides, an integer or a triple (planes, rows, columns).
        stride: step between output points, an integer or a triple of equal ones.
        keep: group to which the layer stays exactly equivariant, however soft it is: ``"SO(2)"`` for all rotations
            about the axis z, the first axis of a volume, or the id of a subgroup, as ``gspace.fibergroup.subgroup``
            takes it: ``(False, 4)`` for the quarter turns about z of the octahedral group; or elements of a finite
            group that generate it. Default: no such group.
        samples: number of rotations by which a continuous group is sampled. SO(3) and O(3) take the 24 of the cube, or
            a multiple of 24: those of escnn's Thomson grids. Default: 24.

    Shape:
        GeometricTensor (batch, C_in, D, H, W) → (batch, C_out, D_out, H_out, W_out).

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot3dOnR3()
        >>> scalar = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> hidden = nn.FieldType(gspace, [gspace.irrep(l) for l in (0, 1, 2)])
        >>> layer = RelaxedR3Conv(scalar, hidden, 3, padding=1, keep="SO(2)")
        >>> layer(scalar(torch.randn(2, 1, 8, 8, 8))).shape
        torch.Size([2, 9, 8, 8, 8])
    """

    @built_on_the_cpu
    @shows_softness_options
    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int, int] = 0,
        stride: int | tuple[int, int, int] = 1,
        dilation: int = 1,
        padding_mode: str = "zeros",
        groups: int = 1,
        bias: bool = True,
        sigma: list[float] | float | None = None,
        frequencies_cutoff: float | Callable[[float], int] | None = None,
        rings: list[float] | None = None,
        recompute: bool = False,
        basis_filter: Callable[[dict[str, Any]], bool] | None = None,
        initialize: bool = True,
        **softness: Unpack[SoftnessOptions],
    ) -> None:
        check_field_types(in_type, out_type, GSpace3D)
        geometry = checked_geometry(in_type, out_type, kernel_size, padding, stride, dilation, groups, padding_mode)
        basis: dict[str, Any] = {"sigma": sigma, "frequencies_cutoff": frequencies_cutoff, "rings": rings}
        basis |= {"recompute": recompute, "basis_filter": basis_filter}
        super().__init__(in_type, out_type, geometry, bias, basis, initialize, softness)


# Code that asks isinstance(layer, R3Conv), as loops that draw weights do, means this layer too.
R3Conv.register(RelaxedR3Conv)


class RelaxedR3ConvTransposed(TransposedConvolution):
    """A transposed convolution of volumes that can be relaxed, in place of :class:`escnn.nn.R3ConvTransposed`.

    It is :class:`~escnn_relaxed.RelaxedR2ConvTransposed` in three dimensions: where translation is strict the adjoint
    of a :class:`~escnn_relaxed.RelaxedR3Conv` with the same kernel. With ``relax=None`` the layer is
    ``R3ConvTransposed``, and its state dicts load.

    Args:
        in_type, out_type, kernel_size, dilation, groups, bias: as in :class:`~escnn_relaxed.RelaxedR3Conv`.
        padding: voxels cut away from the output on both sides, an integer or a triple (planes, rows, columns).
        output_padding: voxels added to the output behind, below and on the right, less than the larger of stride and
            dilation.
        stride: step in voxels of the output from one input point to the next, an integer or a triple of equal ones.
        sigma, frequencies_cutoff, rings, recompute, basis_filter, initialize: as in ``RelaxedR3Conv``.
        maximum_offset: does nothing, as in ``R3ConvTransposed``.
        relax, learn_relaxation, keep, initial_softness, samples, kernel: as in ``RelaxedR3Conv``.

    Shape:
        GeometricTensor (batch, C_in, D, H, W) → (batch, C_out, D_out, H_out, W_out).

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.octaOnR3()
        >>> scalar = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> hidden = nn.FieldType(gspace, [gspace.irrep(l) for l in (0, 1)])
        >>> layer = RelaxedR3ConvTransposed(hidden, scalar, 4, padding=1, stride=2)
        >>> layer(hidden(torch.randn(2, 4, 4, 4, 4))).shape
        torch.Size([2, 1, 8, 8, 8])
    """

    _space = GSpace3D


# Code that asks isinstance(layer, R3ConvTransposed), as loops that draw weights do, means this layer too.
R3ConvTransposed.register(RelaxedR3ConvTransposed)
