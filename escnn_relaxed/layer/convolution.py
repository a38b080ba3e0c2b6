"""The base of all layers on GeometricTensors, whatever their kernel: arguments, bias, input, output and hardening."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn

from ..checks import check_bool, check_subgroups
from ..group.elements import NOTHING_KEPT, SUBGROUPS, KeptGroup
from ..integral.stationary import Geometry, as_convolution, integrate_stationary
from ..torch_modes import full_precision
from .arguments import check_input, check_shape
from .bias import InvariantBias, has_trivial_irrep
from .equivariance_check import check_equivariance
from .escnn_globals import register_reducers, use_scipy_svd
from .remembering import RememberingModule
from .state_dict import DescribedState, describe_fields

if TYPE_CHECKING:
    from escnn.group import GroupElement

__all__ = ["Convolution", "first_group"]

use_scipy_svd()
register_reducers()


class Convolution(DescribedState, RememberingModule, EquivariantModule):
    """A linear map of fields; a subclass gives the filter bank.

    Args:
        in_type: field type of the input.
        out_type: field type of the output, on the same gspace.
        geometry: where the taps meet the image.
        bias: add a bias to the trivial irreps of the output.

    Attributes:
        bias: one value for each trivial irrep of the output, None without.
        hardened: subgroups on which the kernel is projected.
    """

    # The group to which the layer stays strict, whatever is soft.
    _kept: KeptGroup = NOTHING_KEPT

    def __init__(self, in_type: FieldType, out_type: FieldType, geometry: Geometry, bias: bool) -> None:
        super().__init__()
        self.in_type = in_type
        self.out_type = out_type
        self.space = in_type.gspace
        self.geometry = geometry
        self.hardened: tuple[str, ...] = ()
        self.bias_expansion: InvariantBias | None = None
        self.register_parameter("bias", None)
        if check_bool("bias", bias) and has_trivial_irrep(out_type):
            self.bias_expansion = InvariantBias(out_type)
            self.bias = nn.Parameter(torch.zeros(self.bias_expansion.dimension))

    @property
    def kernel_size(self) -> int:
        """Side of the kernel in taps."""
        return self.geometry.kernel_size

    @property
    def padding(self) -> tuple[int, ...]:
        """Pixels added on each side, (rows, columns)."""
        return self.geometry.padding

    @property
    def padding_mode(self) -> str:
        """What the padding holds."""
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
        """Number of blocks of fields that are convolved apart."""
        return self.geometry.groups

    @property
    def kernel_types(self) -> tuple[FieldType, FieldType]:
        """The fields between which the kernel is, of the input those of one group, since all are convolved alike."""
        return first_group(self.in_type, self.groups), self.out_type

    def describe(self) -> dict[str, Any]:
        """The facts that decide which function the tensors of a state dict stand for; kept in its metadata."""
        return {
            "operator": "convolution",
            "kernel size": self.kernel_size,
            "group": self.space.name,
            "input": describe_fields(self.in_type),
            "output": describe_fields(self.out_type),
            "number of groups": self.groups,
            "hardened": list(self.hardened),
        }

    @property
    def is_stationary(self) -> bool:
        """Whether K is the same at every position, so that the layer is one convolution."""
        return True

    @abstractmethod
    def filter_bank(self) -> Tensor:
        """K of a stationary layer, (C_out, C_in/groups, k, k)."""

    @property
    @abstractmethod
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """Subgroups in which the layer may be soft."""

    @property
    def domain_frequency(self) -> dict[str, Tensor]:
        """ω′ of each subgroup that may be soft; empty where something else relaxes the layer."""
        return {}

    @property
    def relaxed_by(self) -> str:
        """The thing that relaxes the layer, in words, where that is not ω′; else empty."""
        return ""

    def softness(self, *subgroups: str) -> Tensor:
        """The softness s = ‖K − PK‖² / ‖K‖² in [0, 1]: the part of K that is not equivariant, from the weights alone.

        P projects on the kernels that are equivariant to the named subgroups, to all of them without names. The norm
        is taken over taps, positions and entries, in the basis of permutations and irreps where ρ is orthogonal.
        √(2s) is the relative equivariance error on white noise (root mean square over the subgroup).

        Args:
            *subgroups: of ``"rotation"``, ``"reflection"``, ``"translation"``.

        Returns:
            A tensor without dimensions, differentiable.

        Raises:
            ValueError: for another name.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.flipRot2dOnR2(4), [gspaces.flipRot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(
            ...     fields, fields, 3, relax={"reflection": 0.25}, initial_softness=0.05
            ... )
            >>> round(layer.softness().item(), 4), round(layer.softness("rotation").item(), 4)
            (0.05, 0.0)
        """
        wanted = check_subgroups(subgroups)
        # The differences of kernels that are nearly equal would be lost in half precision.
        with full_precision(next(self.parameters())):
            return self._softness(wanted)

    @abstractmethod
    def _softness(self, subgroups: tuple[str, ...]) -> Tensor:
        """The softness in some subgroups."""

    def harden(self, *subgroups: str) -> None:
        """Replace K by PK in place: the nearest kernel that is equivariant to the named subgroups, or to all.

        The layer is then exactly equivariant to them and stays so in training, and so is one that loads its state
        dict. Its parameters remain; :func:`~escnn_relaxed.harden_network` also drops what is not needed any more.

        Args:
            *subgroups: of ``"rotation"``, ``"reflection"`` (about the axis that the gspace names: others follow where
                rotations are strict), ``"translation"``.

        Raises:
            ValueError: for a name that is not of a subgroup.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25})
            >>> layer.harden()
            >>> layer.softness().item()
            0.0
        """
        wanted = {*self.hardened, *check_subgroups(subgroups)}
        self.hardened = tuple(name for name in SUBGROUPS if name in wanted)

    def drop_soft_part(self) -> None:
        """Remove the parts that a hardened layer does not need any more."""

    @torch.no_grad()
    def export(self) -> nn.Module:
        """This layer on plain tensors, without escnn, sharing no memory with it: the same numbers as in eval mode.

        A ``Conv2d`` (or ``ConvTranspose2d``) where the layer is stationary, else a module that holds the filter banks
        of all regions, or with ``regions=None`` one that evaluates the kernel at each pixel.

        Shape:
            of the result: (batch, C_in, H, W) → (batch, C_out, H_out, W_out).

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
        mode = self.training
        try:
            return self.eval()._exported()
        finally:
            self.train(mode)

    def _exported(self) -> nn.Module:
        """The plain module of this layer, in eval mode."""
        return as_convolution(self.filter_bank(), self.expanded_bias(), self.geometry)

    def expanded_bias(self) -> Tensor | None:
        """The bias of each channel, (C_out,), None without trivial irreps or with ``bias=False``."""
        if self.bias_expansion is None:
            return None
        expanded: Tensor = self.bias_expansion(self.bias)
        return expanded

    def expand_parameters(self) -> tuple[Tensor, Tensor | None]:
        """Filter bank (C_out, C_in/groups, k, k) and bias (C_out,) of a stationary layer, as of ``R2Conv``.

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
        return self.filter_bank(), self.expanded_bias()

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
        with full_precision(input.tensor):
            bias = self.expanded_bias()
        return GeometricTensor(self._integrate(input.tensor, bias), self.out_type, coords=None)

    def linear(self, features: Tensor) -> Tensor:
        """The layer without its bias, on the plain tensor (batch, C_in, H, W)."""
        return self._integrate(features, None)

    def _integrate(self, features: Tensor, bias: Tensor | None) -> Tensor:
        """h(x) of equation (1) on a plain tensor (batch, C_in, H, W), with a bias (C_out,) or without."""
        with full_precision(features):
            bank = self._remember(self.filter_bank, self.hardened)
        return integrate_stationary(features, bank, bias, self.geometry)

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """(batch, C_in, H, W) → (batch, C_out, H_out, W_out).

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
        disk about their centre. Of a soft layer the elements in which it is strict are checked, and a warning names
        the rest; :func:`~escnn_relaxed.equivariance_error` measures how soft it is, and without such a tolerance.

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
        return check_equivariance(self, self._kept, atol, rtol, assertion, verbose, device)

    def extra_repr(self) -> str:
        """Field types and the arguments of the convolution that are not default."""
        geometry = self.geometry
        parts = [f"{self.in_type}, {self.out_type}, kernel_size={geometry.kernel_size}, stride={geometry.stride}"]
        for field in fields(geometry):
            value = getattr(geometry, field.name)
            if field.name not in ("kernel_size", "stride") and value != field.default:
                parts.append(f"{field.name}={value!r}")
        if self.bias_expansion is None:
            parts.append("bias=False")
        if self.hardened:
            parts.append(f"hardened={self.hardened}")
        return ", ".join(parts)

    def __repr__(self) -> str:
        # In one line, as R2Conv: the modules inside are no layers of the user's.
        return f"{type(self).__name__}({self.extra_repr()})"


def first_group(field_type: FieldType, groups: int) -> FieldType:
    """The first of equal groups of fields."""
    return field_type if groups == 1 else field_type.index_select(list(range(len(field_type) // groups)))
