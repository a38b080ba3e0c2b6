"""The modulation f of a tied kernel: functions of the domain, and a few weights of each output field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from escnn.group import Representation
from numpy.typing import NDArray
from torch import Tensor, nn

from ..checks import FIBER_SUBGROUPS
from ..group.domain import Domain
from ..group.exact_constants import ExactConstants, RowOrder
from ..group.fields import channel_elements
from ..group.means import mean_matrix
from ..group.regions import RegionPartition
from .domain_frequency import DEFAULT_FREQUENCY, DomainFrequency

Array = NDArray[np.float64]

# The root mean square of the modulation that a weight of 1 makes at ω′ = 0.25. Tasks want small modulations, so an
# optimiser's steps must change the kernel little (docs/concepts/mathematics.md).
_UNIT = 0.2
# The highest power of ⟨g e, d/|d|⟩: what is kept by quarter turns is not seen below the fourth.
_DEGREES = 4
# Sums over elements that should be 0 are smaller.
_SAME = 1e-9
# A function is left out if this part of it, or less, is not a sum of the functions before it.
_LEAST = 0.1
# A function of this size (root mean square) is 0; those of :class:`Modulation` are at most 1.
_NOTHING = 1e-3


class _Kind(NamedTuple):
    """Output fields of one representation."""

    fields: int
    elements: Array  # those of each channel, as a mean over the sample, (channels, M)
    functions: list[int]  # numbers of the functions h that their weights multiply


class _Side(NamedTuple):
    """A function of the taps, mean_g h(g) ⟨g e, d/|d|⟩ⁿ: the number of h, that of the axis e, and n."""

    function: int
    axis: int
    degree: int


class Modulation(ExactConstants):
    r"""f of each output channel, tap and position, with a mean of 0 over the domain.

    .. math::
        f(c, d; x) = \sum_j \alpha_j \operatorname{mean}_{g \in c} h_j(\omega' \odot a(g, x))
            + \sum_{jk} \mu_{jk} \operatorname{mean}_g h_j(\omega' \odot a(g, x))\, \langle g e_k, d/|d| \rangle^{n_j}

    c is an output channel, which in a regular or quotient field belongs to an element or a coset, and elsewhere to all
    of the group. The functions h are tanh(2π ω′ a) of each coordinate of the domain, squares of positions and of
    rotations of space, and products of rotation and reflection, less their means over the domain. tanh has the slope of
    a sine at 0 and grows with ω′, where a sine would vanish on all elements of C4 at ω′ = 0.5. Squares tell the centre
    from the border, and an axis of space from other axes, whichever way it points. A function is left out if it is a
    sum of others at all elements and positions.

    ``weights`` are α of each kind of fields, and then μ of all fields.
    """

    elements: Tensor
    positions: Tensor
    maps: Tensor

    def __init__(self, fields: Sequence[Representation], domain: Domain, subgroups: Sequence[str], taps: Array) -> None:
        super().__init__()
        columns = domain.columns(subgroups)
        self._of_elements = tuple(name for name in columns if name in FIBER_SUBGROUPS)
        self._of_positions = tuple(name for name in columns if name == "translation")
        self._rotations = columns.count("rotation")
        self.set_constant("elements", 2 * math.pi * domain.elements([*dict.fromkeys(self._of_elements)]))
        centres = domain.positions() if self._of_positions else np.zeros((1, len(domain.sample), 0))
        self.set_constant("positions", 2 * math.pi * centres)
        whole = np.full((len(domain.sample),) * 2, 1 / len(domain.sample))
        for names in ((), ("rotation",), ("reflection",), FIBER_SUBGROUPS):
            mean = mean_matrix(domain.translates([name for name in names if name in domain.subgroups]))
            self.set_constant("_".join(["centre", *names]), (mean - whole).T)
        values = self._reference_values()
        kinds = list(dict.fromkeys(fields))
        self.order = RowOrder(_places(kinds, fields))
        self._taps = len(taps)
        self._sides = _independent_sides(values, domain.sample.action, taps)
        means = [channel_elements([kind], domain.sample)[0] for kind in kinds]
        functions = [_independent(np.einsum("pjm,am->jpa", values, of)) for of in means]
        counts = [list(fields).count(kind) for kind in kinds]
        self._kinds = [_Kind(*of) for of in zip(counts, means, functions, strict=True)]
        self.set_constant("maps", self._maps(values, domain.sample.action, taps))
        # The numbers of columns and of weights of each kind, those of the sides last.
        self._columns = [len(kind.elements) * len(kind.functions) for kind in self._kinds]
        self._columns.append(len(self._sides) * len(taps))
        self._counts = [kind.fields * len(kind.functions) for kind in self._kinds]
        self._counts.append(sum(counts) * len(self._sides))
        self.weights = nn.Parameter(torch.zeros(sum(self._counts)))

    def forward(
        self,
        frequency: DomainFrequency,
        averaged: Sequence[str] = (),
        partition: RegionPartition | None = None,
    ) -> Tensor:
        """Return f at all taps, (P, C_out, T), the mean over the cells of each region; P is 1 without."""
        moved = frequency.scale(self._of_positions, self.elements) if self._of_positions else self.elements
        scale = frequency.scale(self._of_elements, self.elements) if self._of_elements else moved
        columns = self.functions(scale, moved, averaged, partition is not None).flatten(1) @ self.maps
        if partition is not None:
            columns = partition.means(columns, 0)
        rows = self._weighted(columns)
        return rows if len(self._kinds) == 1 else self.order(rows)

    def functions(
        self, scale: Tensor, scale_of_positions: Tensor, averaged: Sequence[str] = (), at_cells: bool = True
    ) -> Tensor:
        """Return the functions h of each element at each position, (P, J, M); with those of positions 0 for P = 1."""
        count, number = len(self._of_elements), len(self._of_positions)
        if count:
            first = (self.elements * scale).tanh().mT
            added = []
            if self._rotations > 2:  # a rotation of the plane has two coordinates
                added.append(first[: self._rotations].square())
            if 0 < self._rotations < count:
                added.append((first[: self._rotations, None] * first[self._rotations :]).flatten(0, 1))
            mean = f"centre{'_rotation' * ('rotation' in averaged)}{'_reflection' * ('reflection' in averaged)}"
            of_elements = ((torch.cat([first, *added]) if added else first) @ getattr(self, mean)).unsqueeze(0)
            if not number:
                return of_elements
        if not at_cells:
            # ω′ of a hardened layer keeps a gradient, 0: distributed training waits for that of each parameter.
            both = self.positions.new_zeros(1, 2 * number, self.positions.shape[1]) + 0 * scale_of_positions.sum()
        else:
            moved = (self.positions * scale_of_positions).tanh().mT
            both = torch.cat([moved, moved.square()], 1)
            both = both * 0 if "translation" in averaged else both - both.mean((0, 2), keepdim=True)
        if not count:
            return both
        of_elements = of_elements.expand(len(both), -1, -1)
        return torch.cat([both[:, :number], of_elements[:, :count], both[:, number:], of_elements[:, count:]], 1)

    def of_subgroups(self) -> list[tuple[str, ...]]:
        """Return the subgroups that each function h depends on."""
        names, rotations = self._of_elements, self._rotations
        found = [(name,) for name in (*self._of_positions, *names, *self._of_positions)]
        found += [("rotation",)] * (rotations if rotations > 2 else 0)
        return [*found, *[FIBER_SUBGROUPS] * (rotations * names.count("reflection"))]

    def weight_subgroups(self) -> list[tuple[str, ...]]:
        """Return the subgroups that each weight belongs to."""
        of = self.of_subgroups()
        alphas = [of[number] for kind in self._kinds for _ in range(kind.fields) for number in kind.functions]
        fields = sum(kind.fields for kind in self._kinds)
        return [*alphas, *[of[side.function] for side in self._sides] * fields]

    def of_earlier_units(self, weights: Tensor, units: Tensor) -> Tensor:
        """Return weights in today's units, given those of version 0.1 and their unit of each function."""
        factors = units.to(weights) / self.units.to(weights)
        *of_elements, of_taps = factors.split([*(len(kind.functions) for kind in self._kinds), len(self._sides)])
        repeated = [of.repeat(kind.fields) for of, kind in zip(of_elements, self._kinds, strict=True)]
        fields = sum(kind.fields for kind in self._kinds)
        return weights * torch.cat([*repeated, of_taps.repeat(fields)])

    @torch.no_grad()
    def _reference_values(self) -> Array:
        """Return the functions h at the reference ω′, whatever that of the layer is, (P, J, M), in double precision."""
        dtype = self.elements.dtype
        scale = self.double().elements.new_full((1,), DEFAULT_FREQUENCY)
        values: Array = self.functions(scale, scale).numpy()
        self.to(dtype)
        return values

    def _maps(self, values: Array, action: Array, taps: Array) -> Array:
        """Return the map from h at all elements to channels of kinds, then taps of sides, (J·M, columns)."""
        directions = _directions(taps)
        parts = [(number, kind.elements.T) for kind in self._kinds for number in kind.functions]
        parts += [
            (side.function, (action[:, :, side.axis] @ directions) ** side.degree / len(action)) for side in self._sides
        ]
        columns, units = [], []
        for number, part in parts:
            size = np.sqrt(np.square(values[:, number] @ part).sum(0).mean() / len(values))
            column = np.zeros((values.shape[1], len(action), part.shape[1]))
            units.append(_UNIT / size)
            column[number] = part * units[-1]
            columns.append(column.reshape(-1, part.shape[1]))
        self.units = torch.tensor(units, dtype=torch.float64)
        return np.concatenate([np.zeros((values.shape[1] * len(action), 0)), *columns], 1)

    def _weighted(self, columns: Tensor) -> Tensor:
        """Return f (P, C_out, T), kind after kind of fields, of the functions at P positions, (P, columns)."""
        *of_elements, of_taps = columns.split(self._columns, dim=1)
        *alphas, mu = self.weights.split(self._counts)
        sides, first = None, 0
        if self._sides:
            # (fields, sides) · (P, sides, T).
            sides = mu.view(-1, len(self._sides)) @ of_taps.unflatten(1, (-1, self._taps))
            sides = sides.unsqueeze(2)
        rows = []
        for kind, values, alpha in zip(self._kinds, of_elements, alphas, strict=True):
            shape = len(columns), kind.fields, len(kind.elements), self._taps
            part = columns.new_zeros(1, 1, 1, 1) if sides is None else sides[:, first : first + kind.fields]
            if kind.functions:
                # (fields, functions) · (P, functions, channels).
                of_kind = (alpha.view(kind.fields, -1) @ values.unflatten(1, (-1, len(kind.elements)))).unsqueeze(-1)
                part = of_kind if sides is None else of_kind + part
            rows.append(part.expand(shape).flatten(1, 2))
            first += kind.fields
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


def _independent(values: Array) -> list[int]:
    """Return the numbers of the functions that are not sums of those before them, given their values (J, …)."""
    functions = torch.from_numpy(values.reshape(len(values), math.prod(values.shape[1:])))
    kept: list[int] = []
    basis = functions[:0]
    sizes = functions.square().mean(1).sqrt()
    for number in torch.nonzero(sizes > _NOTHING).flatten().tolist():
        function = functions[number] / functions[number].norm()
        rest = function - function @ basis.mT @ basis
        left = rest.norm()
        if left > _LEAST:
            kept.append(number)
            basis = torch.cat([basis, (rest / left)[None]])
    return kept


def _independent_sides(values: Array, action: Array, taps: Array) -> list[_Side]:
    """Return the sides that do not depend on each other, given h (P, J, M) and the elements (M, d, d)."""
    # n is 1, or for a function h of elements alone the least power whose mean is not 0.
    sides: list[_Side] = []
    functions: list[Array] = []
    along = np.einsum("mij,it->jmt", action, _directions(taps))
    for number, function in enumerate(values.swapaxes(0, 1)):
        is_of_elements = np.ptp(function, axis=0).max() < _SAME
        for degree in range(1, 1 + (_DEGREES if is_of_elements else 1)):
            means = function @ along**degree / len(action)
            sides += [_Side(number, axis, degree) for axis in range(len(along))]
            functions.append(means)
            if np.abs(means).max() > _SAME:
                break
    return [sides[number] for number in _independent(np.concatenate(functions))] if functions else []


def _directions(taps: Array) -> Array:
    """Return d/|d| of the taps (T, d), 0 at the centre, (d, T)."""
    length = np.linalg.norm(taps, axis=-1, keepdims=True)
    return np.divide(taps, length, out=np.zeros_like(taps), where=length > 0).T


def _places(kinds: Sequence[Representation], fields: Sequence[Representation]) -> NDArray[np.int64]:
    """Return the row of each channel of some fields where they follow each other kind by kind."""
    numbers = np.repeat([kinds.index(field) for field in fields], [field.size for field in fields])
    return np.argsort(np.argsort(numbers, kind="stable"), kind="stable")
