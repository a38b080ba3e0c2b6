"""κ of each form of a layer as the loop oracle takes it, from the formulas of docs/concepts/mathematics.md alone.

Of a tied layer it takes ω′, its strict kernel and its soft weights; of a continuous one ω′, its kernel net as a
function of two points, and the output weights of each pair of fields.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from escnn.group import Representation
from layers import ROUGH
from reference import Layer, Oracle, cells_of, kernel_types, matrix_of, taps_of
from reference_group import Elements, Point, permutation
from torch import Tensor

SUBGROUPS = ("translation", "rotation", "reflection")
# ω′ and root mean square of a modulation for which a weight counts 1; parts of functions that are not sums of others.
REFERENCE, UNIT = 0.25, 0.2
LEAST, NOTHING = 0.1, 1e-3


class Function(NamedTuple):
    """The functions of a weight: of the elements of a channel, or of taps along an axis to a power."""

    number: int
    axis: int | None = None
    degree: int = 1


class TiedKappa:
    """κ = (1 + m) K_strict of a layer that was built with ω′ at the reference.

    m(d; a) = Σ α h(a) E + Σ μ h(a) ⟨e_k, d/|d|⟩ⁿ, and K_strict(g⁻¹d) = ρ_out(g)⁻¹ K_strict(d) ρ_in(g) is steerable.
    """

    def __init__(self, layer: Layer, elements: Elements) -> None:
        self.layer, self.elements = layer, elements
        self.types = kernel_types(layer)
        self.strict = layer.basisexpansion(layer.weights)
        self.taps = taps_of(layer)
        self.cells = cells_of(layer)
        self._known: dict[object, Tensor] = {}
        self.fields = list(self.types[1].representations)
        self.weights = self._weights()

    def __call__(self, number: int, tap: Point, position: Point) -> Tensor:
        element = self.elements.elements[number]
        rho_out, rho_in = (matrix_of(self.types[1], ~element), matrix_of(self.types[0], element))
        strict = rho_out @ self.strict[..., self.taps.index(tap)] @ rho_in
        h, own, length = self._values(number, position), self.elements.own(number, tap), math.hypot(*tap)
        rows = []
        for field, weights in zip(self.fields, self.weights, strict=True):
            row, of_identity = torch.ones(field.size, dtype=torch.float64), self._of_identity(field)
            for function, weight in weights.items():
                if function.axis is None:
                    row = row + weight * h[function.number] * of_identity
                elif length:
                    row = row + weight * h[function.number] * (own[function.axis] / length) ** function.degree
            rows.append(row)
        return torch.cat(rows).unsqueeze(1) * strict

    def _of_identity(self, field: Representation) -> Tensor:
        """The diagonal of E: 1, and in a field of elements or cosets their number at that of the identity."""
        diagonal = torch.ones(field.size, dtype=torch.float64)
        if permutation(field, self.elements.elements) is not None:
            diagonal[1:], diagonal[0] = 0, field.size
        return diagonal

    def _weights(self) -> list[dict[Function, Tensor]]:
        """For each output field its functions, each with its weight in its unit."""
        fixed = {id(value) for value in self.layer.domain_frequency.values()}
        vectors = [value for value in self.layer.soft_parameters() if id(value) not in fixed]
        if not vectors:
            return [{} for _ in self.fields]
        (vector,) = vectors
        reference = {name: torch.full_like(value, REFERENCE) for name, value in self.layer.domain_frequency.items()}
        numbers = range(len(self.elements.elements))
        with torch.no_grad():
            # (positions, functions, elements)
            values = torch.stack([torch.stack([self._values(n, x, reference) for n in numbers], 1) for x in self.cells])
        kinds = list(dict.fromkeys(self.fields))
        places = [number for kind in kinds for number, field in enumerate(self.fields) if field == kind]
        of_elements = {kind: self._of_elements(values, kind) for kind in kinds}
        of_taps = self._of_taps(values)
        found: list[dict[Function, Tensor]] = [{} for _ in self.fields]
        remaining = iter(vector)
        for functions in (lambda place: of_elements[self.fields[place]], lambda place: of_taps):
            for place in places:
                found[place].update({of: unit * next(remaining) for of, unit in functions(place).items()})
        assert next(remaining, None) is None, "weights that no function has"
        return found

    def _of_elements(self, values: Tensor, field: Representation) -> dict[Function, float]:
        """Functions of the channels of a field that do not depend on each other, with their units."""
        images = permutation(field, self.elements.elements)
        channels = torch.tensor([0] * values.shape[2] if images is None else images)
        means = [values[..., channels == channel].mean(-1) for channel in range(1 + max(channels.tolist()))]
        # The channels of other fields all belong to the whole group.
        table = torch.stack(means, -1)
        return independent({Function(number): table[:, number] for number in range(values.shape[1])})

    def _of_taps(self, values: Tensor) -> dict[Function, float]:
        """Functions of the taps: of elements alone the least power that has a mean, else the first."""
        lengths = torch.tensor([math.hypot(*tap) or 1.0 for tap in self.taps], dtype=torch.float64)
        directions = torch.tensor(self.taps, dtype=torch.float64) / lengths[:, None]
        actions = torch.from_numpy(np.stack(self.elements.actions))
        along = torch.einsum("mdk,td->kmt", actions, directions)
        candidates: dict[Function, Tensor] = {}
        for number in range(values.shape[1]):
            of_elements = bool((values[:, number] - values[:1, number]).abs().max() < 1e-9)
            for degree in range(1, 5 if of_elements else 2):
                means = torch.einsum("pm,kmt->kpt", values[:, number], along**degree) / len(actions)
                candidates |= {Function(number, axis, degree): of for axis, of in enumerate(means)}
                if means.abs().max() > 1e-9:
                    break
        return independent(candidates)

    def _values(self, number: int, position: Point, frequency: Mapping[str, Tensor] | None = None) -> Tensor:
        """Every h(g, x): the mean over the kept group, less the mean over the domain."""
        is_own, frequency = frequency is None, frequency or self.layer.domain_frequency
        key = is_own, number, position
        if key not in self._known:
            own, action = self.elements.own(number, position), self.elements.actions[number]
            kept = [self._functions(h @ action, own, frequency) for h in self.elements.kept]
            self._known[key] = torch.stack(kept).mean(dim=0) - self._mean(is_own, frequency)
        return self._known[key]

    def _mean(self, is_own: bool, frequency: Mapping[str, Tensor]) -> Tensor:
        """Every h as a mean over all elements, and over all positions as all elements see them."""
        if is_own not in self._known:
            count = len(self.elements.actions)
            seen = [self.elements.own(number, cell) for number in range(count) for cell in self.cells]
            # Elements on the grid see the same few positions in another order, which are evaluated once.
            same = [tuple(round(value, 9) + 0.0 for value in point) for point in seen]
            times, points = Counter(same), dict(zip(same, seen, strict=True))
            self._known[is_own] = sum(
                times[key] * self._functions(action, points[key], frequency)
                for action, key in itertools.product(self.elements.actions, times)
            ) / (count * len(seen))
        return self._known[is_own]

    def _functions(self, action: np.ndarray, own: Point, frequency: Mapping[str, Tensor]) -> Tensor:
        """0, tanh(2π ω′ a) of all coordinates, squares of positions and of rotations of space, and products."""
        coordinates = {"translation": own, **self.elements.coordinates(action)}
        of: dict[str, list[Tensor]] = {name: [] for name in SUBGROUPS}
        for name, values in frequency.items():
            of[name] = [(2 * math.pi * values[n % len(values)] * a).tanh() for n, a in enumerate(coordinates[name])]
        first = [value for name in SUBGROUPS for value in of[name]]
        squared = [*of["translation"], *(of["rotation"] if len(of["rotation"]) > 2 else [])]
        products = [a * b for a, b in itertools.product(of["rotation"], of["reflection"])]
        return torch.stack([torch.zeros((), dtype=torch.float64), *first, *(value**2 for value in squared), *products])


def independent(functions: Mapping[Function, Tensor]) -> dict[Function, float]:
    """Those that are no sums of the ones before them, with the factors that give them the root mean square of units."""
    kept: dict[Function, float] = {}
    basis: list[Tensor] = []
    for function, values in functions.items():
        size = float(values.square().mean().sqrt())
        if size > NOTHING:
            rest = values.flatten() / values.norm()
            rest = rest - sum((other * (other @ rest) for other in basis), torch.zeros_like(rest))
            if rest.norm() > LEAST:
                kept[function] = UNIT / size
                basis.append(rest / rest.norm())
    return kept


class Block(NamedTuple):
    """A permutation field, or one irrep of any other field: its kind, its number among these, its place in a field."""

    kind: object
    number: int
    rows: range


class ContinuousKappa:
    """κ = Σ w φ of the paper's form.

    Args:
        layer: gives its numbers.
        elements: those over which the mean is taken.
        filter_frequency: ω.
        support: the window.
    """

    def __init__(
        self,
        layer: Layer,
        elements: Elements,
        filter_frequency: Mapping[str, float] = ROUGH,
        support: str = "smooth",
    ) -> None:
        self.layer, self.elements, self.support = layer, elements, support
        self.filter_frequency = filter_frequency
        self.fields = [list(of.representations) for of in kernel_types(layer)]
        self.blocks = [_blocks(fields, elements) for fields in self.fields]
        self.kinds = [list(dict.fromkeys(block.kind for of in blocks for block in of)) for blocks in self.blocks]
        is_permutation = [[self._images(field) is not None for field in fields] for fields in self.fields]
        self.sees_relative = all(map(any, is_permutation))
        # The only places where the oracle looks into a layer.
        self.net = layer.kernel.net
        self.pairs = [(pair.weights, pair.units) for pair in layer.kernel.steered_average.block_pairs]

    def __call__(self, number: int, tap: Point, position: Point) -> Tensor:
        @functools.cache
        def hidden(relative: int | None) -> Tensor:
            return self._hidden(number, tap, position, relative)

        rows = []
        for out_field, out_blocks in zip(self.fields[1], self.blocks[1], strict=True):
            row = []
            for in_field, in_blocks in zip(self.fields[0], self.blocks[0], strict=True):
                kappa = torch.zeros(out_field.size, in_field.size, dtype=torch.float64)
                images = self._images(out_field)
                if images is not None and self._images(in_field) is not None:
                    # κ is in the column of the identity: k(g⁻¹d, q; a) for all q of a row's coset.
                    weights = self._weights(out_blocks[0], in_blocks[0])
                    for q, channel in enumerate(images):
                        place = _place(kappa, channel, 0) * in_field.size / images.count(channel)
                        kappa = kappa + place * (weights @ hidden(q))
                else:
                    for out_block, in_block in itertools.product(out_blocks, in_blocks):
                        kappa = kappa + self._general(kappa, out_block, in_block, images is not None, hidden(None))
                    kappa = self._basis(out_field, "change_of_basis") @ kappa
                    kappa = kappa @ self._basis(in_field, "change_of_basis_inv")
                row.append(kappa)
            rows.append(torch.cat(row, dim=1))
        return torch.cat(rows)

    def _general(self, like: Tensor, out_block: Block, in_block: Block, of_one_row: bool, hidden: Tensor) -> Tensor:
        """κ between two blocks; it has weights in one row of a permutation, else in one column."""
        rows = [out_block.rows[0]] if of_one_row else out_block.rows
        columns = in_block.rows if of_one_row else [in_block.rows[0]]
        weights = self._weights(out_block, in_block).view(len(rows) * len(columns), -1)
        entries = zip(weights, itertools.product(rows, columns), strict=True)
        return sum(_place(like, *place) * (weight @ hidden) for weight, place in entries)

    def _images(self, field: Representation) -> list[int] | None:
        return permutation(field, self.elements.elements)

    def _basis(self, field: Representation, which: str) -> Tensor:
        if self._images(field) is not None:
            return torch.eye(field.size, dtype=torch.float64)
        return torch.from_numpy(np.array(getattr(field, which), dtype=np.float64))

    def _weights(self, out_block: Block, in_block: Block) -> Tensor:
        """Output weights of a pair of blocks on the plain hidden values."""
        number = self.kinds[1].index(out_block.kind) * len(self.kinds[0]) + self.kinds[0].index(in_block.kind)
        weights, units = self.pairs[number]
        return weights[out_block.number, in_block.number] @ units

    def _hidden(self, number: int, tap: Point, position: Point, relative: int | None) -> Tensor:
        """φ and a constant at g⁻¹d, the relative element and a(g, x), within the window."""
        elements, layer = self.elements, self.layer
        radius = layer.dilation * layer.kernel_size / 2
        point = [value / radius * self.filter_frequency["position"] for value in elements.own(number, tap)]
        if self.sees_relative:
            action = np.eye(len(tap)) if relative is None else elements.actions[relative]
            proper = [of for of in elements.actions if np.linalg.det(of) > 0]
            has = {"rotation": len(proper) > 1, "reflection": len(proper) < len(elements.actions)}
            for name, values in elements.coordinates(action).items():
                point += [value * self.filter_frequency[name] for value in values] if has[name] else []
        seen = {"translation": elements.own(number, position), **elements.coordinates(elements.actions[number])}
        frequency = layer.domain_frequency
        domain = [torch.tensor(seen[name], dtype=torch.float64) * frequency[name] for name in frequency]
        domain_point = torch.cat([torch.zeros(0, dtype=torch.float64), *domain])
        hidden = self.net(torch.tensor(point, dtype=torch.float64), domain_point)
        window = window_weight(tap, layer.kernel_size, layer.dilation, self.support)
        return torch.cat([hidden, hidden.new_ones(1)]) * window


def _place(like: Tensor, row: int, column: int) -> Tensor:
    place = torch.zeros_like(like)
    place[row, column] = 1
    return place


def _blocks(fields: list[Representation], elements: Elements) -> list[list[Block]]:
    """The blocks of each field; kinds are counted in the order in which they occur."""
    counts: Counter[object] = Counter()
    found = []
    for field in fields:
        images = permutation(field, elements.elements)
        irreps = [field.group.irrep(*of) for of in field.irreps]
        parts = [(of.id, of.size) for of in irreps] if images is None else [(tuple(images), field.size)]
        blocks, start = [], 0
        for kind, size in parts:
            blocks.append(Block((images is None, kind), counts[images is None, kind], range(start, start + size)))
            counts[images is None, kind] += 1
            start += size
        found.append(blocks)
    return found


def window_weight(tap: Point, kernel_size: int, dilation: int, support: str) -> float:
    """1 in the disk, falling as cos² over its outer tap; the hard disk has a radius of ⌊k/2⌋ taps."""
    distance = math.hypot(*tap) / dilation
    if support == "disk":
        return 1.0 if distance <= kernel_size // 2 + 1e-9 else 0.0
    inside = kernel_size / 2 - 1
    return math.cos(math.pi / 2 * min(max(distance - inside, 0), 1)) ** 2


def tied_oracle(layer: Layer, samples: int = 16, **elements: object) -> Oracle:
    """The loops of a tied layer."""
    sample = Elements(layer.in_type.gspace, samples, **elements)
    return Oracle(layer, TiedKappa(layer, sample), sample)
