"""Sums of functions of the domain for each output channel, with a few weights of each field."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from escnn.group import Representation
from numpy.typing import NDArray
from torch import Tensor, nn

from ..checks import FIBER_SUBGROUPS
from ..group.domain import Domain, of_fiber_group
from ..group.elements import GroupSample
from ..group.exact_constants import ExactConstants
from ..group.fields import channel_elements
from ..group.points import Array
from ..torch_modes import has_no_values
from .domain_frequency import DEFAULT_FREQUENCY, DomainFrequency

# The functions of one kind of fields, whose products with its weights are the parts of a modulation.
Maps = tuple[Tensor, ...]

# The root mean square of the modulation that a weight of 1 makes at ω′ = 0.25. Tasks want small modulations, so an
# optimiser's steps must change the kernel little (docs/concepts/mathematics.md).
SCALE = 0.2
# The highest power of ⟨g e, d/|d|⟩: what is kept by quarter turns is not seen below the fourth.
_DEGREES = 4
# Sums over elements that should be 0 are smaller.
_SAME = 1e-9
# A function is left out if this part of it, or less, is not a sum of the functions before it.
_LEAST = 0.1
# A function of this size (root mean square) is 0; those of a modulation are at most 1.
_NOTHING = 1e-3


class FieldKind(NamedTuple):
    """The output fields of one representation."""

    fields: int
    size: int  # channels of a field
    elements: Array  # of each channel, as a mean over the sample, (size, M), or (1, M) where channels have none


class Modulation(ExactConstants, ABC):
    """Base of modulations. ``weights`` are lists of the weights of each kind of fields, (fields, number), flattened."""

    weights: nn.Parameter
    order: Tensor

    def __init__(self, fields: Sequence[Representation], sample: GroupSample, lists: int = 1) -> None:
        super().__init__()
        self._lists = lists
        kinds = self._representations = list(dict.fromkeys(fields))
        numbers = np.repeat([kinds.index(field) for field in fields], [field.size for field in fields])
        # The row of each channel where fields follow each other kind by kind.
        self.set_constant("order", np.argsort(np.argsort(numbers, kind="stable"), kind="stable"))
        self.kinds = []
        for kind in kinds:
            elements, has_any = channel_elements([kind], sample)
            own = elements if has_any.all() else elements[:1]
            self.kinds.append(FieldKind(list(fields).count(kind), kind.size, own))
        # The subgroup of each coordinate that the functions depend on.
        self._columns: tuple[str, ...] = ()

    @abstractmethod
    def weight_subgroups(self) -> list[tuple[str, ...]]:
        """Return the subgroups that each weight belongs to."""

    @abstractmethod
    def _function_maps(self, scale: Tensor, setting: tuple[Any, ...], constants: Any) -> list[Maps]:
        """Return the functions of each kind of fields at ω′, (number of weights, columns)."""

    @abstractmethod
    def _weighted_sums(self, maps: Sequence[Maps], weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of functions with the weights of each kind, (…, fields, rows, columns)."""

    def forward(self, frequency: DomainFrequency, setting: tuple[Any, ...] = ()) -> Tensor:
        """Return the sums of functions with weights; where ω′ is fixed the functions are made once for a setting."""
        if frequency.learn or has_no_values():
            maps = self._function_maps(frequency.scale(self._columns, self.like), setting, self)
        else:
            make = partial(self._exact_function_maps, frequency, setting)
            maps = self.remembered((frequency.settings, setting), make)
        return self.channels(self._weighted_sums(maps, self.by_kind()))

    def _exact_function_maps(self, frequency: DomainFrequency, setting: tuple[Any, ...]) -> list[Maps]:
        maps = self._function_maps(frequency.scale(self._columns), setting, self.exact)
        return [tuple(part.to(self.like) for part in kind_maps) for kind_maps in maps]

    def _start(self, counts: list[int]) -> None:
        """Make the weights, given their number in a field of each kind."""
        self._sizes = [kind.fields * count for kind, count in zip(self.kinds, counts, strict=True)]
        self.weights = nn.Parameter(torch.zeros(self._lists * sum(self._sizes)))

    def by_kind(self) -> list[Tensor]:
        """Return the weights of each kind of fields, (fields, number); of several lists (lists, fields, number)."""
        weights = self.weights if self._lists == 1 else self.weights.view(self._lists, -1)
        parts = [*weights.split(self._sizes, -1)] if len(self._sizes) > 1 else [weights]
        for number, kind in enumerate(self.kinds):
            parts[number] = parts[number].unflatten(-1, (kind.fields, -1))
        return parts

    def soft_representations(self) -> list[Representation]:
        """Return the representations whose fields have weights; elsewhere f is 0."""
        return [kind for kind, size in zip(self._representations, self._sizes, strict=True) if size]

    def channels(self, parts: Sequence[Tensor]) -> Tensor:
        """Return (…, C, columns) in the order of the channels, given (…, fields, rows, columns) of each kind."""
        rows = []
        for part, kind in zip(parts, self.kinds, strict=True):
            rows.append(part.expand(*part.shape[:-2], kind.size, part.shape[-1]).flatten(-3, -2))
        return rows[0] if len(rows) == 1 else torch.cat(rows, -2).index_select(-2, self.order)


class _Side(NamedTuple):
    """A function of the taps, mean_g h(g) ⟨g e, d/|d|⟩ⁿ: the number of h, that of the axis e, and n."""

    function: int
    axis: int
    degree: int


class ElementModulation(Modulation):
    r"""f of each output channel and tap, with a mean of 0 over the group.

    .. math::
        f(c, d) = \sum_j \alpha_j \operatorname{mean}_{g \in c} h_j(\omega' \odot a(g))
            + \sum_{jk} \mu_{jk} \operatorname{mean}_g h_j(\omega' \odot a(g))\, \langle g e_k, d/|d| \rangle^{n_j}

    c is an output channel, which in a regular or quotient field belongs to an element or a coset, and elsewhere to all
    of the group. The functions h are tanh(2π ω′ a) of each coordinate of the group, squares of those of rotations of
    space, and products of rotation and reflection, less their means over the group. tanh has the slope of a sine at 0
    and grows with ω′, where a sine would vanish on all elements of C4 at ω′ = 0.5. A function is left out if it is a
    sum of others at all elements. The weights of a field are its α, then its μ.
    """

    elements: Tensor
    side_functions: Tensor
    along: Tensor
    centre: dict[tuple[str, ...], Tensor]
    functions: dict[int, Tensor]
    rows: dict[int, Tensor]

    def __init__(
        self, fields: Sequence[Representation], domain: Domain, subgroups: Sequence[str], taps: Array, lists: int = 1
    ) -> None:
        sample = domain.sample
        super().__init__(fields, sample, lists)
        self._known = domain.fiber_subgroups
        self._columns = tuple(name for name in domain.columns(subgroups) if name in self._known)
        self._rotations = self._columns.count("rotation")
        self.set_constant("elements", 2 * math.pi * domain.elements([*dict.fromkeys(self._columns)]))
        whole = np.full((len(sample),) * 2, 1 / len(sample))
        self.set_constant("centre", {names: (domain.mean_matrix(names) - whole).T for names in domain.averages})
        reference = torch.tensor([DEFAULT_FREQUENCY], dtype=torch.float64)
        values = self._functions(reference, (), self.exact).numpy()
        sides = _independent_sides(values, sample.action, taps)
        self._side_functions = [side.function for side in sides]
        self.degrees = tuple(sorted({side.degree for side in sides}))
        self.set_constant("side_functions", np.array(self._side_functions, dtype=np.int64))
        # ⟨g e, d/|d|⟩ⁿ / M of each side, (M, T).
        powers = [(sample.action[:, :, axis] @ directions(taps)) ** degree / len(sample) for _, axis, degree in sides]
        along = [_scaled(values[side.function], power) for side, power in zip(sides, powers, strict=True)]
        self.set_constant("along", np.reshape(along, (-1, len(sample), len(taps))))
        # Those that f tells apart.
        self._taps = len(taps) if sides else 1
        self._kind_functions = [independent(values @ kind.elements.T) for kind in self.kinds]
        functions, rows = {}, {}
        for number, (kind, kind_functions) in enumerate(zip(self.kinds, self._kind_functions, strict=True)):
            functions[number] = np.array(kind_functions, dtype=np.int64)
            scaled = [_scaled(values[function], kind.elements.T) for function in kind_functions]
            rows[number] = np.reshape(scaled, (-1, *kind.elements.T.shape))
        self.set_constant("functions", functions)
        self.set_constant("rows", rows)
        self._start([len(kind_functions) + len(sides) for kind_functions in self._kind_functions])

    def _weighted_sums(self, maps: Sequence[Maps], weights: Sequence[Tensor]) -> list[Tensor]:
        parts = []
        for kind_weights, (kind_maps,) in zip(weights, maps, strict=True):
            parts.append((kind_weights @ kind_maps).unflatten(-1, (-1, self._taps)))
        return parts

    def moved(self, frequency: DomainFrequency, averaged: Sequence[str], numbers: NDArray[np.int64]) -> Tensor:
        """Return f as an element h moves it, f(h⁻¹c, h⁻¹d), given the number of h⁻¹g for each g of the sample."""
        # With g for h⁻¹g in each mean, ⟨g e, h⁻¹d⟩ becomes ⟨g e, d⟩, and the functions are those at h⁻¹g.
        values = self._functions(frequency.scale(self._columns, self.like), averaged, self)
        maps = self._maps_of(values[:, torch.from_numpy(numbers).to(values.device)], self)
        return self.channels(self._weighted_sums(maps, self.by_kind()))

    def _function_maps(self, scale: Tensor, setting: tuple[Any, ...], constants: Any) -> list[Maps]:
        return self._maps_of(self._functions(scale, setting, constants), constants)

    def _maps_of(self, values: Tensor, constants: Any) -> list[Maps]:
        """Return the maps of each kind of fields, given the functions h at the elements, (J, M)."""
        sides = (values.index_select(0, constants.side_functions).unsqueeze(1) @ constants.along).squeeze(1)
        maps: list[Maps] = []
        for number, kind in enumerate(self.kinds):
            kind_functions = values.index_select(0, constants.functions[number])
            rows = (kind_functions.unsqueeze(1) @ constants.rows[number]).squeeze(1).unsqueeze(-1)
            if self._side_functions:
                of_sides = sides.unsqueeze(1).expand(-1, len(kind.elements), -1)
                rows = torch.cat([rows.expand(-1, -1, sides.shape[1]), of_sides])
            maps.append((rows.flatten(1),))
        return maps

    def _functions(self, scale: Tensor, averaged: Sequence[str], constants: Any) -> Tensor:
        """Return the functions h of each element, (J, M), averaged over some subgroups, less their means."""
        first = (constants.elements * scale).tanh().mT
        functions = [first]
        if self._rotations > 2:  # a rotation of the plane has two coordinates
            functions.append(first[: self._rotations].square())
        if 0 < self._rotations < len(first):
            functions.append((first[: self._rotations, None] * first[self._rotations :]).flatten(0, 1))
        values = torch.cat(functions) if len(functions) > 1 else first
        return values @ constants.centre[of_fiber_group(averaged, self._known)]

    def tap_functions(self) -> Tensor:
        """Return an orthonormal basis of the functions of the taps that f is composed of, (n, T), or (1, 1)."""
        # 1 for the weights of group elements, and those that sides are made of whatever ω′ is.
        along = self.exact.along
        if not len(along):
            return torch.ones(1, 1)
        functions = torch.cat([torch.ones_like(along[0, :1]), along.flatten(0, 1)])
        _, sizes, basis = torch.linalg.svd(functions, full_matrices=False)
        return basis[sizes > _SAME * sizes[0]]

    def weight_subgroups(self) -> list[tuple[str, ...]]:
        """Return the subgroups that each weight belongs to."""
        # Those that each function h depends on, in the order of ``_functions``.
        known: list[tuple[str, ...]] = [(name,) for name in self._columns]
        known += [("rotation",)] * (self._rotations if self._rotations > 2 else 0)
        known += [FIBER_SUBGROUPS] * (self._rotations * self._columns.count("reflection"))
        return self._lists * [
            known[function]
            for kind, functions in zip(self.kinds, self._kind_functions, strict=True)
            for _ in range(kind.fields)
            for function in (*functions, *self._side_functions)
        ]


class InputModulation(ElementModulation):
    """f of pairs of an output channel, of the given fields, and an input channel: functions of its elements."""

    lists: Tensor

    def __init__(
        self,
        in_fields: Sequence[Representation],
        domain: Domain,
        subgroups: Sequence[str],
        out_fields: Sequence[Representation],
        numbers: Sequence[int],
    ) -> None:
        super().__init__(in_fields, domain, subgroups, np.zeros((1, domain.dimension)), len(numbers))
        # The list of weights of each output channel; those without take the last one, of zeros.
        lists = [numbers.index(number) if number in numbers else len(numbers) for number in range(len(out_fields))]
        sizes = [field.size for field in out_fields]
        self.set_constant("lists", np.repeat(lists, sizes).astype(np.int64))
        self._is_plain = lists == list(range(len(out_fields))) and set(sizes) == {1}

    def channels(self, parts: Sequence[Tensor]) -> Tensor:
        """Return f, (C_out, C_in, 1)."""
        f = super().channels(parts)
        f = f if f.dim() == 3 else f.unsqueeze(0)
        if self._is_plain:
            return f
        return torch.cat([f, f.new_zeros(1, *f.shape[1:])]).index_select(0, self.lists)


def _scaled(function: Array, part: Array) -> Array:
    """Return a map of the values of a function (M,) to columns, (M, columns), that makes SCALE of a weight of 1."""
    return part * (SCALE / np.sqrt(np.square(function @ part).mean()))


def independent(values: Array) -> list[int]:
    """Return the numbers of the functions that are not sums of those before them, given their values (J, …)."""
    functions = torch.from_numpy(values.reshape(len(values), math.prod(values.shape[1:])))
    kept: list[int] = []
    basis = functions[:0]
    sizes = functions.square().mean(1).sqrt()
    for number in torch.nonzero(sizes > _NOTHING).flatten().tolist():
        function = functions[number] / functions[number].norm()
        residual = function - function @ basis.mT @ basis
        residual_norm = residual.norm()
        if residual_norm > _LEAST:
            kept.append(number)
            basis = torch.cat([basis, (residual / residual_norm)[None]])
    return kept


def _independent_sides(values: Array, action: Array, taps: Array) -> list[_Side]:
    """Return the sides that do not depend on each other, given h (J, M) and the elements (M, d, d)."""
    # n is the least power whose mean is not 0.
    sides: list[_Side] = []
    functions: list[Array] = []
    along = np.einsum("mij,it->jmt", action, directions(taps))
    for number, function in enumerate(values):
        for degree in range(1, 1 + _DEGREES):
            means = function @ along**degree / len(action)
            sides += [_Side(number, axis, degree) for axis in range(len(along))]
            functions.append(means)
            if np.abs(means).max() > _SAME:
                break
    return [sides[number] for number in independent(np.concatenate(functions))] if functions else []


def directions(taps: Array) -> Array:
    """Return d/|d| of the taps (T, d), 0 at the centre, (d, T)."""
    length = np.linalg.norm(taps, axis=-1, keepdims=True)
    return np.divide(taps, length, out=np.zeros_like(taps), where=length > 0).T
