"""A soft part for a few weights: the strict kernel, modulated over the domain (docs/concepts/mathematics.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..group.channels import RowOrder
from ..group.domain_points import DomainPoints
from ..group.elements import SUBGROUPS
from ..group.exact_constants import ExactConstants
from ..group.field_elements import channel_elements
from ..group.frame import GroupFrame
from ..group.points import tap_grid
from ..group.regions import RegionPartition
from ..group.remembered import Remembered
from .domain_functions import DomainFunctions, independent
from .domain_means import DomainMeans, PointSet, domain_of_means
from .field_kinds import FieldKind, places_by_kind, rows_of
from .orthogonal_basis import OrthogonalBasis
from .soft_part import SoftPart

if TYPE_CHECKING:  # exported layers come here too, and run without escnn
    from escnn.group import Representation

    from .steerable_basis import StrictPart

__all__ = ["TiedKernel"]

# The size of the modulation that a weight of 1 makes. With it an optimiser's steps change the kernel as little as the
# softness that tasks want (docs/results/soft-part.md).
_UNIT = 0.2
# ω′ at which functions are told apart, so that the number of weights does not depend on ω′.
_REFERENCE = 0.25


class TiedKernel(SoftPart):
    r"""K = K_strict ⊙ (1 + f), with a modulation f of a few numbers for each output field.

    .. math::
        f(c, d; x) = \sum_j \alpha_j \operatorname{mean}_{g \in c} h_j(\omega' \odot a(g, x))
            + \Big\langle \sum_k \mu_k \operatorname{mean}_g h_k(\omega' \odot a(g, x))\, g e_k, \tfrac{d}{|d|}
            \Big\rangle

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
        weights: α and μ of each field, kind after kind of fields, (n,).
        units: the factor of each function of each kind of fields.
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
        self.constants = _Constants()
        taps = tap_grid(kernel_size, dilation, frame.dimension)
        self.taps = list(range(len(taps)))
        length = np.linalg.norm(taps, axis=-1, keepdims=True)
        self.constants.set_constant("directions", np.divide(taps, length, out=np.zeros_like(taps), where=length > 0).T)
        self.orthogonal_basis = OrthogonalBasis(in_representations, out_representations)
        kinds = list(dict.fromkeys(out_representations))
        for number, kind in enumerate(kinds):
            self.constants.set_constant(f"elements_{number}", channel_elements([kind], frame.sample)[0])
        self.order = RowOrder(places_by_kind(kinds, out_representations))
        self._kinds = self._chosen([(list(out_representations).count(kind), kind.size) for kind in kinds])
        self.weights = nn.Parameter(torch.zeros(sum(kind.fields * kind.functions for kind in self._kinds)))
        self.register_buffer("units", torch.ones(sum(kind.functions for kind in self._kinds)))

    @property
    def can_be_soft(self) -> bool:
        """Whether any modulation of the kernel is left."""
        return len(self.weights) > 0

    @torch.no_grad()
    def _chosen(self, kinds: Sequence[tuple[int, int]]) -> list[FieldKind]:
        """Return kinds of fields with the functions that depend on no others, given their counts and sizes."""
        if not self.domain_subgroups:
            return [FieldKind(count, size, [], []) for count, size in kinds]
        dtype = self.grid.action.dtype
        self.double()
        frequency = {name: self.grid.action.new_full((1,), _REFERENCE) for name in self.domain_subgroups}
        values = self._values(frequency, (), self._positions(frequency))
        of_taps = self._of_taps(values, self.constants.directions)
        directions = [divmod(number, of_taps.shape[1]) for number in independent(of_taps.flatten(0, 1).flatten(1))]
        chosen = [
            FieldKind(count, size, independent(self._of_elements(number, values).flatten(1)), directions)
            for number, (count, size) in enumerate(kinds)
        ]
        self.to(dtype)
        return chosen

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
        positions = None if partition is None else self._positions(frequency)
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
        directions = self.constants.directions[:, tap : tap + 1]
        modulation = self._modulation(self._bases(frequency, averaged, positions, directions))
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

        def bases() -> tuple[Tensor, ...]:
            of_cells = self._bases(frequency, averaged, positions, self.constants.directions)
            return of_cells if partition is None else tuple(partition.means(of, 1, weights) for of in of_cells)

        if self.frame.offset:
            return self._modulation(bases())
        key = "modulation", tuple(averaged), positions is None, partition
        return self._modulation(self.remembered.get(key, bases, [self.units, *frequency.values()]))

    def _modulation(self, bases: Sequence[Tensor]) -> Tensor:
        """Return f (P, C_out, T) of the functions of each kind of fields, (functions, P, channels, T)."""
        parts = self.weights.split([kind.fields * kind.functions for kind in self._kinds])
        rows = []
        for kind, part, basis in zip(self._kinds, parts, bases, strict=True):
            values = (part.view(kind.fields, -1) @ basis.flatten(1)).unflatten(1, basis.shape[1:])
            rows.append(values.movedim(1, 0).flatten(1, 2))
        return rows[0] if len(rows) == 1 else self.order(torch.cat(rows, 1))

    def _bases(
        self, frequency: Mapping[str, Tensor], averaged: Sequence[str], positions: Tensor | None, directions: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the functions of each kind of fields, in their units, (functions, P, channels, T).

        Args:
            frequency: ω′ of each subgroup.
            averaged: subgroups over which their means are taken.
            positions: x over half of the image along each axis, (P, d).
            directions: d/|d| of the taps, (d, T).
        """
        values = self._values(frequency, averaged, positions)
        of_taps = self._of_taps(values, directions)
        bases = []
        units = self.units.split([kind.functions for kind in self._kinds])
        for number, (kind, unit) in enumerate(zip(self._kinds, units, strict=True)):
            of_elements = self._of_elements(number, rows_of(values, kind.elements)).unsqueeze(-1)
            numbers = [function * len(directions) + axis for function, axis in kind.directions]
            of_directions = rows_of(of_taps.flatten(0, 1), numbers).unsqueeze(2)
            shape = -1, -1, kind.size, directions.shape[1]
            bases.append(torch.cat([of_elements.expand(shape), of_directions.expand(shape)]) * unit.view(-1, 1, 1, 1))
        return tuple(bases)

    def _values(self, frequency: Mapping[str, Tensor], averaged: Sequence[str], positions: Tensor | None) -> Tensor:
        """Return the functions h of each element at each position, less their means over the domain, (J, M, P)."""

        def domain() -> tuple[Tensor, tuple[PointSet, ...], Tensor | None]:
            points, means = domain_of_means(self.grid, averaged, positions, is_centred=True)
            return points, means.sets, means.matrix

        is_known = (positions is None or positions is self.grid.image_positions) and not self.frame.offset
        key = "points", tuple(averaged), positions is None
        points, sets, matrix = self.remembered.get(key, domain, []) if is_known else domain()
        functions = self.functions(points * self.grid.scale(frequency))
        means = DomainMeans(sets, matrix)
        return means(functions.unsqueeze(-1)).squeeze(-1).expand(-1, len(self.grid.action), -1)

    def _of_elements(self, kind: int, values: Tensor) -> Tensor:
        """Return the means of functions (J, M, P) over the elements of each channel of a kind, (J, P, channels)."""
        elements: Tensor = getattr(self.constants, f"elements_{kind}")
        return torch.einsum("jmp,am->jpa", values, elements)

    def _of_taps(self, values: Tensor, directions: Tensor) -> Tensor:
        """Return ⟨mean_g h(g) g e_c, d/|d|⟩ of functions (J, M, P), for each axis c: (J, d, P, T)."""
        vectors = torch.einsum("jmp,mvc->jcpv", values, self.grid.action) / values.shape[1]
        return vectors @ directions

    def _positions(self, frequency: Mapping[str, Tensor]) -> Tensor | None:
        """Return the positions where the kernel differs, None where it is the same at all."""
        return self.grid.image_positions if "translation" in frequency else None

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
        positions = self._positions(frequency)
        projected = self.modulation(frequency, joint, positions)
        parts = self.modulation(frequency, hardened, positions) - projected, projected
        soft, strict_part = ((part.square() * of_channels).sum() / len(part) for part in parts)
        return soft, strict_part

    @torch.no_grad()
    def start(self, frequency: Mapping[str, Tensor], softness: float, strict: StrictPart | None) -> None:
        """Draw the weights so that the soft part is as large as the wanted softness says; 0 where none is wanted."""
        if not self.can_be_soft:
            return
        bases = self._bases(frequency, (), self._positions(frequency), self.constants.directions)
        sizes = torch.cat([basis.square().mean((1, 2, 3)).sqrt() for basis in bases])
        self.units.copy_(_UNIT / sizes)
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


class _Constants(ExactConstants):
    """The directions d/|d| of the taps, (d, T), and the elements of the channels of each kind of fields."""

    directions: Tensor


def _given(strict: Any) -> Any:
    """Return the strict part, without which nothing can be tied to it."""
    if strict is None:
        raise RuntimeError("a soft part that is tied to a strict part needs one")
    return strict
