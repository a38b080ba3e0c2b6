"""The base of all layers: a kernel that may be soft between fields, an integral and a bias."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any

import torch
from escnn.group import GroupElement
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn
from typing_extensions import Self

from ..checks import check_bool, check_size, check_subgroups
from ..group.exact_constants import EvaluationMemo, follow
from ..group.linear_maps import InvariantBias
from ..integral.at_pixels import BanksAtPixels, integrate_at_pixels
from ..integral.factors import as_weight, integrate
from ..integral.geometry import Geometry, image_size
from ..kernel.domain_frequency import Frequency
from ..kernel.kernel import at_least_single, joint, soft_share
from ..kernel.steerable_basis import BasisElements
from ..torch_modes import full_precision
from . import state_dict as states
from .arguments import Softening, check_dtype, check_input, check_shape, check_softness, shown_arguments
from .equivariance_check import check_equivariance
from .expansion import ParameterExpansion


class RelaxedLayer(ParameterExpansion):
    """A layer with a kernel that may be soft, a convolution or a linear map, with the interface of escnn's layers."""

    weights: nn.Parameter
    _version = states.FORMAT_VERSION

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
        self._register_state_dict_hook(states.complete)
        expansion = InvariantBias(out_type) if check_bool("bias", bias) else None
        self.bias_expansion = None if expansion is None or not expansion.dimension else expansion
        values = None if self.bias_expansion is None else nn.Parameter(torch.zeros(self.bias_expansion.dimension))
        self.register_parameter("bias", values)
        given = softening.initial_softness
        softness = None if given is None else check_softness(given)
        self.kernel = softening.build(*self.kernel_types, geometry.kernel_size, geometry.dilation, basis_arguments)
        weights = self.kernel.start_weights()
        self.register_parameter("weights", None if weights is None else nn.Parameter(weights))
        self.kernel.start(self.weights, self.kernel.default_softness if softness is None else softness)
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
        kernel: Any = self.kernel
        size = None
        if input.tensor.is_meta != kernel.frequency.like.is_meta:
            # torch's recipe for ensembles calls a skeleton on the meta device with weights of others.
            follow(self, self.like)
        if kernel.is_random:
            kernel.draw()
        if self.expands_itself:
            bank, bias = self.one_filter_bank()
            return GeometricTensor(integrate(input.tensor, bank, None, bias, self.geometry), self.out_type)
        if kernel.varies(self.hardened):
            if not kernel.is_factored:
                check_dtype(input.tensor, self.like)
                banks = BanksAtPixels(kernel, self.geometry.domain_size(input.tensor), self.hardened)
                output = integrate_at_pixels(input.tensor, banks, self.expanded_bias, self.geometry)
                return GeometricTensor(output, self.out_type)
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
            bias = None if self.bias_expansion is None else self.bias_expansion(self.bias)
            return as_weight(banks, self.geometry, factors is not None), factors, bias

    @property
    def expanded_bias(self) -> Tensor | None:
        """The bias of each channel, (C_out,), as in ``R2Conv``; None without trivial irreps or with ``bias=False``."""
        with full_precision(self.like):
            return None if self.bias_expansion is None else self.bias_expansion(self.bias)

    @property
    def like(self) -> Tensor:
        """A tensor with the device and dtype of the layer."""
        return next(self.parameters()) if self.weights is None else self.weights

    @property
    def kernel_types(self) -> tuple[FieldType, FieldType]:
        """The fields that the kernel connects."""
        return self.in_type, self.out_type

    def filter_bank(self) -> Tensor:
        """Return K of a stationary layer in the form of ``conv2d``'s weight, (C_out, C_in/groups, k, …).

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
        return self._filters(None, self.hardened)[0]

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
        """Whether K is the same at every position, so that the layer is one convolution.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> layer = RelaxedR2Conv(image, image, 3, relax={"translation": 0.5})
            >>> layer.is_stationary
            False
        """
        return not self.kernel.varies(self.hardened)

    @property
    def basisexpansion(self) -> BasisElements | None:
        """The elements that ``weights`` multiply, as of ``R2Conv``, for ``escnn.nn.init``; None of a continuous kernel.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3)
            >>> nn.init.deltaorthonormal_init(layer.weights.data, layer.basisexpansion)
        """
        return None if self.kernel.basis is None else BasisElements(self.kernel.basis)

    @property
    def domain_frequency(self) -> dict[str, Tensor]:
        """The domain frequency ω′ of each subgroup that may be soft, one value, or of translation one for each axis.

        ω′ has no unit, since coordinates of the domain are in [−1, 1]. The tensors are parameters where
        ``learn_relaxation`` is set. The dict is empty where another quantity relaxes the layer.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> RelaxedR2Conv(image, image, 3, relax={"translation": 0.5}).domain_frequency
            {'translation': tensor([0.5000, 0.5000])}
        """
        return self.kernel.frequency.values()

    def set_domain_frequency(self, **frequencies: Frequency) -> None:
        """Set ω′ of subgroups in place, where weights could make the layer soft; 0 for all makes it strict.

        Raises:
            TypeError: for a value that is not a number or, for translation, a pair of them.
            ValueError: for a subgroup that was not named in ``relax``, or a value that is not finite.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25})
            >>> layer.set_domain_frequency(rotation=0.0)
            >>> layer.domain_frequency
            {'rotation': tensor([0.])}
        """
        known = {name: value for name, value in frequencies.items() if name not in self.cannot_be_soft}
        self.kernel.frequency.set(**known)

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """The subgroups in which the layer may be soft."""
        return self.kernel.relaxed_subgroups

    @property
    def cannot_be_soft(self) -> tuple[str, ...]:
        """Subgroups that were to be soft where no weights would make the layer so.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> [RelaxedR2Conv(image, image, size).cannot_be_soft for size in (1, 3)]
            [('rotation',), ()]
        """
        return self.kernel.cannot_be_soft

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that the layer has beyond those of a strict one: learned ω′ and soft weights.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> [tuple(value.shape) for value in RelaxedR2Conv(image, image, 5).soft_parameters()]
            [(2,)]
        """
        yield from self.kernel.soft_parameters()

    def softness(self, *subgroups: str | Collection[str], size: int | tuple[int, ...] | None = None) -> Tensor:
        """Return the softness s = ‖K − PK‖² / (‖K − PK‖² + ‖PK‖²) in [0, 1], the part of K that is not equivariant.

        P projects on the kernels that are equivariant to the named subgroups, or to all where none is named. The norm
        is over taps, positions and entries, in the basis where ρ is orthogonal. √(2s) is the relative equivariance
        error on white noise (root mean square over the subgroup, with the identity). The denominator is ‖K‖² for the
        default kernel of a group with a half turn; without one it differs by a few per cent.

        Args:
            *subgroups: any of ``"rotation"``, ``"reflection"``, ``"translation"``.
            size: pixels along each axis of the output, for softness in translation. Default: 8.

        Returns:
            A tensor with a gradient. It is NaN if a weight is not finite. Layers of half precision return float32.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.flipRot2dOnR2(4).type(gspaces.flipRot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax="reflection", initial_softness=0.05)
            >>> round(layer.softness().item(), 4), round(layer.softness("rotation").item(), 4)
            (0.05, 0.0)
        """
        wanted = check_subgroups(*subgroups)
        pixels = None if size is None else check_size("size", size, self.kernel.config.domain.dimension)
        with full_precision(self.like):
            kernel, weights = at_least_single(self.kernel, self.weights)
            return soft_share(*kernel.energies(weights, self.hardened, joint(self.hardened, wanted), pixels))

    @torch.no_grad()
    def set_softness(self, softness: float) -> None:
        """Scale the soft part until the softness of all subgroups together is s in (0, 1).

        Raises:
            ValueError: for another value, and where the strict part or the soft part is missing.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3)
            >>> layer.set_softness(0.01)
            >>> round(layer.softness().item(), 6)
            0.01
        """
        wanted, present = check_softness(softness, "softness"), self.softness().item()
        if not wanted:
            raise ValueError(
                "softness must be above 0, as scaling by 0 cannot be undone; harden() makes a layer strict"
            )
        if not 0 < present < 1:
            where = f"both parts of the kernel are above 0, got {softness!r} for {self} of softness {present:.3g}"
            raise ValueError(f"softness can be set where {where}")
        self.kernel.scale_to(self.weights, wanted, self.hardened)

    def harden(self, *subgroups: str | Collection[str]) -> None:
        """Replace K by PK in place: the nearest kernel that is equivariant to the named subgroups, or to all.

        The layer stays exactly equivariant to them in training, and so does one that loads its state dict. Its
        parameters remain; :func:`~escnn_relaxed.harden_network` also drops those that are no longer needed.

        The reflection is the one about the axis that the gspace names; others follow where rotations are strict.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25})
            >>> layer.harden()
            >>> layer.softness().item()
            0.0
        """
        self.hardened = joint(self.hardened, check_subgroups(*subgroups))

    def check_equivariance(
        self, atol: float = 0.1, rtol: float = 0.1, assertion: bool = True, verbose: bool = True, device: str = "cpu"
    ) -> list[tuple[GroupElement, float]]:
        """Check that the layer is equivariant where it is strict; arguments and result are those of ``R2Conv``.

        Images are turned and flipped, and volumes by the elements that map voxels to voxels. Errors beyond the
        tolerance are raised. Of a soft layer the elements in which it is strict are checked, and a warning names the
        rest; see :func:`~escnn_relaxed.equivariance_error`.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax=None)
            >>> [round(error, 4) for _, error in layer.check_equivariance(verbose=False)]
            [0.0, 0.0, 0.0, 0.0]
        """
        return check_equivariance(self, atol, rtol, assertion, verbose, device)

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and drop what was kept for evaluation."""
        self._memo = EvaluationMemo()
        return super().train(mode)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        self._memo = EvaluationMemo()
        return super()._apply(fn, recurse)

    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function a state dict's tensors stand for; kept in its metadata."""
        return states.describe(self)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *arguments: Any
    ) -> None:
        arguments[-1].extend(states.adapt(self, state_dict, prefix, local_metadata))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)
        own = [value for key, value in state_dict.items() if key.startswith(prefix) and value.is_floating_point()]
        if local_metadata.get("assign_to_params_buffers") and own:
            follow(self, own[0])  # constants of a layer that was built on the meta device are there

    def __repr__(self) -> str:
        # One line, as for R2Conv: the modules inside are not the user's layers.
        return f"{type(self).__name__}({self.extra_repr()})"

    def extra_repr(self) -> str:
        """Return the field types, the arguments that are not default, and what relaxes the layer."""
        parts = [f"{self.in_type}, {self.out_type}", *shown_arguments(self.geometry)]
        if self.bias_expansion is None:
            parts.append("bias=False")
        if self.hardened:
            parts.append(f"hardened={self.hardened}")
        parts.append(self.kernel.relaxed_by or f"relax={self.kernel.frequency.described() or None}")
        if self.kernel.config.domain.kept.name:
            parts.append(f"keep='{self.kernel.config.domain.kept}'")
        return ", ".join(parts)
