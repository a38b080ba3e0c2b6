"""The base of all layers: a kernel that may be soft between fields, an integral and a bias."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn
from typing_extensions import Self

from ..checks import SUBGROUPS, check_bool, check_no_hooks, check_size, check_subgroups
from ..integral.at_pixels import integrate_at_pixels
from ..integral.factors import as_weight, integrate
from ..integral.geometry import Geometry, TransposedGeometry, as_convolution, image_size
from ..kernel.domain_frequency import Frequency
from ..kernel.kernel import joint
from ..kernel.softness import at_least_single
from ..on_escnn.basis_elements import BasisElements
from ..torch_modes import full_precision
from .arguments import Softening, check_input, check_shape, check_softness
from .bias import InvariantBias, has_trivial_irrep
from .equivariance_check import check_equivariance
from .memo import EvaluationMemo
from .state_dict import FORMAT_VERSION, HARDENED, described_fields, fit_state, follow_constants, hardened_flags

if TYPE_CHECKING:
    from escnn.group import GroupElement


class RelaxedLayer(EquivariantModule):
    """A layer with a kernel that may be soft, a convolution or a linear map, with the interface of escnn's layers."""

    in_type: FieldType
    out_type: FieldType
    weights: nn.Parameter
    _version = FORMAT_VERSION

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
        self._register_state_dict_hook(_describe)
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
            follow_constants(self, self.like)
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
    def like(self) -> Tensor:
        """A tensor with the device and dtype of the layer."""
        return next(self.parameters()) if self.weights is None else self.weights

    @property
    def kernel_types(self) -> tuple[FieldType, FieldType]:
        """The fields that the kernel connects, of the input (of the output of an adjoint) those of one group."""
        if isinstance(self.geometry, TransposedGeometry):
            return self.in_type, _first_group(self.out_type, self.geometry.groups)
        return _first_group(self.in_type, self.geometry.groups), self.out_type

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
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> gspace = gspaces.rot2dOnR2(4)
            >>> image, hidden = gspace.type(gspace.trivial_repr), gspace.type(gspace.regular_repr)
            >>> RelaxedR2Conv(image, hidden, 5).filter_bank().shape
            torch.Size([4, 1, 5, 5])
        """
        if not self.is_stationary:
            raise RuntimeError(
                "filter_bank: this layer is soft in translation and has several filter banks, see filter_banks"
            )
        return self._filters(None, self.hardened)[0]

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
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> gspace = gspaces.rot2dOnR2(4)
            >>> image, hidden = gspace.type(gspace.trivial_repr), gspace.type(gspace.regular_repr)
            >>> RelaxedR2Conv(image, hidden, 5, padding=2, relax={"rotation": 0.25}).export()
            Conv2d(1, 4, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2))
        """
        check_no_hooks(type(self).__name__, self, "remove them, and register them on the result")
        return as_convolution(self.filter_bank(), self.expanded_bias, self.geometry)

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
        disk about their centre. Volumes are turned by the elements that map voxels to voxels, and features of a linear
        map by all. Of a soft layer the elements in which it is strict are checked, and a warning names the rest;
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
