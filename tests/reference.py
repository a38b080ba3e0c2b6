"""The slow oracle: equations (1) and (2) of docs/concepts/mathematics.md by plain loops.

    h(x) = Σ_d K(d; x) f(x + d)                                                                     (1)
    K(d; x) = mean_g ρ_out(g) κ(g⁻¹d; ω′ ⊙ a(g, x)) ρ_in(g)⁻¹                                       (2)
    K_{g,g′}(d; x) = k(g′⁻¹d, g′⁻¹g; a(g′, x))  between regular fields, its mean over cosets between quotients

and where the kernel is held constant over regions, in each the mean of what it is at the centres of the cells.

It loops over output points, taps, group elements and fields, takes escnn's matrices of whole fields, and works
out coordinates from escnn's element parametrisations. Of the layer it takes nothing but its numbers: the kernel
net as a function of two points, the output weights of each pair of fields, ω′ and the bias.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from escnn.group import GroupElement
from escnn.gspaces import GSpace2D
from reference_coordinates import (
    Point,
    copied_cell,
    inverse_action,
    subgroup_coordinates,
    window_weight,
)
from reference_fields import Block, Field, Fields, coset, matrix
from reference_regions import Regions
from reference_tied import Modulation
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv

Pixel = tuple[int, int]

# The layer's defaults.
DEFAULTS: dict[str, Any] = {
    "kernel_size": 3,
    "padding": 0,
    "stride": 1,
    "dilation": 1,
    "padding_mode": "zeros",
    "groups": 1,
    "samples": 16,
    "frame": "group",
    "regions": 4,
    "rotation_coordinates": "circle",
    "support": "smooth",
    "soft_part": "continuous",
    "keep": None,
}
# Cells along each axis over which a centred or tied kernel is averaged where every pixel has its own kernel.
CELLS_OF_PIXELS = 8


class Oracle:
    """A layer evaluated by loops; of a centred one, the continuous kernel beside the strict part alone.

    Args:
        layer: gives its numbers.
        arguments: those that the layer was built with, ``filter_frequency`` among them.
    """

    def __init__(self, layer: RelaxedR2Conv, **arguments: Any) -> None:
        self.layer = layer
        given = DEFAULTS | arguments
        self.kernel_size, self.stride, self.dilation = (given[name] for name in ("kernel_size", "stride", "dilation"))
        padding = given["padding"]
        self.padding: tuple[int, int] = padding if isinstance(padding, tuple) else (padding, padding)
        self.padding_mode, self.groups = given["padding_mode"], given["groups"]
        self.frame, self.form = given["frame"], given["rotation_coordinates"]
        self.regions: int | None = given["regions"]
        self.cells = self.regions or CELLS_OF_PIXELS
        self.support = given["support"]
        self.soft_part: str = given["soft_part"]
        self.filter_frequency: dict[str, float] = given["filter_frequency"]
        self.space: GSpace2D = layer.in_type.gspace
        group = self.space.fibergroup
        self.elements = list(group.grid(type="regular", N=given["samples"]) if group.continuous else group.elements)
        count = len(layer.in_type) // self.groups
        self.inputs = Fields(list(layer.in_type.representations[:count]), self.elements)
        self.outputs = Fields(list(layer.out_type.representations), self.elements)
        cells = itertools.product(range(self.cells), range(self.cells))
        centres = [self.position(cell, (self.cells, self.cells)) for cell in cells]
        self.cell_centres = centres if "translation" in layer.domain_frequency else [(0.0, 0.0)]
        self.modulation = Modulation(layer, self.elements, self.cell_centres, given["keep"])
        self.sees_relative = all(any(f.is_permutation for f in side.fields) for side in (self.inputs, self.outputs))
        self._hidden: dict[tuple[object, ...], Tensor] = {}
        self._banks: dict[tuple[Point, Point], Tensor] = {}
        self._region_banks: dict[tuple[Point, Pixel], Tensor] = {}
        self._known_weights: dict[tuple[Block, Block], Tensor] = {}

    def taps(self) -> list[Point]:
        """Offsets in pixels, y up, in the order of a flattened filter."""
        k, step = self.kernel_size, self.dilation
        line = [(i - (k - 1) / 2) * step for i in range(k)]
        return [(x, -y) for y, x in itertools.product(line, line)]

    def __call__(self, features: Tensor) -> Tensor:
        """Equation (1)."""
        layer = self.layer
        for known in (self._hidden, self._banks, self._region_banks, self._known_weights, self.modulation.known):
            known.clear()
        batch, _, height, width = features.shape
        reach = self.dilation * (self.kernel_size - 1)
        rows = (height + 2 * self.padding[0] - reach - 1) // self.stride + 1
        columns = (width + 2 * self.padding[1] - reach - 1) // self.stride + 1
        bias = layer.expanded_bias()
        regions = None if self.regions is None else Regions((rows, columns), self.regions)
        answers = []
        for pixel in itertools.product(range(rows), range(columns)):
            total = features.new_zeros(batch, layer.out_type.size)
            for number, tap in enumerate(self.taps()):
                axes = zip(pixel, divmod(number, self.kernel_size), self.padding, (height, width), strict=True)
                cell = tuple(self._read(*axis) for axis in axes)
                if None in cell or self.is_empty(tap):
                    continue
                if regions is None:
                    bank = self.bank(tap, self.position(pixel, (rows, columns)))
                else:
                    banks = [self._bank_of_region(tap, regions, region) for region in regions.at(pixel)]
                    bank = torch.stack(banks).mean(dim=0)
                total = total + self._apply(bank, features[:, :, cell[0], cell[1]])
            answers.append(total if bias is None else total + bias)
        return torch.stack(answers, dim=-1).view(batch, -1, rows, columns)

    def is_empty(self, tap: Point) -> bool:
        """Whether the window of a continuous kernel is 0 at a tap."""
        return self.soft_part != "tied" and window_weight(tap, self.kernel_size, self.dilation, self.support) == 0

    def _read(self, output: int, tap: int, padding: int, size: int) -> int | None:
        """The row (column) of the image that a row (column) of the output reads at one of the taps."""
        return copied_cell(output * self.stride - padding + tap * self.dilation, size, self.padding_mode)

    def position(self, pixel: Pixel, size: tuple[int, int]) -> Point:
        """Position of a pixel, or of a cell, from the centre over half of the image along each axis, y up."""
        (row, column), (height, width) = pixel, size
        return (2 * column + 1 - width) / width, -(2 * row + 1 - height) / height

    def _bank_of_region(self, tap: Point, regions: Regions, region: Pixel) -> Tensor:
        """The mean of K(d; x) over the cells that a region covers; each is evaluated once."""
        if "translation" not in self.layer.domain_frequency:
            return self.bank(tap)
        if (tap, region) not in self._region_banks:
            total = torch.zeros((), dtype=torch.float64)
            for cell, share in regions.shares(region).items():
                total = total + share * self.bank(tap, self.position(cell, (self.cells, self.cells)))
            self._region_banks[tap, region] = total
        return self._region_banks[tap, region]

    def _apply(self, bank: Tensor, values: Tensor) -> Tensor:
        """Each group of fields apart."""
        parts = zip(bank.chunk(self.groups), values.chunk(self.groups, dim=1), strict=True)
        return torch.cat([value @ part.mT for part, value in parts], dim=1)

    def bank(self, tap: Point, position: Point = (0.0, 0.0)) -> Tensor:
        """Equation (2): K(d; x), (C_out, C_in/groups); each is evaluated once."""
        if "translation" not in self.layer.domain_frequency:
            position = (0.0, 0.0)
        if (tap, position) not in self._banks:
            self._banks[tap, position] = self._evaluate_bank(tap, position)
        return self._banks[tap, position]

    def _evaluate_bank(self, tap: Point, position: Point) -> Tensor:
        if self.soft_part == "tied":
            strict = self.layer.steerable_basis(self.layer.weights).flatten(2)[..., self.taps().index(tap)]
            return strict * (1 + self.modulation(self.outputs, tap, position).unsqueeze(1))
        rows = []
        for out_field in self.outputs.fields:
            blocks = []
            for in_field in self.inputs.fields:
                relative = out_field.is_permutation and in_field.is_permutation
                pair = self._permutation_pair if relative else self._general_pair
                blocks.append(pair(out_field, in_field, tap, position))
            rows.append(torch.cat(blocks, dim=1))
        return torch.cat(rows, dim=0)

    def _permutation_pair(self, out_field: Field, in_field: Field, tap: Point, position: Point) -> Tensor:
        """k(g′⁻¹d, g′⁻¹g; a(g′, x)); a channel is the mean over the elements of its coset."""
        weights = self._weights(out_field.blocks[0], in_field.blocks[0])
        out_coset = [coset(out_field.representation, g) for g in self.elements]
        in_coset = [coset(in_field.representation, g) for g in self.elements]
        out_size, in_size = out_field.representation.size, in_field.representation.size
        share = out_size * in_size / len(self.elements) ** 2
        entries = [[torch.zeros((), dtype=torch.float64) for _ in range(in_size)] for _ in range(out_size)]
        for a, g in zip(out_coset, self.elements, strict=True):
            for b, v in zip(in_coset, self.elements, strict=True):
                value = weights @ self.hidden_values(v, tap, position, relative=~v @ g)
                entries[a][b] = entries[a][b] + share * value
        return torch.stack([torch.stack(row) for row in entries])

    def _general_pair(self, out_field: Field, in_field: Field, tap: Point, position: Point) -> Tensor:
        """mean_g ρ_out(g) κ(g⁻¹d; a(g, x)) ρ_in(g)⁻¹ with escnn's matrices of the whole fields."""
        total = torch.zeros(out_field.representation.size, in_field.representation.size, dtype=torch.float64)
        for g in self.elements:
            features = self.hidden_values(g, tap, position, relative=self.space.fibergroup.identity)
            kappa = self._kappa(out_field, in_field, features)
            rho_out = torch.from_numpy(matrix(out_field.representation, g))
            rho_in = torch.from_numpy(matrix(in_field.representation, ~g))
            total = total + rho_out @ kappa @ rho_in
        return total / len(self.elements)

    def _kappa(self, out_field: Field, in_field: Field, features: Tensor) -> Tensor:
        """κ in the basis of the fields; it has weights in one row of a permutation, else in one column of a block."""
        bases = [self._basis(out_field, "change_of_basis"), self._basis(in_field, "change_of_basis_inv")]
        kappa = torch.zeros(len(bases[0]), len(bases[1]), dtype=torch.float64)
        for out_block in out_field.blocks:
            for in_block in in_field.blocks:
                out_size, in_size = out_block.size, in_block.size
                rows = [0] if out_field.is_permutation else list(range(out_size))
                columns = list(range(in_size)) if out_field.is_permutation else [0]
                weights = self._weights(out_block, in_block).view(len(rows) * len(columns), -1)
                for entry, (m, n) in enumerate(itertools.product(rows, columns)):
                    place = torch.zeros_like(kappa)
                    place[out_block.row + m, in_block.row + n] = 1
                    kappa = kappa + place * (weights[entry] @ features)
        return bases[0] @ kappa @ bases[1]

    def _basis(self, field: Field, which: str) -> Tensor:
        if field.is_permutation:
            return torch.eye(field.representation.size, dtype=torch.float64)
        return torch.from_numpy(np.array(getattr(field.representation, which), dtype=np.float64))

    def _weights(self, out_block: Block, in_block: Block) -> Tensor:
        """Output weights of a pair of blocks on the plain hidden values."""
        if (out_block, in_block) not in self._known_weights:
            number = self.outputs.kinds.index(out_block.kind) * len(self.inputs.kinds)
            pair = self.layer.bank.steered_average.pairs[number + self.inputs.kinds.index(in_block.kind)]
            weights = pair.weights[out_block.number, in_block.number] @ pair.units
            self._known_weights[out_block, in_block] = weights
        return self._known_weights[out_block, in_block]

    def hidden_values(self, g: GroupElement, tap: Point, position: Point, relative: GroupElement) -> Tensor:
        """φ and a constant at g⁻¹d, the relative element and a(g, x), within the window.

        Of a centred kernel, φ less its mean over the domain, and no constant.
        """
        key = (g, tap, position, relative if self.sees_relative else None)
        if key not in self._hidden:
            filter_point = self._filter_point(g, tap, relative)
            hidden = self.layer.bank.kernel(filter_point, self.domain_point(g, position))
            if self.soft_part == "centred":
                mean_key = ("mean", *key[:2], key[3])
                if mean_key not in self._hidden:
                    self._hidden[mean_key] = self._mean_over_domain(filter_point)
                self._hidden[key] = hidden - self._hidden[mean_key]
            else:
                self._hidden[key] = torch.cat([hidden, hidden.new_ones(1)])
        return self._hidden[key] * window_weight(tap, self.kernel_size, self.dilation, self.support)

    def _mean_over_domain(self, filter_point: Tensor) -> Tensor:
        # Positions in the frame of an element: as all elements see them.
        own = [inverse_action(self.space, g, position) for g in self.elements for position in self.cell_centres]
        points = [self.domain_point(g, position, is_own=True) for g in self.elements for position in own]
        hidden = self.layer.bank.kernel(filter_point.expand(len(points), -1), torch.stack(points))
        return hidden.mean(dim=1)

    def _filter_point(self, g: GroupElement, tap: Point, relative: GroupElement) -> Tensor:
        radius = self.dilation * self.kernel_size / 2
        x, y = inverse_action(self.space, g, tap)
        point = [value / radius * self.filter_frequency["position"] for value in (x, y)]
        if self.sees_relative:
            coordinates = subgroup_coordinates(self.space, relative, self.form)
            for name in self._subgroups():
                point += [value * self.filter_frequency[name] for value in coordinates[name]]
        return torch.tensor(point, dtype=torch.float64)

    def _subgroups(self) -> list[str]:
        return ["rotation"] * (self.space.rotations_order != 1) + ["reflection"] * (self.space.flips_order != 0)

    def domain_point(self, g: GroupElement, position: Point, is_own: bool = False) -> Tensor:
        """ω′ ⊙ a(g, x) at a position x, or at one in the frame of g (g⁻¹x)."""
        coordinates = subgroup_coordinates(self.space, g, self.form)
        if self.frame == "group":
            seen = position if is_own else inverse_action(self.space, g, position)
        else:
            seen = inverse_action(self.space, ~g, position) if is_own else position
        coordinates["translation"] = list(seen)
        point = torch.zeros(0, dtype=torch.float64)
        for name in ("translation", "rotation", "reflection"):
            if name in self.layer.domain_frequency:
                values = torch.tensor(coordinates[name], dtype=torch.float64)
                point = torch.cat([point, values * self.layer.domain_frequency[name]])
        return point
