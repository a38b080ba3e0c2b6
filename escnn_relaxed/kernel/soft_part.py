"""The interface of a soft part, the part of a layer's kernel that depends on the domain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from ..group.regions import RegionPartition

if TYPE_CHECKING:  # exported layers come here too, and run without escnn
    from .steerable_basis import StrictPart

__all__ = ["SoftPart"]


class SoftPart(nn.Module, ABC):
    """The soft part of a kernel. Each form of it is a subclass in a file of its own.

    Attributes:
        domain_subgroups: subgroups that may be soft.
        holds_strict_part: whether its mean over the domain is the strict part. Otherwise that mean is 0, and a strict
            part stands beside it.
        default_softness: the part of the kernel's energy that depends on the domain at the start.
    """

    domain_subgroups: tuple[str, ...]
    holds_strict_part: ClassVar[bool]
    default_softness: ClassVar[float]

    @abstractmethod
    def forward(
        self,
        frequency: Mapping[str, Tensor],
        averaged: Sequence[str] = (),
        strict: StrictPart | None = None,
        partition: RegionPartition | None = None,
    ) -> Tensor:
        """Return K with both parts: (C_out, C_in, k, k), or for each region (regions, C_out, C_in, k, k).

        Args:
            frequency: ω′ of each subgroup.
            averaged: subgroups over which K is averaged, which projects it on the kernels equivariant to them.
            strict: the strict part that stands beside this one.
            partition: the regions of the output; None where K does not depend on the position.
        """

    @abstractmethod
    def energies(
        self, frequency: Mapping[str, Tensor], hardened: Sequence[str], subgroups: Sequence[str]
    ) -> tuple[Tensor, Tensor]:
        """Return ‖K − PK‖² and ‖PK‖² of this part alone; P projects on the kernels equivariant to some subgroups.

        Args:
            frequency: ω′ of each subgroup.
            hardened: subgroups to which K is made equivariant before.
            subgroups: subgroups to which PK is equivariant.
        """

    @abstractmethod
    def start(self, frequency: Mapping[str, Tensor], softness: float, strict_energy: float) -> None:
        """Draw the weights and fix their scale.

        Args:
            frequency: ω′ at the start, none of them 0.
            softness: wanted part of the kernel's energy that depends on the domain.
            strict_energy: ‖·‖² of the strict part that stands beside this one.
        """

    @abstractmethod
    def scale(self, factor: float) -> None:
        """Multiply the soft part by a factor, and with it the change that an optimiser's step makes to it."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function the tensors of a state dict stand for."""
