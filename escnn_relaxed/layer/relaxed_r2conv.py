"""`RelaxedR2Conv`, which replaces `escnn.nn.R2Conv`, and its adjoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from escnn.gspaces import GSpace2D
from escnn.nn import FieldType, R2Conv, R2ConvTransposed
from typing_extensions import Unpack

from ..on_escnn.sampled_basis import built_on_the_cpu
from .arguments import check_field_types, checked_geometry
from .convolution import RelaxedConvolution, TransposedConvolution
from .softness_options import SoftnessOptions, shows_softness_options


class RelaxedR2Conv(RelaxedConvolution):
    r"""A planar convolution that is strict or soft, in place of :class:`escnn.nn.R2Conv`.

    By default it starts nearly as ``R2Conv`` does, and may become soft in rotation and reflection.

    .. math::
        K(d; x) = K_{\mathrm{strict}}(d) \odot \bigl(1 + f_G(c, d)\bigr) \odot \bigl(1 + f_T(c, d; x)\bigr)

    K_strict is a kernel in ``R2Conv``'s own basis, with its weights. The modulation f_G depends on the absolute
    group element of the output channel c and on the tap d, and f_T on the position x too. ⊙ is the product of entries.
    Each f has a few weights for each output field, and its mean over the group or the positions is 0. With
    ``relax=None`` the layer is ``R2Conv``, and state dicts of ``R2Conv`` load.

    The domain frequency ω′ of a subgroup says how steeply f may change over it: 0 is strict equivariance. The
    idea is that of van der Ouderaa, Romero and van der Wilk (NeurIPS 2022), section "Non-stationary Integral
    Operator". The form is another one, a strict kernel and a factor. ``kernel=ContinuousKernel(…)`` is the paper's
    form, one continuous kernel for both parts.

    Arguments up to ``initialize`` are those of ``R2Conv``, in its order and with its meaning. Those that shape
    escnn's own basis (``sigma`` … ``basis_filter``) are ignored, with a warning, by a continuous kernel.

    Args:
        in_type: field type of the input.
        out_type: field type of the output, on the same gspace.
        kernel_size: k, odd or even.
        padding: pixels added on both sides, an integer or a pair (rows, columns).
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
        basis_filter: a function that says which elements of the basis to keep.
        initialize: draw the strict weights; otherwise they are 0. The soft part is always drawn, of the size that fits
            drawn weights.
        relax: the subgroups that may be soft. Those that are left out stay strict, except that soft rotation also makes
            reflections soft.

            - a name, or several: ``"rotation"``, ``("rotation", "translation")``, ``"reflection"``;
            - a dict from names to the starting ω′, of translation one value, or a pair for x and y. With ω′ = 0.0 a
              subgroup is strict until its ω′ changes;
            - None: strict everywhere;
            - ``"default"``: rotation and reflection, where the group has them, at ω′ = 0.25, and rotation at most at
              N/4π for N rotations.
        learn_relaxation: make ω′ parameters, one for each layer and axis
            (:func:`~escnn_relaxed.learning.share_domain_frequency` makes one for several). Training moves ω′ away from
            0.0 too where the task asks for it.
        keep: group to which the layer stays exactly equivariant, however soft it is: ``"C4"`` for quarter turns,
            ``"D4"`` with the reflection too, ``"D1"`` for the left-right mirror alone. Its number of rotations divides
            the layer's. Default: no such group.
        initial_softness: part of the kernel's energy that is not equivariant at the start. With 0 the soft weights
            start at 0 and learn from there. A layer of ω′ below about 0.13 starts less soft. Default: 0.001. For a
            continuous kernel it is 0.01, and the start is near the value: 0.1 gives 0.03 to 0.3 in most layers.
            :meth:`set_softness` sets it exactly.
        samples: number N of rotations by which a continuous group is sampled. Default: 16.
        kernel: the form of the kernel. ``ContinuousKernel(…)`` is the paper's. A subclass of
            :class:`~escnn_relaxed.kernel.Kernel` is one of your own. Default: the form above.

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
        >>> layer = RelaxedR2Conv(in_type, out_type, kernel_size=5, padding=2, relax="rotation")
        >>> layer(in_type(torch.randn(2, 1, 28, 28))).shape
        torch.Size([2, 32, 28, 28])
    """

    @built_on_the_cpu
    @shows_softness_options
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
        **softness: Unpack[SoftnessOptions],
    ) -> None:
        check_field_types(in_type, out_type)
        geometry = checked_geometry(in_type, out_type, kernel_size, padding, stride, dilation, groups, padding_mode)
        basis: dict[str, Any] = {"sigma": sigma, "frequencies_cutoff": frequencies_cutoff, "rings": rings}
        basis |= {"recompute": recompute, "basis_filter": basis_filter, "maximum_offset": maximum_offset}
        super().__init__(in_type, out_type, geometry, bias, basis, initialize, softness)


# Code that asks isinstance(layer, R2Conv), as loops that draw weights do, means this layer too.
R2Conv.register(RelaxedR2Conv)


class RelaxedR2ConvTransposed(TransposedConvolution):
    """A transposed convolution whose equivariance can be relaxed, in place of :class:`escnn.nn.R2ConvTransposed`.

    For each pixel of the input it adds K, times its value, to the output around it. Where translation is soft, K
    depends on the position of the output; that of a ``ContinuousKernel`` depends on the position of the input, so that
    the layer is the adjoint of a :class:`~escnn_relaxed.RelaxedR2Conv`. With ``relax=None`` the layer is
    ``R2ConvTransposed``, and its state dicts load.

    Args:
        in_type, out_type, kernel_size, dilation, groups, bias: as in :class:`~escnn_relaxed.RelaxedR2Conv`.
        padding: pixels cut away from the output on both sides, an integer or a pair (rows, columns).
        output_padding: pixels added to the output below and on the right, less than the larger of stride and dilation.
        stride: step in pixels of the output from one input point to the next, an integer or a pair of equal ones.
        sigma, frequencies_cutoff, rings, maximum_offset, recompute, basis_filter, initialize: as in ``RelaxedR2Conv``.
        relax, learn_relaxation, keep, initial_softness, samples, kernel: as in ``RelaxedR2Conv``.

    Shape:
        GeometricTensor (batch, C_in, H, W) → (batch, C_out, H_out, W_out), with
        H_out = (H − 1) · stride − 2 · padding + dilation · (k − 1) + output_padding + 1.

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR2(8)
        >>> in_type = nn.FieldType(gspace, [gspace.regular_repr] * 2)
        >>> out_type = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> layer = RelaxedR2ConvTransposed(in_type, out_type, 4, padding=1, stride=2)
        >>> layer(in_type(torch.randn(2, 16, 7, 7))).shape
        torch.Size([2, 1, 14, 14])
    """

    _space = GSpace2D


# Code that asks isinstance(layer, R2ConvTransposed), as loops that draw weights do, means this layer too.
R2ConvTransposed.register(RelaxedR2ConvTransposed)
