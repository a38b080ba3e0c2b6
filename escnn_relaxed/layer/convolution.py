"""The layer: a kernel, an integral and a bias. One class for the plane, its adjoint and space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn
from typing_extensions import Self

from ..checks import check_bool, check_no_hooks, check_size
from ..group.regions import RegionPartition
from ..integral.geometry import Geometry, TransposedGeometry, as_convolution
from ..integral.regions import RegionConvolution, integrate
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
        partition = None
        if self.kernel.varies(self.hardened):
            partition = RegionPartition.of(self.geometry.domain_size(input.tensor), self.kernel.cells)
        if self.training:
            banks, bias = self._banks_and_bias(partition, self.hardened)
        else:
            banks, bias = self._memo(self, self._banks_and_bias, partition, self.hardened)
        return GeometricTensor(integrate(input.tensor, banks, bias, self.geometry, partition), self.out_type)

    def _banks_and_bias(
        self, partition: RegionPartition | None, hardened: tuple[str, ...]
    ) -> tuple[Tensor, Tensor | None]:
        """Return K as the integral takes it, and the bias of each channel, in full precision."""
        with full_precision(self.like):
            banks = self.kernel(self.weights, partition, hardened)
            if isinstance(self.geometry, TransposedGeometry):
                banks = banks.transpose(-4, -3).contiguous()
            return banks, self._expanded_bias()

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
        return not self.kernel.varies(self.hardened) or self.kernel.frequency.is_zero("translation")

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
                "filter_bank: this layer is soft in translation and has several filter banks, see region_banks"
            )
        return self._banks_and_bias(None, self.hardened)[0]

    def region_banks(self, output_size: int | tuple[int, int]) -> Tensor:
        """Return K in each region of an output where translation is soft: (rows, columns, C_out, C_in/groups, k, k).

        Args:
            output_size: height and width of the output in pixels, or of the input of a transposed layer, or one number
                for both. Small images have fewer regions than ``regions``.

        Raises:
            RuntimeError: where K is the same at every position.
            TypeError: for a size that is not of integers.
            ValueError: for a size without a pixel, or not of two numbers.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
            >>> layer = RelaxedR2Conv(image, image, 3, padding=1, relax={"translation": 0.5})
            >>> layer.region_banks((32, 32)).shape, layer.region_banks((8, 32)).shape
            (torch.Size([4, 4, 1, 1, 3, 3]), torch.Size([2, 4, 1, 1, 3, 3]))
        """
        if self.is_stationary:
            raise RuntimeError("region_banks: this layer has one filter bank, see filter_bank")
        partition = RegionPartition.of(check_size("output_size", output_size), self.regions)
        return self._banks_and_bias(partition, self.hardened)[0].unflatten(0, partition.counts)

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
            raise AttributeError("filter: this layer is soft in translation and has several, see region_banks")
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
        otherwise a module that holds the filter banks of all regions.

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
        banks, bias = self._banks_and_bias(RegionPartition.of_cells(self.regions), self.hardened)
        return RegionConvolution(banks, bias, self.geometry, self.regions).eval()

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and drop what was kept for evaluation."""
        self._memo = EvaluationMemo()
        return super().train(mode)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        self._memo = EvaluationMemo()
        return super()._apply(fn, recurse)
