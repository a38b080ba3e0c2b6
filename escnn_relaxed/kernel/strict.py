"""The strict kernel in the basis of ``R2Conv``, and the base of kernels that relax a strict one without ω′."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from escnn.group import GroupElement
from torch import Tensor, nn

from ..checks import warn_once
from ..group.elements import sample_group
from ..on_escnn.sampled_basis import check_basis_arguments, refuse_emptied_basis, sampled_basis
from .config import KernelConfig, Names
from .kernel import Kernel, KernelBuilder
from .steerable_basis import SteerableBasis


class StrictKernel(Kernel):
    """K of ``R2Conv``: a sum of the elements of its steerable basis, with its weights.

    Args:
        config: fields, taps and sampled group.
        basis: the steerable basis; by default escnn's for these fields and taps.

    Example:
        >>> from escnn import gspaces
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
        >>> layer = RelaxedR2Conv(image, image, 3, relax=None, kernel=StrictKernel)
        >>> layer.kernel(layer.weights).shape
        torch.Size([1, 1, 9])
    """

    basis: SteerableBasis

    def __init__(self, config: KernelConfig, basis: SteerableBasis | None = None) -> None:
        super().__init__(config)
        if basis is None:
            at = config.in_type, config.out_type, config.kernel_size, config.dilation
            arguments = check_basis_arguments(*at[2:], config.basis_arguments, config.domain.dimension)
            basis = SteerableBasis(*at, sampled_basis(*at, **arguments))
            if not basis.dimension:
                refuse_emptied_basis(*at, **arguments)
                warn_once(
                    f"no kernel of size {config.kernel_size} from {config.in_type} to {config.out_type} is "
                    f"equivariant: the strict kernel is 0, and the output is its bias; take other fields or more taps"
                )
        self.basis = basis

    def forward(self, weights: Tensor | None, averaged: Sequence[str] = ()) -> Tensor:
        """Return K, (C_out, C_in, T)."""
        return self.basis(weights)

    def element_energies(
        self, weights: Tensor | None, hardened: Names, elements: Sequence[GroupElement]
    ) -> tuple[Tensor, Tensor]:
        """Return ‖hK − K‖² = 0 for each element h, and ‖K‖²."""
        energy = self.orthogonal_basis.energy(self(weights))
        return energy.new_zeros(len(elements)), energy

    def strict_kernel(self) -> StrictKernel:
        """Return K_strict alone, with the same basis."""
        strict = StrictKernel(self.config, self.basis)
        # Of the layer's dtype and device.
        strict.orthogonal_basis = self.orthogonal_basis
        return strict

    def describe(self) -> dict[str, Any]:
        """Return the settings on which the meaning of a state dict depends."""
        return {**super().describe(), "fingerprint of the steerable basis": self.basis.fingerprint}


class RelaxingKernel(Kernel):
    """A kernel that relaxes ``strict``, whose weights are the layer's or its own. A subclass says how."""

    default_softness = 0.01
    relaxation_name: ClassVar[str]  # "partial", "residual" or "weighted"; of a subclass its own

    def __init__(self, config: KernelConfig, strict: KernelBuilder = StrictKernel) -> None:
        super().__init__(config)
        config.check_action(type(self).__name__)
        if config.domain.kept.name:
            raise ValueError(f"keep must be None for a {type(self).__name__}, got {str(config.domain.kept)!r}")
        self.strict = strict(replace(config, relax={}, learn_relaxation=False))
        self.basis = self.strict.basis
        # The rotations and reflections that the group has are relaxed together.
        self.relaxed_subgroups = sample_group(config.domain.gspace).subgroups

    def start(self, weights: Tensor | None, softness: float) -> None:
        """Draw the weights of a strict kernel that has its own. A subclass draws what relaxes it."""
        self.strict.start(weights, self.strict.default_softness)

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that relax the strict kernel."""
        strict = {id(parameter) for parameter in self.strict.parameters()}
        yield from (parameter for parameter in self.parameters() if id(parameter) not in strict)

    def strict_state(self) -> dict[str, Tensor]:
        """Return the entries of the state with which K is the strict kernel: all that relaxes it is 0."""
        return {key: value * 0 for key, value in self.state_dict().items() if not key.startswith("strict.")}

    def describe(self) -> dict[str, Any]:
        """Return the settings on which the meaning of a state dict depends."""
        return {**self.strict.describe(), "soft in": list(self.relaxed_subgroups), "soft part": self.relaxation_name}
