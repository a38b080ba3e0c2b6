"""Other ways to relax equivariance, as layers with the interface of ``RelaxedR2Conv``.

Each relaxes a strict kernel as its paper does: by a window on the group, a free kernel with a prior, or weights that
depend on the group element.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from escnn.nn import FieldType
from torch import Tensor

from .checks import check_bool
from .kernel.kernel import Kernel
from .kernel.partial import PartialKernel, check_narrowing
from .kernel.residual import ResidualKernel
from .kernel.strict import StrictKernel
from .kernel.weighted import WeightedKernel
from .layer.arguments import check_keywords
from .layer.convolution import RelaxedConvolution
from .layer.relaxed_r2conv import RelaxedR2Conv
from .layer.softness_options import check_kernel

__all__ = ["LAYERS", "PartialR2Conv", "ResidualR2Conv", "WeightedR2Conv"]

# The arguments of a layer that a baseline has in a form of its own, or not at all.
_OWN = ("in_type", "out_type", "kernel_size", "padding", "relax", "learn_relaxation", "keep", "initial_softness")
STRICT_KEYWORDS = tuple(name for name in inspect.signature(RelaxedR2Conv).parameters if name not in _OWN)


class _Baseline(RelaxedR2Conv):
    """A convolution of the plane with a kernel that relaxes a strict one in some way."""

    def __init__(
        self,
        build_kernel: Callable[..., Kernel],
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int],
        softness: float,
        keywords: Mapping[str, Any],
    ) -> None:
        check_keywords(type(self).__name__, keywords, STRICT_KEYWORDS, "beside its own")
        strict = keywords.get("kernel")
        check_kernel(strict)
        kernel = partial(build_kernel, strict=StrictKernel if strict is None else strict)
        options = {**keywords, "relax": None, "initial_softness": softness, "kernel": kernel}
        super().__init__(in_type, out_type, kernel_size, padding, **options)


class PartialR2Conv(_Baseline):
    """A group convolution onto a part of the group, whose size is learned: K_{g, g′}(d) = w_ν(g) k(g′⁻¹d, g′⁻¹g).

    k is a strict kernel, and w a window on the group, largest at the identity. The *narrowing* ν of a subgroup says how
    much is cut off: 0 is strict, 1 leaves the identity alone. For rotations w falls linearly over one step of the
    group, for reflections it is 1 − ν on the elements that reflect. Channels of a quotient field take the mean of w
    over their coset. After Romero and Lohit (arXiv 2110.10211, NeurIPS 2022), who draw the elements of the output from
    a uniform distribution on [−θ, θ], with θ learned.

    Args:
        in_type, out_type, kernel_size, padding: as in :class:`~escnn_relaxed.RelaxedR2Conv`; the fields of the output
            are regular or quotient ones unless nothing is relaxed.
        relax: starting ν of ``"rotation"`` and ``"reflection"``, in [0, 1]. A subgroup that is left out stays strict.
            None: strict everywhere. Default: those that the group has, as narrow as ``initial_softness`` says.
        learn_relaxation: make ν parameters, as the paper does.
        initial_softness: s at the start, for the default of ``relax``.
        **keywords: ``R2Conv``'s further arguments by keyword; ``samples``; and ``kernel``, the form of the strict
            kernel, as ``ContinuousKernel(…)``. Default: that of ``R2Conv``.

    Example:
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR2(8)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = PartialR2Conv(fields, fields, 5, padding=2, relax={"rotation": 0.5})
        >>> layer(fields(torch.randn(2, 8, 28, 28))).shape
        torch.Size([2, 8, 28, 28])
        >>> layer.kernel.window().tolist()  # turns of 0, 45, …, 315 degrees
        [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    """

    kernel: PartialKernel

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int] = 0,
        *,
        relax: Mapping[str, float] | str | None = "default",
        learn_relaxation: bool = True,
        initial_softness: float = 0.01,
        **keywords: Any,
    ) -> None:
        build_kernel = partial(PartialKernel, relax=relax, learn=check_bool("learn_relaxation", learn_relaxation))
        super().__init__(build_kernel, in_type, out_type, kernel_size, padding, initial_softness, keywords)

    @property
    def narrowing(self) -> dict[str, Tensor]:
        """ν of each subgroup; 0 is strict, 1 cuts off all but the identity."""
        return self.kernel.window.narrowing()

    @torch.no_grad()
    def set_narrowing(self, **values: float) -> None:
        """Set ν of subgroups that were named in ``relax``, each in [0, 1], in place: all, or none where one is not."""
        checked = {}
        for name, value in values.items():
            if name not in self.narrowing:
                raise ValueError(
                    f"{name!r} has no narrowing in this layer, which has {list(self.narrowing)}: name it in `relax` "
                    f"when the layer is built, with 0.0 for strict"
                )
            checked[name] = check_narrowing("set_narrowing", name, value)
        for name, narrowing in checked.items():
            self.narrowing[name].fill_(narrowing)


class ResidualR2Conv(_Baseline):
    """A strict convolution and a free one side by side, in one filter bank: K(d) = K_strict(d) + F(d).

    F, ``kernel.free_weight``, has a weight for each channel pair and tap. With F = 0 the layer is strict. Every field
    type and group has it. Translations stay exact. After Finzi, Benton and Wilson (arXiv 2112.01388, NeurIPS 2021), who
    give F a normal prior: the loss has ``kernel.free_weight.square().sum() / (2 * σ**2)``, divided by the number of
    training inputs.

    Args:
        in_type, out_type, kernel_size, padding: as in :class:`~escnn_relaxed.RelaxedR2Conv`.
        initial_softness: s at the start.
        **keywords: as in :class:`PartialR2Conv`.

    Example:
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.flipRot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = ResidualR2Conv(fields, fields, 3, padding=1)
        >>> layer(fields(torch.randn(2, 8, 28, 28))).shape
        torch.Size([2, 8, 28, 28])
    """

    kernel: ResidualKernel

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int] = 0,
        *,
        initial_softness: float = 0.01,
        **keywords: Any,
    ) -> None:
        super().__init__(ResidualKernel, in_type, out_type, kernel_size, padding, initial_softness, keywords)


class WeightedR2Conv(_Baseline):
    r"""A sum of L strict convolutions whose weights depend on the group element.

    .. math::
        K_{g, g'}(d) = \sum_l w_l(g')\, k_l(g'^{-1}d,\ g'^{-1}g)

    Where the input field has no group elements the weight is that of the output, w_l(g). Channels of a quotient field
    take the mean weight of their coset. Equal weights at all elements are strict. After Wang, Walters and Yu (arXiv
    2201.11969, ICML 2022).

    Args:
        in_type, out_type, kernel_size, padding: as in :class:`~escnn_relaxed.RelaxedR2Conv`. The channels of all fields
            of the input, or of all of the output, must be group elements (regular or quotient fields).
        banks: L.
        initial_softness: s at the start.
        **keywords: as in :class:`PartialR2Conv`.

    Example:
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR2(8)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = WeightedR2Conv(fields, fields, 5, padding=2, banks=3)
        >>> layer(fields(torch.randn(2, 8, 28, 28))).shape, layer.kernel.group_weights().shape
        (torch.Size([2, 8, 28, 28]), torch.Size([3, 8]))
    """

    kernel: WeightedKernel

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int] = 0,
        *,
        banks: int = 2,
        initial_softness: float = 0.01,
        **keywords: Any,
    ) -> None:
        build_kernel = partial(WeightedKernel, banks=banks)
        super().__init__(build_kernel, in_type, out_type, kernel_size, padding, initial_softness, keywords)


LAYERS: dict[str, Callable[..., RelaxedConvolution]] = {
    "relaxed": RelaxedR2Conv,
    "partial": PartialR2Conv,
    "residual": ResidualR2Conv,
    "weighted": WeightedR2Conv,
}
