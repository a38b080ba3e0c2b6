"""The base of all layers on GeometricTensors, for any kernel: arguments, bias, input, output and hardening."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn

from ..checks import check_bool, check_no_hooks, check_subgroups
from ..group.elements import NOTHING_KEPT, SUBGROUPS, KeptGroup
from ..group.kept_in_space import KeptInSpace
from ..integral.stationary import Geometry, as_convolution, integrate_stationary
from ..torch_modes import full_precision
from .arguments import check_input, check_shape
from .bias import InvariantBias, has_trivial_irrep
from .equivariance_check import check_equivariance
from .escnn_globals import register_reducers, use_scipy_svd
from .escnn_solutions import use_canonical_solutions
from .remembering import RememberingModule
from .state_dict import DescribedState, describe_fields

if TYPE_CHECKING:
    from escnn.group import GroupElement

__all__ = ["Convolution", "first_group"]

use_scipy_svd()
use_canonical_solutions()
register_reducers()


class Convolution(DescribedState, RememberingModule, EquivariantModule):
    """A linear map of fields; a subclass gives the filter bank.

    Args:
        in_type: field type of the input.
        out_type: field type of the output, on the same gspace.
        geometry: padding, stride and the like.
        bias: add a bias to the trivial irreps of the output.

    Attributes:
        bias: one value for each trivial irrep of the output, or None.
        hardened: subgroups to which the kernel has been made equivariant.
    """

    # Subgroups that were to be soft where no weights would make the layer so.
    cannot_be_soft: tuple[str, ...] = ()
    # The group to which the layer stays strict, whatever is soft.
    _kept: KeptGroup | KeptInSpace = NOTHING_KEPT

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
        """The values of the padding, ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``."""
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
        """The number of blocks of fields that are convolved apart."""
        return self.geometry.groups

    @property
    def kernel_types(self) -> tuple[FieldType, FieldType]:
        """The fields that the kernel connects, of the input those of one group, since all groups are alike."""
        return first_group(self.in_type, self.groups), self.out_type

    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function a state dict's tensors stand for; kept in its metadata."""
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
        """Return K of a stationary layer, (C_out, C_in/groups, k, k)."""

    @property
    @abstractmethod
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """Subgroups in which the layer may be soft."""

    @property
    def domain_frequency(self) -> dict[str, Tensor]:
        """ω′ of each subgroup that may be soft; empty where another quantity relaxes the layer."""
        return {}

    @property
    def relaxed_by(self) -> str:
        """The quantity that relaxes the layer in place of ω′, in words; empty where it is ω′."""
        return ""

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that the layer has beyond those of a strict one."""
        yield from ()

    def softness(self, *subgroups: str) -> Tensor:
        """Return the softness s = ‖K − PK‖² / ‖K‖² in [0, 1], the part of K that is not equivariant.

        It is computed from the weights alone. P projects on the kernels that are equivariant to the named subgroups,
        or to all where none is named. The norm is taken over taps, positions and entries, in the basis of permutations
        and irreps where ρ is orthogonal. √(2s) is the relative equivariance error on white noise (root mean square
        over the subgroup).

        Args:
            *subgroups: any of ``"rotation"``, ``"reflection"``, ``"translation"``.

        Returns:
            A differentiable tensor without dimensions.

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
        # Half precision would lose the differences of kernels that are nearly equal.
        with full_precision(self._state(self)[0]):
            return self._softness(wanted)

    @abstractmethod
    def _softness(self, subgroups: tuple[str, ...]) -> Tensor:
        """Return the softness in some subgroups."""

    def harden(self, *subgroups: str) -> None:
        """Replace K by PK in place: the nearest kernel that is equivariant to the named subgroups, or to all.

        The layer is then exactly equivariant to them and stays so in training. A layer that loads its state dict is
        too. Its parameters remain; :func:`~escnn_relaxed.harden_network` also drops those that are no longer needed.

        Args:
            *subgroups: any of ``"rotation"``, ``"reflection"``, ``"translation"``. The reflection is the one about the
                axis that the gspace names; others follow where rotations are strict.

        Raises:
            ValueError: for a name that no subgroup has.

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
        """Remove the parts that a hardened layer no longer needs."""

    @torch.no_grad()
    def export(self) -> nn.Module:
        """Return a copy of this layer on plain tensors, without escnn, that gives the same numbers as in eval mode.

        It shares no memory with this layer. It is a ``Conv2d`` (or ``ConvTranspose2d``) where the layer is stationary.
        Otherwise it is a module that holds the filter banks of all regions, or with ``regions=None`` one that
        evaluates the kernel at each pixel.

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
        mode = self.training
        try:
            return self.eval()._exported()
        finally:
            self.train(mode)

    def _exported(self) -> nn.Module:
        """Return the plain module of this layer, in eval mode."""
        return as_convolution(self.filter_bank(), self.expanded_bias(), self.geometry)

    def expanded_bias(self) -> Tensor | None:
        """Return the bias of each channel, (C_out,), or None without trivial irreps or with ``bias=False``."""
        if self.bias_expansion is None:
            return None
        expanded: Tensor = self.bias_expansion(self.bias)
        return expanded

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
        return GeometricTensor(self._integrate(input.tensor), self.out_type, coords=None)

    def linear(self, features: Tensor) -> Tensor:
        """The layer without its bias, on the plain tensor (batch, C_in, H, W)."""
        return self._integrate(features, is_biased=False)

    def _integrate(self, features: Tensor, is_biased: bool = True) -> Tensor:
        """h(x) of equation (1) on a plain tensor (batch, C_in, H, W), with the bias or without."""
        bank, bias = self._bank_and_bias(self.filter_bank, features)
        return integrate_stationary(features, bank, bias if is_biased else None, self.geometry)

    def _bank_and_bias(
        self, build: Callable[[], Tensor], like: Tensor, *setting: object
    ) -> tuple[Tensor, Tensor | None]:
        """Filter banks and the bias of each channel in full precision, remembered in evaluation.

        Args:
            build: makes the filter banks.
            like: a tensor of the device.
            *setting: all that they depend on beside the tensors of the layer.
        """

        def build_both() -> tuple[Tensor, Tensor | None]:
            with full_precision(like):
                return build(), self.expanded_bias()

        return self._remember(build_both, *self._setting, *setting)

    @property
    def _setting(self) -> tuple[Hashable, ...]:
        """Everything that filter banks depend on beside the tensors of the layer and the image."""
        return (self.hardened,)

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
        return self._checked(atol, rtol, assertion, verbose, device)

    def _checked(
        self, atol: float, rtol: float, assertion: bool, verbose: bool, device: str
    ) -> list[tuple[GroupElement, float]]:
        kept = self._kept if isinstance(self._kept, KeptGroup) else NOTHING_KEPT
        return check_equivariance(self, kept, atol, rtol, assertion, verbose, device)

    def extra_repr(self) -> str:
        """Return the field types and the arguments of the convolution that are not default."""
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
        # One line, as for R2Conv: the modules inside are not the user's layers.
        return f"{type(self).__name__}({self.extra_repr()})"


def first_group(field_type: FieldType, groups: int) -> FieldType:
    """Return the first of equal groups of fields."""
    return field_type if groups == 1 else field_type.index_select(list(range(len(field_type) // groups)))
