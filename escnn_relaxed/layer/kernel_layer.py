"""Base of all layers: a kernel between fields, an integral and a bias, and their state."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias

import torch
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn
from typing_extensions import Self

from ..checks import check_flag
from ..group.evaluation_memo import EvaluationMemo
from ..group.exact_constants import follow
from ..group.linear_maps import InvariantBias
from ..integral.at_pixels import BanksAtPixels, integrate_at_pixels
from ..integral.factors import as_weight, integrate
from ..integral.geometry import Geometry, image_size
from ..kernel.kernel import Kernel
from ..kernel.steerable_basis import BasisElements
from ..kernel.tied import filters_of_means
from ..torch_modes import full_precision
from . import state_dict as states
from .arguments import check_derived_tensor, check_dtype, check_input, check_shape, check_softness, shown_arguments
from .expansion import ParameterExpansion
from .gate import Gate, check_for_all, gated_integral, gated_sum, gated_terms, gates_at
from .softness_options import SoftnessOptions, build_kernel, check_options

# The weight of a convolution, its factors at the pixels of the output, and the bias of each channel.
Filters: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]


class KernelLayer(ParameterExpansion):
    """A layer with a kernel between fields, a convolution or a linear map, with the interface of escnn's layers."""

    kernel: Kernel
    weights: nn.Parameter
    bias: nn.Parameter | None
    is_of_clouds = False
    _version = states.FORMAT_VERSION

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        geometry: Geometry,
        bias: bool,
        basis_arguments: Mapping[str, Any],
        initialize: bool,
        softness: SoftnessOptions,
    ) -> None:
        check_options(type(self).__name__, softness)
        super().__init__()
        self.in_type, self.out_type, self.space = in_type, out_type, in_type.gspace
        self.geometry = geometry
        self._hardened: tuple[str, ...] = ()
        self.gates: tuple[Gate, ...] = ()
        self._memo = EvaluationMemo()
        self._register_state_dict_hook(states.save_description)
        expansion = InvariantBias(out_type) if check_flag("bias", bias) else None
        self.bias_expansion = None if expansion is None or not expansion.dimension else expansion
        values = None if self.bias_expansion is None else nn.Parameter(torch.zeros(self.bias_expansion.dimension))
        self.register_parameter("bias", values)
        given = softness.get("initial_softness")
        at_start = None if given is None else check_softness(given)
        self.kernel = self._build_kernel(softness, basis_arguments)
        weights = None if self.kernel.basis is None else self.kernel.basis.start_weights()
        self.register_parameter("weights", None if weights is None else nn.Parameter(weights))
        self.kernel.start(self.weights, self.kernel.default_softness if at_start is None else at_start)
        if not check_flag("initialize", initialize) and weights is not None:
            nn.init.zeros_(self.weights)

    def _build_kernel(self, softness: SoftnessOptions, basis_arguments: Mapping[str, Any]) -> Kernel:
        """Return the kernel that the options of softness describe, not started."""
        taps = self.geometry.kernel_size, self.geometry.dilation
        return build_kernel(softness, *self.kernel_types, *taps, basis_arguments)

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
        # Attributes that are modules take long to find.
        kernel, size = self.kernel, None
        frequency = kernel.frequency
        if input.tensor.is_meta != frequency.like.is_meta:
            # torch's recipe for ensembles calls a skeleton on the meta device with weights of others.
            follow(self, self.like)
        if kernel.is_random:
            kernel.draw()
        if self.expands_itself:
            check_for_all("expand_parameters", self.gates)
            bank, bias = self.one_filter_bank()
            return GeometricTensor(integrate(input.tensor, bank, None, bias, self.geometry), self.out_type)
        if self.gates:
            return GeometricTensor(self._gated_output(input.tensor), self.out_type)
        if kernel.varies(self._hardened):
            size = self.geometry.output_size(*image_size(input.tensor))
        if self.training or kernel.is_random:
            filters = self._filters(size, self._hardened)
        else:
            settings = frequency.settings, kernel.settings
            filters = self._memo(self, self._filters, size, self._hardened, settings)
        if filters is None:
            output = self._at_pixels(input.tensor, self._hardened, self.expanded_bias)
        else:
            output = integrate(input.tensor, *filters, self.geometry)
        return GeometricTensor(output, self.out_type)

    def _filters(self, size: tuple[int, ...] | None, hardened: tuple[str, ...], *_: Hashable) -> Filters | None:
        """Return the weight of a convolution, factors at pixels and bias; None if K is made at each pixel."""
        with full_precision(self.like):
            if size is None:
                banks, factors = self.kernel(self.weights, hardened), None
            elif (filters := self.kernel.filters(self.weights, size, hardened)) is not None:
                banks, factors = filters
            else:
                return None
            bias = None if self.bias_expansion is None else self.bias_expansion(self.bias)
            return as_weight(banks, self.geometry, factors is not None), factors, bias

    def _at_pixels(self, features: Tensor, averaged: tuple[str, ...], bias: Tensor | None) -> Tensor:
        """Return the output of a kernel, averaged over some subgroups, that is made at each pixel."""
        check_dtype(features, self.like)
        banks = BanksAtPixels(self.kernel, self.weights, self.geometry.domain_size(features), averaged)
        return integrate_at_pixels(features, banks, bias, self.geometry)

    def _gated_output(self, features: Tensor) -> Tensor:
        """Return the output with K_g = Σ c P K, which is linear in K."""
        kernel = self.kernel
        size = self.geometry.output_size(*image_size(features))
        terms = gated_terms(gates_at(self.gates, features, size), self._hardened)
        if self.training or kernel.is_random:
            filters = self._filters_of_terms(size, tuple(terms))
        else:
            settings = kernel.frequency.settings, kernel.settings
            filters = self._memo(self, self._filters_of_terms, size, tuple(terms), settings)
        bias = self.expanded_bias
        if filters is not None:
            return gated_integral(features, filters, bias, terms, self.geometry)
        output = gated_sum(terms, [self._at_pixels(features, averaged, None) for averaged in terms])
        return output if bias is None else output + bias.to(output.dtype).view(-1, *[1] * len(size))

    def _filters_of_terms(
        self, size: tuple[int, ...], averages: tuple[tuple[str, ...], ...], *_: Hashable
    ) -> list[tuple[Tensor, Tensor | None]] | None:
        """Return for each P the banks of P K and their factors at pixels; None if some are made at each pixel."""
        with full_precision(self.like):
            return filters_of_means(self.kernel, self.weights, size, averages)

    @property
    def expanded_bias(self) -> Tensor | None:
        """The bias of each channel, (C_out,), as in ``R2Conv``; None without trivial irreps or with ``bias=False``.

        It follows from ``bias`` in both modes. Code that stores it anew, as after the loading of a state, may do so.
        """
        with full_precision(self.like):
            return None if self.bias_expansion is None else self.bias_expansion(self.bias)

    @expanded_bias.setter
    def expanded_bias(self, value: Tensor | None) -> None:
        check_derived_tensor("expanded_bias", value, self.expanded_bias, "bias")

    @property
    def like(self) -> Tensor:
        """A tensor on the device and of the dtype of the layer."""
        return next(self.parameters()) if self.weights is None else self.weights

    @property
    def kernel_types(self) -> tuple[FieldType, FieldType]:
        """The fields that the kernel connects."""
        return self.in_type, self.out_type

    def filter_bank(self) -> Tensor:
        """Return K of a stationary layer in the layout of ``conv2d``'s weight, (C_out, C_in/groups, k, …).

        K of a transposed layer has the form of ``conv_transpose2d``'s weight, (C_in, C_out/groups, k, k).

        Raises:
            RuntimeError: where K depends on the position.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> RelaxedR2Conv(fields, fields, 5).filter_bank().shape
            torch.Size([4, 4, 5, 5])
        """
        if not self.is_stationary:
            raise RuntimeError("filter_bank: this layer is soft in translation and has several, see filter_banks")
        with full_precision(self.like):
            bank = self._gated_bank() if self.gates else self.kernel(self.weights, self._hardened)
            return as_weight(bank, self.geometry)

    def _gated_bank(self) -> Tensor:
        """Return K_g of a stationary layer, (C_out, C_in/groups, T); a ``RuntimeError`` where each input has its g."""
        check_for_all("filter_bank", self.gates)
        terms = gated_terms(self.gates, self._hardened)
        return gated_sum(terms, [self.kernel(self.weights, averaged) for averaged in terms])

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the output, (batch, C_in, H, W) → (batch, C_out, H_out, W_out), or a ``ValueError``.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> RelaxedR2Conv(fields, fields, 3, stride=2).evaluate_output_shape((2, 4, 9, 9))
            (2, 4, 4, 4)
        """
        check_shape("input_shape", tuple(input_shape), self.in_type, self.geometry)
        return input_shape[0], self.out_type.size, *self.geometry.output_size(*input_shape[2:])

    @property
    def is_stationary(self) -> bool:
        """True if K is the same at every position, so that the layer is one convolution.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> layer = RelaxedR2Conv(image, image, 3, relax={"translation": 0.5})
            >>> layer.is_stationary
            False
        """
        return not self.kernel.varies(self._hardened)

    @property
    def basisexpansion(self) -> BasisElements | None:
        """The basis that ``weights`` multiply, as in ``R2Conv``, for ``escnn.nn.init``; None for a continuous kernel.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3)
            >>> nn.init.deltaorthonormal_init(layer.weights.data, layer.basisexpansion)
        """
        return None if self.kernel.basis is None else BasisElements(self.kernel.basis)

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and clear the memo of eval mode."""
        self._memo = EvaluationMemo()
        return super().train(mode)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        self._memo = EvaluationMemo()
        return super()._apply(fn, recurse)

    def describe(self) -> dict[str, Any]:
        """Return the settings under which the tensors of a state dict define the layer; kept in its metadata."""
        return states.describe(self)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *arguments: Any
    ) -> None:
        arguments[-1].extend(states.convert_state(self, state_dict, prefix, local_metadata))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)
        own = [value for key, value in state_dict.items() if key.startswith(prefix) and value.is_floating_point()]
        if local_metadata.get("assign_to_params_buffers") and own:
            follow(self, own[0])  # constants of a layer that was built on the meta device are there

    def __repr__(self) -> str:
        # One line, as for R2Conv: the modules inside are not the user's layers.
        return f"{type(self).__name__}({self.extra_repr()})"

    def extra_repr(self) -> str:
        """Return the field types, the arguments that are not default, and the relaxation, as text for ``repr``."""
        arguments = [f"{self.in_type}, {self.out_type}", *shown_arguments(self.geometry)]
        if self.bias_expansion is None:
            arguments.append("bias=False")
        if self._hardened:
            arguments.append(f"hardened={self._hardened}")
        arguments.append(self.kernel.relaxed_by or f"relax={self.kernel.frequency.described() or None}")
        if self.kernel.config.domain.kept.name:
            arguments.append(f"keep='{self.kernel.config.domain.kept}'")
        return ", ".join(arguments)
