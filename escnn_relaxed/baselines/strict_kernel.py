"""The common base of the baselines: a strict kernel that is relaxed, and a convolution that stays stationary."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from escnn.nn import FieldType
from torch import Tensor, nn

from ..group.elements import SUBGROUPS, has_subgroup
from ..group.frame import FIBER_SUBGROUPS
from ..kernel.orthogonal_basis import OrthogonalBasis
from ..kernel.softness import soft_share
from ..layer.convolution import Convolution
from ..layer.options import check_keywords
from ..layer.relaxed_r2conv import STRICT_KEYWORDS, RelaxedR2Conv

__all__ = ["BaselineConvolution", "StrictKernel", "strict_layer"]


def strict_layer(
    way: str,
    in_type: FieldType,
    out_type: FieldType,
    kernel_size: int,
    padding: int | tuple[int, int],
    keywords: dict[str, Any],
) -> RelaxedR2Conv:
    """Return a strict layer, newly drawn.

    Args:
        way: name of the class that relaxes it, for errors.
        in_type: field type of the input.
        out_type: field type of the output.
        kernel_size: k.
        padding: pixels on both sides.
        keywords: the other arguments.

    Raises:
        TypeError: for an argument of the wrong type, or another keyword.
        ValueError: for a value that has no meaning.
    """
    check_keywords(way, keywords, STRICT_KEYWORDS, "beside its own")
    return RelaxedR2Conv(in_type, out_type, kernel_size, padding, relax=None, **keywords)


class StrictKernel(nn.Module):
    """The kernel of a strict layer, the map from its weights to its filter bank.

    Args:
        layer: a strict layer, whose parts become those of the kernel.
    """

    source: nn.Module

    def __init__(self, layer: RelaxedR2Conv) -> None:
        super().__init__()
        # The source is a basis, with weights beside it, or a continuous kernel, which holds its own.
        (self.source,) = [part for part in (layer.steerable_basis, layer.bank) if part is not None]
        self.register_parameter("weights", layer.weights)

    def forward(self) -> Tensor:
        """Return the filter bank, (C_out, C_in/groups, k, k)."""
        bank: Tensor = self.source({} if self.weights is None else self.weights)
        return bank


class BaselineConvolution(Convolution):
    """A convolution that relaxes strict kernels. A subclass says how.

    Args:
        layer: a strict layer, whose place and bias this one takes.

    Attributes:
        orthogonal_basis: the basis in which norms of kernels are taken.
    """

    def __init__(self, layer: RelaxedR2Conv) -> None:
        super().__init__(layer.in_type, layer.out_type, layer.geometry, layer.bias is not None)
        self.orthogonal_basis = OrthogonalBasis(self.kernel_types[0].representations, layer.out_type.representations)

    @abstractmethod
    def make_strict(self) -> None:
        """Set the weights that relax the layer, in place, so that it is strict; training may relax it again."""

    @abstractmethod
    def projected_bank(self, subgroups: tuple[str, ...]) -> Tensor:
        """Return PK, (C_out, C_in/groups, k, k), the part of K that is equivariant to some subgroups; K for none."""

    def filter_bank(self) -> Tensor:
        """Return K, (C_out, C_in/groups, k, k)."""
        return self.projected_bank(self.hardened)

    def _softness(self, subgroups: tuple[str, ...]) -> Tensor:
        bank = self.filter_bank()
        strict = self.projected_bank(tuple(name for name in SUBGROUPS if name in (*self.hardened, *subgroups)))
        return soft_share(self.orthogonal_basis.energy(bank - strict), self.orthogonal_basis.energy(strict))

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """The rotations and reflections that the group has, which are relaxed together."""
        return tuple(name for name in FIBER_SUBGROUPS if has_subgroup(self.space, name))
