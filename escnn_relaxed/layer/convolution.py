"""The layer: a kernel, an integral and a bias. One class for the plane, its adjoint and space."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn
from typing_extensions import Self

from ..checks import check_bool, check_no_hooks, check_size
from ..group.exact_constants import ExactConstants
from ..integral.at_pixels import integrate_at_pixels
from ..integral.factors import FactoredConvolution, as_weight, integrate
from ..integral.geometry import Geometry, as_convolution, image_size
from ..kernel.tied import TiedKernel
from ..torch_modes import full_precision
from .arguments import Softening, check_input, check_softness
from .escnn_layer import EscnnLayer, InvariantBias, has_trivial_irrep
from .memo import EvaluationMemo


class RelaxedConvolution(EscnnLayer):
    """A convolution of fields, or its adjoint, with a kernel that may be soft."""

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        geometry: Geometry,
        bias: bool,
        basis_arguments: Mapping[str, Any],
        initialize: bool,
        softening: Softening,
    ) -> None:
        super().__init__()
        self.in_type, self.out_type, self.space = in_type, out_type, in_type.gspace
        self.geometry = geometry
        self.hardened: tuple[str, ...] = ()
        self._memo = EvaluationMemo()
        self.bias_expansion: InvariantBias | None = None
        self.register_parameter("bias", None)
        if check_bool("bias", bias) and has_trivial_irrep(out_type):
            self.bias_expansion = InvariantBias(out_type)
            self.bias = nn.Parameter(torch.zeros(self.bias_expansion.dimension))
        given = softening.initial_softness
        given = given if given is None else check_softness(given)
        self.kernel = softening.build(*self.kernel_types, geometry.kernel_size, geometry.dilation, basis_arguments)
        weights = self.kernel.start_weights()
        self.register_parameter("weights", None if weights is None else nn.Parameter(weights))
        self.kernel.start(self.weights, self.kernel.default_softness if given is None else given)
        if not check_bool("initialize", initialize) and weights is not None:
            nn.init.zeros_(self.weights)

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        """Apply the layer to a GeometricTensor (batch, C_in, H, W) of ``in_type``.

        Raises:
            TypeError: for anything but a floating-point GeometricTensor of ``in_type``.
            ValueError: for an image smaller than the kernel.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
            >>> layer = RelaxedR2Conv(image, image, 5, stride=2)
            >>> layer(image(torch.randn(2, 1, 9, 9))).shape
            torch.Size([2, 1, 3, 3])
        """
        check_input(input, self.in_type, self.geometry)
        kernel, size = self.kernel, None
        if input.tensor.is_meta != kernel.frequency.elsewhere:
            # torch's recipe for ensembles calls a skeleton on the meta device with weights of others.
            for module in self.modules():
                if isinstance(module, ExactConstants):
                    module.follow(self.like)
        kernel.draw()
        if kernel.varies(self.hardened):
            if not kernel.is_factored:
                return GeometricTensor(self._integrated_at_pixels(input.tensor), self.out_type)
            size = self.geometry.output_size(*image_size(input.tensor))
        if self.training:
            filters = self._filters(size, self.hardened)
        else:
            filters = self._memo(self, self._filters, size, self.hardened, kernel.settings())
        return GeometricTensor(integrate(input.tensor, *filters, self.geometry), self.out_type)

    def _filters(
        self, size: tuple[int, ...] | None, hardened: tuple[str, ...], *_: Hashable
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return K as the weight of a convolution, its factors at pixels and the bias of each channel."""
        with full_precision(self.like):
            if size is None:
                banks, factors = self.kernel(self.weights, hardened), None
            else:
                banks, factors = self.kernel.filters(self.weights, size, hardened)
            return as_weight(banks, self.geometry, factors is not None), factors, self._expanded_bias()

    def _integrated_at_pixels(self, features: Tensor) -> Tensor:
        """Return the output of a kernel that is made at every pixel."""
        size, kernel = self.geometry.domain_size(features), self.kernel

        def banks(start: int, end: int) -> Tensor:
            with full_precision(self.like):
                return kernel.at_pixels(self.weights, size, self.hardened, start, end)

        return integrate_at_pixels(features, banks, kernel.values_at_a_pixel(), self.expanded_bias, self.geometry)

    def _expanded_bias(self) -> Tensor | None:
        """Return the bias of each channel in the precision that is set."""
        return None if self.bias_expansion is None else self.bias_expansion(self.bias)

    @property
    def expanded_bias(self) -> Tensor | None:
        """The bias of each channel, (C_out,), as in ``R2Conv``; None without trivial irreps or with ``bias=False``."""
        with full_precision(self.like):
            return self._expanded_bias()

    @property
    def is_stationary(self) -> bool:
        """Whether K is the same at every position, so that the layer is one convolution.

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
        return not self.kernel.varies(self.hardened)

    def filter_bank(self) -> Tensor:
        """Return K of a stationary layer in the form of ``conv2d``'s weight, (C_out, C_in/groups, k, …).

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
                "filter_bank: this layer is soft in translation and has several filter banks, see filter_banks"
            )
        return self._filters(None, self.hardened)[0]

    def filter_banks(self, size: int | tuple[int, ...]) -> Tensor:
        """Return K at each pixel where translation is soft: (rows, columns, C_out, C_in/groups, k, k).

        It is there to look at: a forward does without.

        Args:
            size: height and width of the output in pixels, or one number for all axes. Of a transposed layer the output
                too, but with ``ContinuousKernel`` the input.

        Raises:
            RuntimeError: where K is the same at every position.
            TypeError: for a size that is not of integers.
            ValueError: for a size without a pixel, or not of a number for each axis.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
            >>> layer = RelaxedR2Conv(image, image, 3, padding=1, relax={"translation": 0.5})
            >>> layer.filter_banks((8, 6)).shape
            torch.Size([8, 6, 1, 1, 3, 3])
        """
        if self.is_stationary:
            raise RuntimeError("filter_banks: this layer has one filter bank, see filter_bank")
        pixels = check_size("size", size, len(self.geometry.padding))
        with full_precision(self.like):
            banks = self.kernel.at_pixels(self.weights, pixels, self.hardened, 0, math.prod(pixels))
        return banks.unflatten(0, pixels)

    @property
    def filter(self) -> Tensor:
        """The filter bank, as in ``R2Conv``.

        Raises:
            AttributeError: where K depends on the position. torch expects this error of a missing attribute.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
            >>> layer = RelaxedR2Conv(image, image, 5)
            >>> torch.nn.functional.conv2d(
            ...     torch.randn(2, 1, 9, 9), layer.filter, layer.expanded_bias
            ... ).shape
            torch.Size([2, 1, 5, 5])
        """
        if not self.is_stationary:
            raise AttributeError("filter: this layer is soft in translation and has several, see filter_banks")
        return self.filter_bank()

    def expand_parameters(self) -> tuple[Tensor, Tensor | None]:
        """Return the filter bank (C_out, C_in/groups, k, k) and bias (C_out,) of a stationary layer, as ``R2Conv``.

        The bias is None without trivial irreps in the output, or with ``bias=False``.

        Raises:
            RuntimeError: where K depends on the position.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> filter_bank, bias = RelaxedR2Conv(fields, fields, 3).expand_parameters()
            >>> filter_bank.shape, bias.shape
            (torch.Size([4, 4, 3, 3]), torch.Size([4]))
        """
        return self.filter_bank(), self.expanded_bias

    @torch.no_grad()
    def export(self) -> nn.Module:
        """Return a copy of this layer on plain tensors, without escnn, that gives the same numbers as in eval mode.

        It shares no memory with this layer. It is a ``Conv2d`` (or ``ConvTranspose2d``) where the layer is stationary,
        otherwise a module with factors at each pixel, for images of any size.

        Shape:
            The result takes (batch, C_in, H, W) → (batch, C_out, H_out, W_out).

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
        check_no_hooks(type(self).__name__, self, "remove them, and register them on the result")
        if self.is_stationary:
            return as_convolution(self.filter_bank(), self.expanded_bias, self.geometry)
        return self._exported_factors().eval()

    def _exported_factors(self) -> FactoredConvolution:
        """Return a layer with factors at pixels on plain tensors."""
        modulation = self.kernel.position_modulation if isinstance(self.kernel, TiedKernel) else None
        if modulation is None:
            raise RuntimeError(
                "export: a ContinuousKernel that is soft in translation has no form on plain tensors, since its filter "
                "banks are made at every pixel; harden('translation') gives it one, and the default kernel has one"
            )
        weight, _, bias = self._filters(self.kernel.place.domain.reference_size, self.hardened)
        columns = ("translation",) * len(self.geometry.padding)
        frequency = self.kernel.frequency.scale(columns, weight)
        return FactoredConvolution(weight, bias, self.geometry, modulation.action, frequency, modulation.coefficients())

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and drop what was kept for evaluation."""
        self._memo = EvaluationMemo()
        return super().train(mode)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        self._memo = EvaluationMemo()
        return super()._apply(fn, recurse)
