"""The modulation of a tied kernel by plain loops, from the formula in ``TiedKernel`` alone.

    f(c, d; x) = Σ α mean_{g ∈ c} h(g, x) + Σ μ mean_g h(g, x) ⟨g e_k, d/|d|⟩ⁿ

It takes escnn's elements and matrices. Of the layer it takes its numbers: weights, units, ω′ and which functions of
each kind of fields have weights.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import torch
from escnn.group import GroupElement
from escnn.gspaces import GSpace2D
from reference_coordinates import Point, angle_and_flip, inverse_action
from reference_fields import Field, Fields, coset
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv


class Modulation:
    """F of a layer.

    Args:
        layer: gives its numbers.
        elements: the sampled elements of the group.
        cells: centres of the cells over which, and over the group, functions have no mean.
        keep: the kept group by its name.
    """

    def __init__(
        self, layer: RelaxedR2Conv, elements: list[GroupElement], cells: list[Point], keep: str | None
    ) -> None:
        self.layer = layer
        self.space: GSpace2D = layer.in_type.gspace
        self.elements = elements
        self.cells = cells
        self.rotations, self.has_flip = (1, False) if keep is None else (int(keep[1:]), keep[0] == "D")
        self.known: dict[object, Tensor] = {}
        self._cosets: dict[object, list[int]] = {}

    def __call__(self, outputs: Fields, tap: Point, position: Point) -> Tensor:
        """f of each output channel at a tap, (C_out,); 0 where nothing can be soft."""
        if self.layer.bank is None:
            return torch.zeros(sum(field_size(field) for field in outputs.fields), dtype=torch.float64)
        kinds = list(dict.fromkeys(field.representation for field in outputs.fields))
        places = {kind: self._weights(kinds, outputs, number) for number, kind in enumerate(kinds)}
        rows = []
        for field in outputs.fields:
            weights = next(places[field.representation])
            rows += [self._of_channel(weights, field, channel, tap, position) for channel in range(field_size(field))]
        return torch.stack(rows)

    def _weights(self, kinds: list[object], outputs: Fields, number: int) -> Iterator[list[tuple[object, Tensor]]]:
        """Yield for each field of a kind its functions, each with its weight in its unit."""
        bank = self.layer.bank
        counts = [sum(field.representation == kind for field in outputs.fields) for kind in kinds]
        functions, sides = [kind.functions for kind in bank.maps.kinds], bank.maps.sides
        start = sum(count * len(of) for count, of in zip(counts[:number], functions, strict=False))
        first_unit = sum(map(len, functions[:number]))
        # The weights of directions follow those of elements, field after field of all kinds.
        start_of_sides = sum(count * len(of) for count, of in zip(counts, functions, strict=True))
        units_of_sides = sum(map(len, functions))
        for field in range(counts[number]):
            chosen = functions[number]
            first = start + field * len(chosen)
            side = start_of_sides + (sum(counts[:number]) + field) * len(sides)
            yield [
                *((of, bank.weights[first + n] * bank.units[first_unit + n]) for n, of in enumerate(chosen)),
                *((of, bank.weights[side + n] * bank.units[units_of_sides + n]) for n, of in enumerate(sides)),
            ]

    def _of_channel(
        self, weights: list[tuple[object, Tensor]], field: Field, channel: int, tap: Point, position: Point
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        length = math.hypot(*tap)
        for function, weight in weights:
            if isinstance(function, int):
                total = total + weight * self._of_coset(function, field, channel, position)
            elif length:
                total = total + weight * self._of_tap(*function, tap, position)
        return total

    def _of_coset(self, function: int, field: Field, channel: int, position: Point) -> Tensor:
        """mean_{g ∈ c} h(g, x); a channel of another field than a permutation belongs to all elements."""
        members = self._members(field, channel)
        return sum(self._values(g, position)[function] for g in members) / len(members)

    def _members(self, field: Field, channel: int) -> list[GroupElement]:
        """The elements of a channel."""
        if not field.is_permutation:
            return self.elements
        if field.representation not in self._cosets:
            self._cosets[field.representation] = [coset(field.representation, g) for g in self.elements]
        cosets = self._cosets[field.representation]
        return [g for g, of in zip(self.elements, cosets, strict=True) if of == channel]

    def _of_tap(self, function: int, axis: int, degree: int, tap: Point, position: Point) -> Tensor:
        """mean_g h(g, x) ⟨g e_k, d/|d|⟩ⁿ."""
        key = function, axis, degree, tap, position
        if key not in self.known:
            total = torch.zeros((), dtype=torch.float64)
            for g in self.elements:
                turned = self.space.basespace_action(g)[:, axis]
                along = sum(float(a) * b for a, b in zip(turned, tap, strict=True)) / math.hypot(*tap)
                total = total + self._values(g, position)[function] * along**degree
            self.known[key] = total / len(self.elements)
        return self.known[key]

    def _values(self, g: GroupElement, position: Point) -> Tensor:
        """Every h(g, x), the mean over the kept group, less the mean over the domain."""
        # escnn's elements are slow to compare: those of the list are known by their identity.
        if (id(g), position) not in self.known:
            own = inverse_action(self.space, g, position)
            translates = [self.functions(h @ g, own) for h in self._kept_elements()]
            self.known[id(g), position] = torch.stack(translates).mean(dim=0) - self._mean()
        return self.known[id(g), position]

    def _mean(self) -> Tensor:
        """Every h as a mean over all elements and over all positions as all elements see them."""
        if "mean" not in self.known:
            seen = [inverse_action(self.space, g, cell) for g in self.elements for cell in self.cells]
            # Elements on the grid see the same few positions in another order, which are evaluated once.
            same = [tuple(round(value, 9) + 0.0 for value in point) for point in seen]
            counts, which = Counter(same), dict(zip(same, seen, strict=True))
            total = sum(n * self.functions(g, which[own]) for g in self.elements for own, n in counts.items())
            self.known["mean"] = total / (len(self.elements) * len(seen))
        return self.known["mean"]

    def _kept_elements(self) -> list[GroupElement]:
        group = self.space.fibergroup
        found = [group.identity]
        for flip, turn in itertools.product(range(1 + self.has_flip), range(self.rotations)):
            if flip or turn:
                angle = 2 * math.pi * turn / self.rotations
                value = (flip, angle) if self.space.flips_order else angle
                found.append(group.element(value, param="radians"))
        return found

    def functions(self, g: GroupElement, own: Point) -> Tensor:
        """tanh(2π ω′ a) of each coordinate of g and g⁻¹x, squares of the position's, products of the other two's."""
        of = {name: [] for name in ("translation", "rotation", "reflection")}
        angle, flip = angle_and_flip(self.space, g)
        turned = angle * self.rotations
        coordinates = {"translation": own, "rotation": (math.cos(turned), math.sin(turned)), "reflection": (flip / 2,)}
        for name, frequency in self.layer.domain_frequency.items():
            values = coordinates[name]
            of[name] = [(2 * math.pi * frequency[n % len(frequency)] * value).tanh() for n, value in enumerate(values)]
        squares = [value**2 for value in of["translation"]]
        products = [a * b for a, b in itertools.product(of["rotation"], of["reflection"])]
        return torch.stack([*of["translation"], *of["rotation"], *of["reflection"], *squares, *products])


def field_size(field: Field) -> int:
    """Channels of a field."""
    size: int = field.representation.size
    return size
