"""κ of each form of a layer as the loop oracle takes it, from the formulas of docs/concepts/mathematics.md alone.

Of a tied layer it takes ω′, its strict kernel and its soft weights; of a continuous one ω′, its kernel net as a
function of two points, and the output weights of each pair of fields.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from escnn.group import Representation
from reference import Index, Layer, kernel_types, matrix_of, position_of, taps_of
from reference_group import Elements, Point, permutation
from small import ROUGH
from torch import Tensor

# ω′ and the side of an image for which a weight of 1 makes this root mean square of a modulation; parts of functions
# that are not sums of others.
REFERENCE, REFERENCE_SIDE, UNIT = 0.25, 8, 0.2
LEAST, NOTHING = 0.1, 1e-3


class Function(NamedTuple):
    """The functions of a weight: of the elements of a channel, or of taps along an axis to a power."""

    number: int
    axis: int | None = None
    degree: int = 1


class Modulation:
    """m(d; a) = Σ α h(a) E + Σ μ h(a) ⟨e_k, d/|d|⟩ⁿ for each row of κ, h being functions of elements or of positions.

    ``values`` are every h at the reference, (positions, functions, elements); ``taps`` offsets in pixels, without which
    there are no functions of taps; ``degrees`` the powers n that are tried until one has a mean.
    """

    def __init__(
        self,
        fields: Sequence[Representation],
        elements: Elements,
        values: Tensor,
        taps: Sequence[Point] = (),
        degrees: int = 1,
        has_sides: Callable[[Representation], bool] = lambda field: True,
    ) -> None:
        self.fields, self.elements = fields, elements
        of_taps = self._of_taps(values, taps, degrees) if taps else {}
        self.functions = {
            kind: self._of_elements(values, kind) | (of_taps if has_sides(kind) else {})
            for kind in dict.fromkeys(fields)
        }
        self.of_identity = {kind: self._of_identity(kind) for kind in self.functions}
        self.count = sum(len(self.functions[field]) for field in fields)

    def take(self, weights: Tensor) -> None:
        """Take the weights of a layer: for each kind of fields α and μ of each field."""
        assert len(weights) == self.count
        remaining = iter(weights)
        self.weights: list[dict[Function, Tensor]] = [{} for _ in self.fields]
        for kind, functions in self.functions.items():
            for number in [n for n, field in enumerate(self.fields) if field == kind]:
                self.weights[number] = {of: unit * next(remaining) for of, unit in functions.items()}

    def rows(self, number: int, tap: Point, h: Tensor) -> Tensor:
        """1 + m of the element of a number, (C_out, 1), given every h."""
        own, length, rows = self.elements.own(number, tap), math.hypot(*tap), []
        for field, weights in zip(self.fields, self.weights, strict=True):
            row, of_identity = torch.ones(field.size, dtype=torch.float64), self.of_identity[field]
            for function, weight in weights.items():
                if function.axis is None:
                    row = row + weight * h[function.number] * of_identity
                elif length:
                    row = row + weight * h[function.number] * (own[function.axis] / length) ** function.degree
            rows.append(row)
        return torch.cat(rows).unsqueeze(1)

    def _of_identity(self, field: Representation) -> Tensor:
        """The diagonal of E: 1, and in a field of elements or cosets their number at that of the identity."""
        diagonal = torch.ones(field.size, dtype=torch.float64)
        if permutation(field, self.elements.elements) is not None:
            diagonal[1:], diagonal[0] = 0, field.size
        return diagonal

    def _of_elements(self, values: Tensor, field: Representation) -> dict[Function, float]:
        """Functions of the channels of a field that do not depend on each other, with their units."""
        images = permutation(field, self.elements.elements)
        channels = torch.tensor([0] * values.shape[2] if images is None else images)
        means = [values[..., channels == channel].mean(-1) for channel in range(1 + max(channels.tolist()))]
        # The channels of other fields all belong to the whole group.
        table = torch.stack(means, -1)
        return independent({Function(number): table[:, number] for number in range(values.shape[1])})

    def _of_taps(self, values: Tensor, taps: Sequence[Point], degrees: int) -> dict[Function, float]:
        """Functions of the taps: the least power that has a mean."""
        lengths = torch.tensor([math.hypot(*tap) or 1.0 for tap in taps], dtype=torch.float64)
        directions = torch.tensor(taps, dtype=torch.float64) / lengths[:, None]
        actions = torch.from_numpy(np.stack(self.elements.actions))
        along = torch.einsum("mdk,td->kmt", actions, directions)
        candidates: dict[Function, Tensor] = {}
        for number in range(values.shape[1]):
            for degree in range(1, 1 + degrees):
                means = torch.einsum("pm,kmt->kpt", values[:, number], along**degree) / len(actions)
                candidates |= {Function(number, axis, degree): of for axis, of in enumerate(means)}
                if means.abs().max() > 1e-9:
                    break
        return independent(candidates)


class TiedKappa:
    """κ = (1 + m_T) (1 + m_G) K_strict of a layer that was built with ω′ at the reference.

    Rows of fields in which m_G has no weights take it of the columns, by the elements of the input's channels.
    K_strict(g⁻¹d) = ρ_out(g)⁻¹ K_strict(d) ρ_in(g) is steerable. The mean over the group of (1 + m_G) K_strict is put
    in its place before m_T comes.
    """

    def __init__(self, layer: Layer, elements: Elements, all_directions: bool = False) -> None:
        self.layer, self.elements = layer, elements
        self.types = kernel_types(layer)
        # Of g and g⁻¹ between the types, once for each element, since escnn is slow to find what it knows of one.
        self.matrices = [
            [(matrix_of(self.types[1], h), matrix_of(self.types[0], ~h)) for h in (g, ~g)] for g in elements.elements
        ]
        self.strict = layer.basisexpansion(layer.weights).flatten(2)
        self.taps = taps_of(layer)
        self._known: dict[object, Any] = {}
        # The oracle is in float64 whatever the default is.
        self.frequency = frequency = layer.domain_frequency
        learned = {id(value) for value in frequency.values()}
        vectors = [value for value in layer.soft_parameters() if id(value) not in learned]
        reference = {name: torch.full_like(value, REFERENCE, dtype=torch.float64) for name, value in frequency.items()}
        fields, numbers = self.types[1].representations, range(len(elements.elements))
        self.by_position = self.by_element = None
        self.by_input: dict[int, Modulation] = {}
        if "translation" in frequency:
            side = (REFERENCE_SIDE,) * len(self.taps[0])
            pixels = itertools.product(*map(range, side))
            values = [torch.stack([self._of_position(n, x, side, reference) for n in numbers], 1) for x in pixels]

            def has_sides(field: Representation) -> bool:
                has_own = len(numbers) == 1 or permutation(field, elements.elements) is not None
                return all_directions or not has_own

            self.by_position = Modulation(fields, elements, torch.stack(values), self.taps, 1, has_sides)
            self.by_position.take(vectors.pop(0))
        self._take_of_elements(vectors, reference)

    def _take_of_elements(self, vectors: list[Tensor], reference: dict[str, Tensor]) -> None:
        """Take the weights of m_G, of rows and of columns, which are all that is left of the layer's."""
        fields, elements = self.types[1].representations, self.elements
        if vectors:
            numbers = range(len(elements.elements))
            values = torch.stack([self._of_element(n, reference) for n in numbers], 1)[None]
            self.by_element = Modulation(fields, elements, values, self.taps, 4)
            self.by_element.take(vectors.pop(0) if self.by_element.count else torch.zeros(0))
        if vectors:
            rigid = [number for number, field in enumerate(fields) if not self.by_element.functions[field]]
            for number, weights in zip(rigid, vectors.pop(0).view(len(rigid), -1), strict=True):
                self.by_input[number] = Modulation(self.types[0].representations, elements, values)
                self.by_input[number].take(weights)
        assert not vectors, "weights that no function has"

    def __call__(self, number: int, tap: Point, pixel: Index, size: Index) -> Tensor:
        if self.by_position is None:
            return self._without_position(number, tap)
        h = self._of_position(number, pixel, size, self.frequency)
        return self.by_position.rows(number, tap, h) * self._steered(number, self._bank(tap))

    def _without_position(self, number: int, tap: Point) -> Tensor:
        """(1 + m_G) K_strict."""
        strict = self._steered(number, self.strict[..., self.taps.index(tap)])
        if self.by_element is None:
            return strict
        if number not in self._known:
            self._known[number] = self._of_element(number, self.frequency)
        h = self._known[number]
        parts = list((self.by_element.rows(number, tap, h) * strict).split([of.size for of in self.by_element.fields]))
        for field, columns in self.by_input.items():
            parts[field] = parts[field] * columns.rows(number, tap, h).mT
        return torch.cat(parts)

    def _bank(self, tap: Point) -> Tensor:
        """The mean over the group of (1 + m_G) K_strict."""
        if ("bank", tap) not in self._known:
            terms = [
                left @ self._without_position(number, tap) @ right
                for number, ((left, right), _) in enumerate(self.matrices)
            ]
            self._known["bank", tap] = torch.stack(terms).mean(0)
        return self._known["bank", tap]

    def _steered(self, number: int, bank: Tensor) -> Tensor:
        left, right = self.matrices[number][1]
        return left @ bank @ right

    def _of_position(self, number: int, pixel: Index, size: Index, frequency: Mapping[str, Tensor]) -> Tensor:
        """tanh(2π ω′ a) of each coordinate of g⁻¹x and its square, less their means over the pixels of the image."""
        key = number, size, frequency is self.frequency
        if key not in self._known:
            pixels = list(itertools.product(*map(range, size)))
            values = self._at(number, [position_of(of, size) for of in pixels], frequency)
            self._known[key] = dict(zip(pixels, values - values.mean(0), strict=True))
        return self._known[key][pixel]

    def _at(self, number: int, positions: Sequence[Point], frequency: Mapping[str, Tensor]) -> Tensor:
        """The functions of g⁻¹x at positions x, (positions, functions)."""
        own = torch.from_numpy(np.array(positions) @ self.elements.actions[number])
        first = (2 * math.pi * frequency["translation"] * own).tanh()
        return torch.cat([first, first**2], dim=1)

    def _of_element(self, number: int, frequency: Mapping[str, Tensor]) -> Tensor:
        """Every h(g): the mean over the kept group, less the mean over all elements."""
        kept = [self._functions(h @ self.elements.actions[number], frequency) for h in self.elements.kept]
        key = "every", frequency is self.frequency
        if key not in self._known:
            every = [self._functions(action, frequency) for action in self.elements.actions]
            self._known[key] = torch.stack(every).mean(0)
        return torch.stack(kept).mean(0) - self._known[key]

    def _functions(self, action: np.ndarray, frequency: Mapping[str, Tensor]) -> Tensor:
        """tanh(2π ω′ a) of all coordinates, squares of those of rotations of space, and products."""
        of: dict[str, list[Tensor]] = {"rotation": [], "reflection": []}
        for name, coordinates in self.elements.coordinates(action).items():
            if name in frequency:
                of[name] = [(2 * math.pi * frequency[name][0] * a).tanh() for a in coordinates]
        squared = [value**2 for value in of["rotation"]] if len(of["rotation"]) > 2 else []
        products = [a * b for a, b in itertools.product(of["rotation"], of["reflection"])]
        return torch.stack([*of["rotation"], *of["reflection"], *squared, *products])


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
    """κ = Σ w φ of the paper's form, with the numbers of a layer."""

    def __init__(
        self, layer: Layer, elements: Elements, filter_frequency: Mapping[str, float] = ROUGH, support: str = "smooth"
    ) -> None:
        self.layer, self.elements, self.support = layer, elements, support
        self.filter_frequency = filter_frequency
        self.fields = [list(of.representations) for of in kernel_types(layer)]
        self.images = {field: permutation(field, elements.elements) for of in self.fields for field in set(of)}
        self.blocks = [_blocks(fields, elements) for fields in self.fields]
        self.kinds = [list(dict.fromkeys(block.kind for of in blocks for block in of)) for blocks in self.blocks]
        is_permutation = [[self.images[field] is not None for field in fields] for fields in self.fields]
        self.sees_relative = all(map(any, is_permutation))
        # The only places where the oracle looks into a layer.
        self.net = layer.kernel.net
        self.pairs = [(pair.weights, pair.units) for pair in layer.kernel.steered_average.block_pairs]

    def __call__(self, number: int, tap: Point, pixel: Index, size: Index) -> Tensor:
        @functools.cache
        def hidden(relative: int | None) -> Tensor:
            return self._hidden(number, tap, position_of(pixel, size), relative)

        rows = []
        for out_field, out_blocks in zip(self.fields[1], self.blocks[1], strict=True):
            row = []
            for in_field, in_blocks in zip(self.fields[0], self.blocks[0], strict=True):
                kappa = torch.zeros(out_field.size, in_field.size, dtype=torch.float64)
                images = self.images[out_field]
                if images is not None and self.images[in_field] is not None:
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

    def _basis(self, field: Representation, which: str) -> Tensor:
        if self.images[field] is not None:
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
