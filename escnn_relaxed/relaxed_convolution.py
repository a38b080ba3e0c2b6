"""A convolution whose kernel has a strict part and a soft one: what a layer does once it is built."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from escnn.nn import GeometricTensor
from torch import Tensor, distributed, nn

from .checks import check_subgroups
from .coordinates import SUBGROUPS
from .domain_frequency import DomainFrequency, Frequency
from .exported import SoftTranslationConvolution
from .filter_bank import ContinuousFilterBank
from .integral_operator import PositionalBank, as_convolution
from .planar_convolution import PlanarConvolution
from .positional_kernel import PositionalKernel
from .precision import full_precision
from .soft_translation import integrate_soft_translation
from .steerable_basis import SteerableBasis
from .strict_part import softness

__all__ = ["RelaxedConvolution"]


class RelaxedConvolution(PlanarConvolution):
    """A planar convolution with the kernel K = strict part + continuous part; a subclass builds both.

    Attributes:
        steerable_basis: basis of the strict part, None where the continuous kernel has one of its own.
        bank: the continuous kernel, None where nothing may be soft.
        weights: of the steerable basis, None without one.
        domain: whether κ sees the position of the ``"input"`` or of the ``"output"``.
        random_offset: turn the grid of a continuous group at each training step.
    """

    steerable_basis: SteerableBasis | None
    bank: ContinuousFilterBank | None
    weights: nn.Parameter
    _domain_frequency: DomainFrequency
    domain: str
    random_offset: bool

    @property
    def domain_frequency(self) -> dict[str, Tensor]:
        """ω′ of each subgroup that may be soft; 2 values (x, y) for translation, else 1.

        Without units: coordinates of the domain are in [−1, 1]. Parameters where ``learn_relaxation`` is set.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
            >>> RelaxedR2Conv(image, image, 3, relax={"rotation": 0.25, "translation": 0.5}).domain_frequency
            {'translation': tensor([0.5000, 0.5000]), 'rotation': tensor([0.2500])}
        """
        return self._domain_frequency.values()

    def set_domain_frequency(self, **frequencies: Frequency) -> None:
        """Set ω′ of subgroups in place; 0 for all makes the layer strict.

        Raises:
            TypeError: for a value that is not a number or, of translation, a pair of them.
            ValueError: for a subgroup that was not named in ``relax``, or a value that is not finite.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25})
            >>> layer.set_domain_frequency(rotation=0.0)
            >>> layer.domain_frequency
            {'rotation': tensor([0.])}
        """
        self._domain_frequency.set(**frequencies)

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """Subgroups that have an ω′."""
        return tuple(self.domain_frequency)

    @property
    def is_stationary(self) -> bool:
        """Whether K is the same at every position, so that the layer is a ``conv2d``.

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
        return "translation" in self.hardened or not self._domain_frequency.may_vary("translation")

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
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"reflection": 0.25}, initial_softness=0.05)
            >>> round(layer.softness().item(), 4), round(layer.softness("rotation").item(), 4)
            (0.05, 0.0)
        """
        return softness(
            self._soft_bank, self.domain_frequency, self.strict_energy(), self.hardened, check_subgroups(subgroups)
        )

    def strict_energy(self) -> Tensor:
        """‖·‖² of the strict part in the steerable basis, 0 without one."""
        return torch.zeros(()) if self.steerable_basis is None else self.steerable_basis.energy(self.weights)

    def drop_soft_part(self) -> None:
        """Remove the soft part of a hardened layer that has its strict part in the steerable basis."""
        if self.hardened == SUBGROUPS and self.steerable_basis is not None:
            self.bank, self.hardened = None, ()
            self._domain_frequency = DomainFrequency({}, learn=False).train(self.training)

    @property
    def _soft_bank(self) -> ContinuousFilterBank | None:
        """The continuous kernel, None where it is 0: centred, and all of its domain averaged or not seen."""
        if self.bank is None or not self.bank.centred:
            return self.bank
        is_soft = self.hardened != SUBGROUPS and self._domain_frequency.may_vary()
        return self.bank if is_soft else None

    def filter_bank(self) -> Tensor:
        """K of a stationary layer, (C_out, C_in/groups, k, k): what ``conv2d`` takes as its weight.

        Raises:
            RuntimeError: where K depends on the position.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> gspace = gspaces.rot2dOnR2(4)
            >>> image, hidden = nn.FieldType(gspace, [gspace.trivial_repr]), nn.FieldType(gspace, [gspace.regular_repr])
            >>> RelaxedR2Conv(image, hidden, 5).filter_bank().shape
            torch.Size([4, 1, 5, 5])
        """
        if not self.is_stationary:
            raise RuntimeError("filter_bank: this layer is soft in translation and has a filter bank per position")
        parts = []
        if self.steerable_basis is not None:
            parts.append(self.steerable_basis(self.weights))
        if self._soft_bank is not None:
            parts.append(self._soft_bank(self.domain_frequency, self.hardened))
        elif self.bank is not None and self.training and distributed.is_available() and distributed.is_initialized():
            parts.append(self._idle())
        bank: Tensor = sum(parts[1:], parts[0])
        return bank

    def _idle(self) -> Tensor:
        """0, of which idle parameters have a gradient of 0: processes that train together wait for those of all."""
        idle = (*self._domain_frequency.parameters(), *([] if self.bank is None else self.bank.parameters()))
        return sum((0 * parameter.sum() for parameter in idle), self.weights.new_zeros(()))

    def _filter_bank_setting(self) -> Hashable:
        offset = None if self.bank is None else self.bank.offset
        return self.hardened, offset, self._domain_frequency.learn

    def positional_bank(self, height: int, width: int) -> tuple[list[int], PositionalBank]:
        """The taps where K may be non-zero, and K at a tap for an image of this size."""
        kernel = self._positional_kernel()
        return kernel.taps(), kernel.bank_at((height, width))

    def _positional_kernel(self) -> PositionalKernel:
        if self.bank is None:
            raise RuntimeError("positional_bank: nothing is relaxed in this layer, use filter_bank")
        strict = None if self.steerable_basis is None else self.steerable_basis(self.weights)
        return PositionalKernel(self.bank, strict, self.domain_frequency, self.hardened, self.geometry, self.domain)

    def _integrate_non_stationary(self, features: Tensor, bias: Tensor | None) -> Tensor:
        with full_precision(features):
            kernel = self._positional_kernel()
        return integrate_soft_translation(features, kernel, bias)

    @torch.no_grad()
    def export(self) -> nn.Module:
        """This layer on plain tensors, without escnn, sharing no memory with it: the same numbers as in eval mode.

        A ``Conv2d`` where the layer is stationary, else a module that evaluates the kernel at each position.

        Shape:
            of the result: (batch, C_in, H, W) → (batch, C_out, H_out, W_out).

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> gspace = gspaces.rot2dOnR2(4)
            >>> image, hidden = nn.FieldType(gspace, [gspace.trivial_repr]), nn.FieldType(gspace, [gspace.regular_repr])
            >>> RelaxedR2Conv(image, hidden, 5, padding=2, relax={"rotation": 0.25}).export()
            Conv2d(1, 4, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2))
        """
        mode = self.training
        try:
            return self.eval()._exported()
        finally:
            self.train(mode)

    def _exported(self) -> nn.Module:
        strict = None if self.steerable_basis is None else self.steerable_basis(self.weights)
        bias = self.expanded_bias()
        if self.bank is None or self.is_stationary:
            return as_convolution(self.filter_bank(), bias, self.geometry)
        frequency = {name: value.detach().clone() for name, value in self.domain_frequency.items()}
        arguments = frequency, self.hardened, self.geometry, self.domain
        return SoftTranslationConvolution(self.bank.without_escnn(), strict, bias, *arguments).eval()

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
        if self.random_offset and self.training and self.bank is not None:
            self.bank.turn(self.bank.random_offset())
        return super().forward(input)

    def train(self, mode: bool = True) -> RelaxedConvolution:
        """Set the mode; evaluation goes back to the fixed grid of a continuous group."""
        if not mode and self.bank is not None:
            self.bank.turn(0.0)
        super().train(mode)
        return self

    def extra_repr(self) -> str:
        """Field types, the convolution's arguments that are not default, and ω′."""
        frequencies = {name: [round(v, 4) for v in value.tolist()] for name, value in self.domain_frequency.items()}
        return f"{super().extra_repr()}, domain_frequency={frequencies or 'strict'}"
