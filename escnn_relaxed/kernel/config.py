"""Configuration of a kernel, groups of its soft weights, and its form as factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from escnn.nn import FieldType
from torch import Tensor, nn

from ..checks import ordered_subgroups
from ..group.domain import Domain
from ..group.points import Array, tap_grid
from .domain_frequency import Frequency

# Names of subgroups, and pixels along each axis of an output; by default those of the domain's reference image.
Names = Sequence[str]
Size = tuple[int, ...] | None


@dataclass(frozen=True)
class KernelConfig:
    """Configuration from which a kernel is built.

    Attributes:
        in_type: fields of (one group of) the input.
        out_type: fields of (one group of) the output.
        kernel_size: k.
        dilation: spacing of the taps in pixels.
        domain: the sampled group and the positions.
        relax: ω′ at the start of each subgroup that may be soft.
        learn_relaxation: make ω′ parameters.
        basis_arguments: escnn's arguments that shape the steerable basis, where they are given. A kernel that is built
            keeps none.

    Example:
        >>> from escnn import gspaces
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
        >>> config = RelaxedR2Conv(image, image, 3).kernel.config
        >>> config.kernel_size, config.relax
        (3, {'rotation': 0.25})
    """

    in_type: FieldType
    out_type: FieldType
    kernel_size: int
    dilation: int
    domain: Domain
    relax: Mapping[str, Frequency] = field(default_factory=dict)
    learn_relaxation: bool = False
    basis_arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def taps(self) -> Array:
        """The offsets d of the taps in pixels, (T, dimension), in the order of a flattened weight."""
        return tap_grid(self.kernel_size, self.dilation, self.domain.dimension)

    def check_action(self, kernel: str) -> None:
        """Raise a ``ValueError`` for a group that does not act on the plane or on space, as such a kernel needs."""
        group = self.in_type.gspace.fibergroup
        if group != self.domain.gspace.fibergroup or self.domain.is_abstract:
            raise ValueError(
                f"kernel must be the default one for {group.name}, of which no action on the plane or on space is "
                f"known, got a {kernel}"
            )


class WeightGroup(NamedTuple):
    """The soft weights of some subgroups. They have no effect in a kernel that is strict in one of these.

    Attributes:
        subgroups: those that the kernel breaks through the weights.
        entries: parameters, each with the numbers of its entries.
        needs_all: whether the weights do nothing only once the kernel is strict in all of these, and not in one.

    Example:
        >>> of_both = WeightGroup(frozenset({"reflection", "rotation"}), [])
        >>> of_both.name, of_both.is_gone(("rotation",))
        ('rotation × reflection', True)
        >>> of_both._replace(needs_all=True).is_gone(("rotation",))
        False
    """

    subgroups: frozenset[str]
    entries: list[tuple[nn.Parameter, Tensor]]
    needs_all: bool = False

    @property
    def name(self) -> str:
        """The subgroups as text."""
        return (", " if self.needs_all else " × ").join(ordered_subgroups(self.subgroups))

    def is_gone(self, hardened: Names) -> bool:
        """Return whether the weights have no effect in a kernel that is strict in some subgroups."""
        return self.subgroups <= set(hardened) if self.needs_all else not self.subgroups.isdisjoint(hardened)


class ModulatedKernel(NamedTuple):
    """A kernel as a strict bank times factors, K(d; x) = Σ_r F_r(c; x) S(c, c′, d) u_r(d) (1 + f(c, d)).

    Attributes:
        strict: S, (C_out, C_in, T).
        f: that of each output channel, (C_out, T), or (C_out, 1) where it is the same at all taps; None for 0.
        tap_functions: an orthonormal basis of the functions of the taps that f is a sum of, (n, T or 1).
        factors: F at the pixels of the output, (R, C_out, …); None for one factor of 1.
        directions: u, (R, T).
    """

    strict: Tensor
    f: Tensor | None
    tap_functions: Tensor
    factors: Tensor | None
    directions: Tensor
