"""A soft part for a few weights: the strict kernel, modulated over the domain (docs/concepts/mathematics.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..group.channels import RowOrder
from ..group.domain_points import DomainPoints
from ..group.elements import SUBGROUPS
from ..group.frame import GroupFrame
from ..group.points import tap_grid
from ..group.regions import RegionPartition
from ..group.remembered import Remembered
from .domain_functions import DomainFunctions
from .domain_means import DomainMeans, PointSet, domain_of_means
from .modulation_maps import ModulationMaps
from .orthogonal_basis import OrthogonalBasis
from .soft_part import SoftPart

if TYPE_CHECKING:  # exported layers come here too, and run without escnn
    from escnn.group import Representation

    from .steerable_basis import StrictPart

__all__ = ["TiedKernel"]

# The root mean square of the modulation that a weight of 1 makes. Tasks want small modulations, so an optimiser's steps
# must change the kernel little (docs/concepts/mathematics.md).
_UNIT = 0.2
# ω′ at which dependent functions are found. The number of weights must not depend on the ω′ of a layer.
_REFERENCE = 0.25


class TiedKernel(SoftPart):
    r"""K = K_strict ⊙ (1 + f), with a modulation f of a few numbers for each output field.

    .. math::
        f(c, d; x) = \sum_j \alpha_j \operatorname{mean}_{g \in c} h_j(\omega' \odot a(g, x))
            + \sum_{jk} \mu_{jk} \operatorname{mean}_g h_j(\omega' \odot a(g, x))\, \langle g e_k, d/|d| \rangle^{n_j}

    c is an output channel, which in a regular or quotient field belongs to an element or a coset, and elsewhere to all
    of the group. α and μ are the weights of its field. The functions h have no mean over the domain, so PK is
    K_strict. This is equation (2) for κ = (1 + m) K_strict, since K_strict is steerable: both parts have the same
    weights, as in the paper.

    Args:
        in_representations: fields of (one group of) the input.
        out_representations: fields of the output.
        frame: their symmetry.
        kernel_size: k.
        dilation: spacing of the taps in pixels.
        domain_subgroups: subgroups that may be soft.
        cells: number of positions along each axis of the image over which the kernel varies.
        remembered: the layer's store.

    Attributes:
        weights: α of each kind of fields, and then μ of all fields, (n,).
        units: the factor of each function.
    """

    sees_cosets = True
    has_waves = False
    units: Tensor

    def __init__(
        self,
        in_representations: Sequence[Representation],
        out_representations: Sequence[Representation],
        frame: GroupFrame,
        *,
        kernel_size: int,
        dilation: int,
        domain_subgroups: tuple[str, ...],
        cells: int = 1,
        remembered: Remembered | None = None,
    ) -> None:
        super().__init__(frame, domain_subgroups, remembered)
        self.grid = DomainPoints(domain_subgroups, "group", cells, frame)
        self.functions = DomainFunctions(self.grid.domain_columns)
        grid = tap_grid(kernel_size, dilation, frame.dimension)
        self.taps = list(range(len(grid)))
        self.orthogonal_basis = OrthogonalBasis(in_representations, out_representations)
        kinds = list(dict.fromkeys(out_representations))
        self.order = RowOrder(_places(kinds, out_representations))
        counts = [list(out_representations).count(kind) for kind in kinds]
        self.maps = ModulationMaps(kinds, counts, frame, grid, self._reference_values())
        self.weights = nn.Parameter(torch.zeros(sum(self.maps.weight_counts)))
        self.register_buffer("units", torch.ones(self.maps.function_count))

    def _set_frame(self, frame: GroupFrame) -> None:
        super()._set_frame(frame)
        self.maps.set_frame(frame)

    @property
    def can_be_soft(self) -> bool:
        """Whether any modulation of the kernel is left."""
        return len(self.weights) > 0

    @torch.no_grad()
    def _reference_values(self) -> NDArray[np.float64]:
        """Return the functions h at the reference ω′, (P, J, M), in double precision."""
        dtype = self.grid.action.dtype
        self.grid.double()
        frequency = {name: self.grid.action.new_full((1,), _REFERENCE) for name in self.domain_subgroups}
        values = self._values(frequency, (), self.positions(frequency)).numpy()
        self.grid.to(dtype)
        self.remembered.clear()
        return values

    def forward(
        self,
        frequency: Mapping[str, Tensor],
        averaged: Sequence[str] = (),
        strict: StrictPart | None = None,
        partition: RegionPartition | None = None,
    ) -> Tensor:
        """Return K with both parts: (C_out, C_in, k, k), or for each region (regions, C_out, C_in, k, k)."""
        kernel = _given(strict).kernel()
        # Without regions K is the same at all positions.
        positions = None if partition is None else self.positions(frequency)
        modulation = (
            self.modulation(frequency, averaged, positions, partition).unsqueeze(2).unflatten(-1, kernel.shape[2:])
        )
        return torch.addcmul(kernel, kernel, modulation.squeeze(0) if partition is None else modulation)

    def at_pixels(
        self,
        frequency: Mapping[str, Tensor],
        tap: int,
        positions: Tensor,
        averaged: Sequence[str] = (),
        strict: Tensor | None = None,
    ) -> Tensor:
        """Return K with both parts at a tap for positions (P, d): (C_out, C_in, P)."""
        maps = self._scaled_maps()[:, self.maps.columns_of(tap)]
        columns = self._values(frequency, averaged, positions).flatten(1) @ maps
        modulation = self._in_order(self.maps.modulation(columns, self.weights, taps=1))
        kernel = _given(strict)[..., tap].unsqueeze(-1)
        return torch.addcmul(kernel, kernel, modulation.permute(1, 2, 0))

    def modulation(
        self,
        frequency: Mapping[str, Tensor],
        averaged: Sequence[str] = (),
        positions: Tensor | None = None,
        partition: RegionPartition | None = None,
    ) -> Tensor:
        """Return f at all taps, (P, C_out, T); P is 1 where K does not depend on the position.

        Args:
            frequency: ω′ of each subgroup.
            averaged: subgroups over which the mean of f is taken.
            positions: the centres of the cells, None where f is wanted at the centre of the image alone.
            partition: regions over whose cells means of f are wanted.
        """
        weights = None
        if partition is not None:
            place = "weights of regions", partition
            weights = self.remembered.get(place, lambda: partition.weights(self.grid.image_positions), [])

        def build() -> Tensor:
            columns = self._values(frequency, averaged, positions).flatten(1) @ self._scaled_maps()
            return columns if partition is None else partition.means(columns, 0, weights)

        key = "columns", tuple(averaged), positions is None, partition
        sources = [self.units, *frequency.values()]
        columns = build() if self.frame.offset else self.remembered.get(key, build, sources)
        return self._in_order(self.maps.modulation(columns, self.weights, len(self.taps)))

    def _scaled_maps(self) -> Tensor:
        """Return the map from h at all elements to the functions of channels and taps, in their units."""

        def build() -> Tensor:
            return self.maps.of_values * self.units[self.maps.function_of_column]

        return build() if self.frame.offset else self.remembered.get("maps", build, [self.units])

    def _in_order(self, modulation: Tensor) -> Tensor:
        """Return f (P, C_out, T) by the output's channels, given it kind after kind of fields."""
        ordered: Tensor = modulation if len(self.maps.kinds) == 1 else self.order(modulation)
        return ordered

    def _values(self, frequency: Mapping[str, Tensor], averaged: Sequence[str], positions: Tensor | None) -> Tensor:
        """Return the functions h of each element at each position, less their means over the domain, (P, J, M)."""
        elements = len(self.grid.action)
        if not self.domain_subgroups:
            return self.grid.action.new_zeros(1, 0, elements)

        def build() -> tuple[Tensor, tuple[PointSet, ...], Tensor | None]:
            points, sets, matrix = domain_of_means(self.grid, averaged, positions, is_centred=True)
            return 2 * math.pi * points, sets, matrix

        is_known = positions is None or positions is self.grid.image_positions
        is_kept = is_known and not self.frame.offset
        key = "points", tuple(averaged), positions is None
        points, sets, matrix = self.remembered.get(key, build, []) if is_kept else build()
        functions = self.functions(points * self.grid.scale(frequency))
        return DomainMeans(sets, matrix)(functions.unsqueeze(-1)).squeeze(-1).expand(-1, elements, -1).permute(2, 0, 1)

    def energies(
        self,
        frequency: Mapping[str, Tensor],
        hardened: Sequence[str],
        subgroups: Sequence[str],
        strict: StrictPart | None,
    ) -> tuple[Tensor, Tensor]:
        """Return ‖K − PK‖² and ‖PK‖² of this part alone, as means over the positions."""
        of_channels = self.orthogonal_basis(_given(strict).kernel()).square().sum(1).flatten(1)
        joint = tuple(name for name in SUBGROUPS if name in (*hardened, *subgroups))
        positions = self.positions(frequency)
        projected = self.modulation(frequency, joint, positions)
        parts = self.modulation(frequency, hardened, positions) - projected, projected
        soft, strict_part = ((part.square() * of_channels).sum() / len(part) for part in parts)
        return soft, strict_part

    @torch.no_grad()
    def start(self, frequency: Mapping[str, Tensor], softness: float, strict: StrictPart | None) -> None:
        """Draw the weights so that the soft part is as large as the wanted softness says; 0 where none is wanted."""
        if not self.can_be_soft:
            return
        columns = self._values(frequency, (), self.positions(frequency)).flatten(1) @ self.maps.of_values
        squares = columns.square().mean(0)
        sizes = squares.new_zeros(len(self.units)).index_add(0, self.maps.function_of_column, squares)
        self.units.copy_(_UNIT * (self.maps.function_of_column.bincount() / sizes).sqrt())
        nn.init.normal_(self.weights)
        present, _ = self.energies(frequency, (), SUBGROUPS, strict)
        wanted = _given(strict).energy() * softness / (1 - softness)
        self.weights.mul_((wanted / present).sqrt() if present > 0 else 0)

    @torch.no_grad()
    def start_at_zero(self, growth: float) -> None:
        """Set the weights to 0."""
        self.weights.zero_()

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        """Multiply the weights by a factor."""
        self.weights.mul_(factor)

    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function the tensors of a state dict stand for."""
        return {**super().describe(), "soft part": "tied"}


def _places(kinds: Sequence[Representation], fields: Sequence[Representation]) -> NDArray[np.int64]:
    """Return the row of each channel of some fields where they follow each other kind by kind."""
    numbers = np.repeat([kinds.index(field) for field in fields], [field.size for field in fields])
    return np.argsort(np.argsort(numbers, kind="stable"), kind="stable")


def _given(strict: Any) -> Any:
    """Return the strict part, without which nothing can be tied to it."""
    if strict is None:
        raise RuntimeError("a soft part that is tied to a strict part needs one")
    return strict
