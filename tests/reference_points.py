"""The loop oracle of convolutions of clouds: loops over nodes, edges and group elements, with escnn's matrices.

    h(xᵢ) = mean over edges i ← j of K(xⱼ − xᵢ; xᵢ) f(xⱼ)
    K(d; x) = mean_g ρ_out(g) (1 + m_T(g⁻¹x)) ρ_out(g)⁻¹ · mean_g ρ_out(g) (1 + m_G(g, g⁻¹d)) K_strict(g⁻¹d) ρ_in(g)⁻¹

m_G and m_T are those of ``reference_kappas``, whose units are over the points that stand for the support of the kernel.
"""

import itertools
import math

import torch
from reference_group import Elements
from reference_kappas import REFERENCE, REFERENCE_SIDE, Modulation, TiedKappa, matrix_of
from torch import Tensor

from escnn_relaxed import RelaxedR2PointConv, RelaxedR3PointConv


class PointOracle(TiedKappa):
    """A layer in one state, built with ω′ at the reference."""

    def __init__(self, layer: RelaxedR2PointConv | RelaxedR3PointConv, elements: Elements) -> None:
        self.layer, self.elements, self.types = layer, elements, (layer.in_type, layer.out_type)
        self.matrices = [
            [(matrix_of(self.types[1], h), matrix_of(self.types[0], ~h)) for h in (g, ~g)] for g in elements.elements
        ]
        self._known: dict[object, Tensor] = {}
        self.frequency = frequency = layer.domain_frequency
        learned = {id(value) for value in frequency.values()}
        vectors = [value for value in layer.soft_parameters() if id(value) not in learned]
        reference = {name: torch.full_like(value, REFERENCE, dtype=torch.float64) for name, value in frequency.items()}
        fields, numbers = self.types[1].representations, range(len(elements.elements))
        self.by_position = self.by_element = None
        self.by_input: dict[int, Modulation] = {}
        # The only places where the oracle looks into a layer: points that stand for the support, and for the domain.
        self.taps = [tuple(point) for point in layer.kernel.config.taps.tolist()]
        if "translation" in frequency:
            self.places = layer.kernel.position_modulation.exact.places
            side = (REFERENCE_SIDE,) * layer.d
            pixels = itertools.product(*map(range, side))
            values = [torch.stack([self._of_position(n, x, side, reference) for n in numbers], 1) for x in pixels]
            self.by_position = Modulation(fields, elements, torch.stack(values))
            self.by_position.take(vectors.pop(0))
        self._take_of_elements(vectors, reference)

    def cloud(self, features: Tensor, coordinates: Tensor, edges: list[tuple[int, int]]) -> Tensor:
        """The output of the layer."""
        rows = []
        for node, place in enumerate(coordinates):
            messages = [
                self.kernel(coordinates[source] - place) @ features[source]
                for source, target in edges
                if target == node
            ]
            mean = sum(messages) / len(messages) if messages else features.new_zeros(self.layer.out_type.size)
            rows.append(self.factor(place) @ mean)
        output, bias = torch.stack(rows), self.layer.expanded_bias
        return output if bias is None else output + bias

    def kernel(self, offset: Tensor) -> Tensor:
        """K of an edge without its factor at the node."""
        strict = self.layer.basissampler(self.layer.weights, offset.unsqueeze(0))[0]
        terms = []
        for number, ((left, right), _) in enumerate(self.matrices):
            steered = self._steered(number, strict)
            if self.by_element is not None:
                if number not in self._known:
                    self._known[number] = self._of_element(number, self.frequency)
                h = self._known[number]
                rows = self._rows(number, offset, h)
                parts = list((rows * steered).split([of.size for of in self.by_element.fields]))
                for field, columns in self.by_input.items():
                    parts[field] = parts[field] * columns.rows(number, (0.0,) * self.layer.d, h).mT
                steered = torch.cat(parts)
            terms.append(left @ steered @ right)
        return torch.stack(terms).mean(0)

    def _rows(self, number: int, offset: Tensor, h: Tensor) -> Tensor:
        """1 + m_G, with a gradient of the offset."""
        own = torch.from_numpy(self.elements.actions[number]).to(offset).T @ offset
        length, rows = offset.norm(), []
        for field, weights in zip(self.by_element.fields, self.by_element.weights, strict=True):
            row = torch.ones(field.size, dtype=torch.float64)
            for function, weight in weights.items():
                if function.axis is None:
                    row = row + weight * h[function.number] * self.by_element.of_identity[field]
                elif length > 0:
                    row = row + weight * h[function.number] * (own[function.axis] / length) ** function.degree
            rows.append(row)
        return torch.cat(rows).unsqueeze(1)

    def factor(self, place: Tensor) -> Tensor:
        """The factor of a node, a matrix."""
        if self.by_position is None:
            return torch.eye(self.layer.out_type.size, dtype=torch.float64)
        scale, terms = self.frequency["translation"], []
        for number, ((left, _), (inverse, _)) in enumerate(self.matrices):
            h = self._of_place(number, place / self.layer.kernel.config.domain_radius, scale) - self._mean(scale)
            terms.append(left @ (self.by_position.rows(number, (0.0,) * self.layer.d, h) * inverse))
        return torch.stack(terms).mean(0)

    def _of_place(self, number: int, place: Tensor, scale: Tensor) -> Tensor:
        own = torch.from_numpy(self.elements.actions[number]).to(place).T @ turned(self.layer, place)
        first = (2 * math.pi * scale * own).tanh()
        return torch.cat([first, first**2])

    def _mean(self, scale: Tensor) -> Tensor:
        """The mean over places and elements."""
        if "mean" not in self._known:
            places = torch.stack([turned(self.layer, place) for place in self.places])
            every = torch.cat([places @ torch.from_numpy(action) for action in self.elements.actions])
            first = (2 * math.pi * scale * every).tanh()
            self._known["mean"] = torch.cat([first, first**2], 1).mean(0)
        return self._known["mean"]


def turned(layer: RelaxedR2PointConv | RelaxedR3PointConv, place: Tensor) -> Tensor:
    """A place of the orbit of another one under the continuous rotations of a group."""
    group = layer.space.fibergroup
    if not group.continuous:
        return place
    has_axis = layer.d == 3 and group.name not in ("SO(3)", "O(3)")
    axes = 2 if has_axis else layer.d
    zeros = [torch.zeros(1, dtype=torch.float64)] * (axes - 1)
    return torch.cat([place[:axes].norm().unsqueeze(0), *zeros, place[axes:]])
