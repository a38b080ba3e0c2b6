"""The interface of a soft part, the part of a layer's kernel that depends on the domain."""

from __future__ import annotations

import contextlib
import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ..group.domain_points import DomainPoints
from ..group.exact_constants import put_back
from ..group.frame import GroupFrame
from ..group.regions import RegionPartition
from ..group.remembered import Remembered

if TYPE_CHECKING:  # exported layers come here too, and run without escnn
    from typing_extensions import Self

    from .steerable_basis import StrictPart

__all__ = ["SoftPart"]


class SoftPart(nn.Module, ABC):
    """The soft part of a kernel. Each form of it is a subclass in a file of its own.

    Args:
        frame: the sampled group elements.
        domain_subgroups: subgroups that may be soft.
        remembered: the layer's store.

    Attributes:
        grid: the domain.
        taps: numbers of the taps where it may be non-zero.
        holds_strict_part: whether its mean over the domain is the strict part. Otherwise that mean is 0, and a strict
            part stands beside it.
        default_softness: the part of the kernel's energy that depends on the domain at the start.
        sees_cosets: whether it sees an element by its coset of the kept rotations.
        has_waves: whether it holds waves of the domain, which samples resolve up to some ω′.
    """

    grid: DomainPoints
    taps: list[int]
    holds_strict_part: ClassVar[bool] = False
    default_softness: ClassVar[float] = 0.001
    sees_cosets: ClassVar[bool] = False
    has_waves: ClassVar[bool] = True

    def __init__(self, frame: GroupFrame, domain_subgroups: tuple[str, ...], remembered: Remembered | None) -> None:
        super().__init__()
        self.frame = frame
        self.domain_subgroups = domain_subgroups
        self.remembered = Remembered() if remembered is None else remembered

    @property
    def can_be_soft(self) -> bool:
        """Whether any weights of it make the kernel depend on the domain."""
        return bool(self.domain_subgroups)

    def positions(self, frequency: Mapping[str, Tensor]) -> Tensor | None:
        """Return the centres of the cells, (P, d), where the kernel differs; None where it is the same at all."""
        return self.grid.image_positions if "translation" in frequency else None

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that a strict kernel does without."""
        yield from self.parameters()

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
    def at_pixels(
        self,
        frequency: Mapping[str, Tensor],
        tap: int,
        positions: Tensor,
        averaged: Sequence[str] = (),
        strict: Tensor | None = None,
    ) -> Tensor:
        """Return K with both parts at a tap for positions (P, d): (C_out, C_in, P).

        Args:
            frequency: ω′ of each subgroup.
            tap: its number.
            positions: x over half of the image along each axis.
            averaged: subgroups over which K is averaged.
            strict: the strict kernel at all taps, (C_out, C_in, T).
        """

    @abstractmethod
    def energies(
        self,
        frequency: Mapping[str, Tensor],
        hardened: Sequence[str],
        subgroups: Sequence[str],
        strict: StrictPart | None,
    ) -> tuple[Tensor, Tensor]:
        """Return ‖K − PK‖² and ‖PK‖² of this part alone; P projects on the kernels equivariant to some subgroups.

        Args:
            frequency: ω′ of each subgroup.
            hardened: subgroups to which K is made equivariant before.
            subgroups: subgroups to which PK is equivariant.
            strict: the strict part that stands beside this one.
        """

    @abstractmethod
    def start(self, frequency: Mapping[str, Tensor], softness: float, strict: StrictPart | None) -> None:
        """Draw the weights and fix their scale.

        Args:
            frequency: ω′ at the start, none of them 0.
            softness: wanted part of the kernel's energy that depends on the domain.
            strict: the strict part that stands beside this one.
        """

    @abstractmethod
    def start_at_zero(self, growth: float) -> None:
        """Set the soft part to 0, from where it learns, beside another strict part.

        Args:
            growth: the norm of that strict part in proportion to the one at the start.
        """

    @abstractmethod
    def scale(self, factor: float) -> None:
        """Multiply the soft part by a factor."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function the tensors of a state dict stand for."""
        return {"soft in": list(self.domain_subgroups), "keeps": str(self.frame.kept)}

    def _set_frame(self, frame: GroupFrame) -> None:
        """Take the elements of another frame, a turned grid of a continuous group."""
        self.frame = frame
        self.grid.set_frame(frame)

    def turn(self, offset: float) -> None:
        """Turn the sampled grid of a continuous group by an angle in radians."""
        if offset == self.frame.offset:
            return
        self.remembered.drop()
        self._set_frame(self.frame.turned(offset))

    @contextlib.contextmanager
    def turned(self, offset: float) -> Iterator[None]:
        """Within it, in training, the grid is turned by an angle in radians; nothing is remembered of it."""
        before = self.frame
        with put_back(self):
            self._set_frame(before.turned(offset))
            try:
                yield
            finally:
                self.frame = before

    def random_offset(self) -> float:
        """Return a random angle in radians, uniform over one step of the sampled grid."""
        return float(torch.rand((), device="cpu")) * 2 * math.pi / self.frame.samples

    def without_escnn(self) -> Self:
        """Return a copy that holds no object of escnn. Its grid can no longer be turned."""
        kept = self.__dict__
        self.__dict__ = {**kept, "frame": self.frame.without_escnn()}
        try:
            return copy.deepcopy(self)
        finally:
            self.__dict__ = kept

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        self.remembered.drop()
        super()._apply(fn, recurse)
        return self
