"""`RelaxedR2ConvTransposed`: the adjoint of `RelaxedR2Conv`, in place of `escnn.nn.R2ConvTransposed`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from escnn.nn import FieldType, R2ConvTransposed

from ..integral.geometry import TransposedGeometry
from ..kernel.domain_frequency import Frequency
from ..kernel.kernel import KernelBuilder
from ..on_escnn.sampled_basis import built_on_the_cpu
from .arguments import check_field_types, checked_transposed_geometry
from .convolution import RelaxedConvolution
from .options import DEFAULT_REGIONS, Softening

__all__ = ["RelaxedR2ConvTransposed"]


class RelaxedR2ConvTransposed(RelaxedConvolution):
    r"""A transposed convolution whose equivariance can be relaxed, in place of :class:`escnn.nn.R2ConvTransposed`.

    .. math::
        h(y) = \sum_x K(y - sx;\ x) f(x)

    s is the stride. K is that of :class:`~escnn_relaxed.RelaxedR2Conv`: a strict part in the basis of
    ``R2ConvTransposed``, with its weights, modulated by a soft part. This layer is the adjoint of that one: it adds the
    kernel of each pixel of the *input* to the output around it. Where translation is soft, K depends on the position in
    the input.

    Arguments up to ``initialize`` are those of ``R2ConvTransposed``, in its order and with its meaning. With
    ``relax=None`` the layer is ``R2ConvTransposed``, and its state dicts load, saved in training or evaluation. The
    keys of this layer's own are the same in both.

    Args:
        in_type: field type of the input.
        out_type: field type of the output, on the same gspace.
        kernel_size: k, odd or even.
        padding: pixels cut away from the output on both sides, an integer or a pair (rows, columns).
        output_padding: pixels added to the output below and on the right, an integer or a pair (rows, columns), less
            than the larger of stride and dilation.
        stride: step in pixels of the output from one input point to the next, an integer or a pair of equal ones.
        dilation: spacing of the taps in pixels.
        groups: number of blocks of fields that are convolved apart.
        bias: add a bias to the trivial irreps of the output.
        sigma: as in :class:`~escnn_relaxed.RelaxedR2Conv`, and so are the arguments that follow.
        frequencies_cutoff: highest frequency of the basis at each radius.
        rings: radii of the basis.
        maximum_offset: number of additional aliased frequencies.
        recompute: build the basis anew instead of taking escnn's cached one.
        basis_filter: a function that says which elements of the basis to keep.
        initialize: draw the strict weights; otherwise they are 0.
        relax: the subgroups that may be soft, or a dict from them to ω′.
        learn_relaxation: make ω′ parameters.
        keep: group to which the layer stays exactly equivariant, ``"C4"`` or the like.
        initial_softness: part of the kernel's energy that depends on the domain at the start.
        regions: G: where translation is soft, the *input* is divided into at most G×G regions, and the kernel is one
            filter bank in each.
        samples: number N of rotations by which a continuous group is sampled.
        kernel: the form of the kernel.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a value that has no meaning for these field types.

    Shape:
        GeometricTensor (batch, C_in, H, W) → (batch, C_out, H_out, W_out), with
        H_out = (H − 1) · stride − 2 · padding + dilation · (k − 1) + output_padding + 1.

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR2(8)
        >>> in_type = nn.FieldType(gspace, [gspace.regular_repr] * 2)
        >>> out_type = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> layer = RelaxedR2ConvTransposed(
        ...     in_type, out_type, 5, padding=2, output_padding=1, stride=2
        ... )
        >>> layer(in_type(torch.randn(2, 16, 7, 7))).shape
        torch.Size([2, 1, 14, 14])
    """

    geometry: TransposedGeometry

    @built_on_the_cpu
    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int] = 0,
        output_padding: int | tuple[int, int] = 0,
        stride: int | tuple[int, int] = 1,
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
        *,
        relax: Mapping[str, Frequency] | Iterable[str] | str | None = "default",
        learn_relaxation: bool = False,
        keep: str | None = None,
        initial_softness: float | None = None,
        regions: int = DEFAULT_REGIONS,
        samples: int = 16,
        kernel: KernelBuilder | None = None,
    ) -> None:
        check_field_types(in_type, out_type)
        place = (kernel_size, padding, output_padding, stride, dilation, groups)
        basis_arguments: dict[str, Any] = {
            "sigma": sigma,
            "frequencies_cutoff": frequencies_cutoff,
            "rings": rings,
            "maximum_offset": maximum_offset,
            "recompute": recompute,
            "basis_filter": basis_filter,
        }
        super().__init__(
            in_type,
            out_type,
            checked_transposed_geometry(in_type, out_type, *place),
            bias,
            basis_arguments,
            initialize,
            Softening(relax, learn_relaxation, keep, initial_softness, regions, samples, kernel),
        )

    @property
    def output_padding(self) -> tuple[int, ...]:
        """The pixels added to the output below and on the right."""
        return self.geometry.output_padding


# Code that asks isinstance(layer, R2ConvTransposed), as loops that draw weights do, means this layer too.
R2ConvTransposed.register(RelaxedR2ConvTransposed)
