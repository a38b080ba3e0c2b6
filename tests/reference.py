"""The slow oracle: equations (1) and (2) of docs/concepts/mathematics.md by plain loops, for any κ.

    h(x) = Σ_d K(d; x) f(x + d)                                          (1)
    h(y) = Σ_x K(y − s x; x) f(x)                                        the transposed layer, adjoint to such a one
    K(d; x) = mean_g ρ_out(g) κ(g⁻¹d; ω′ ⊙ a(g, x)) ρ_in(g)⁻¹            (2)

and where the kernel is held constant over regions, in each the mean of what it is at the centres of the cells. It loops
over output points, taps and group elements of the plane and of space, with escnn's matrices of whole field types. Of
the layer it takes the place of the convolution and the bias; κ is given, see ``reference_kappas``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from escnn.group import GroupElement
from escnn.nn import FieldType
from reference_group import Elements, Point, as_point, matrix
from reference_regions import Regions
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, RelaxedR3Conv

# κ of the element of this number, at a tap d and a position x: its value at g⁻¹d and a(g, x), (C_out, C_in).
Kappa = Callable[[int, Point, Point], Tensor]
Layer = RelaxedR2Conv | RelaxedR2ConvTransposed | RelaxedR3Conv
Index = tuple[int, ...]


def kernel_types(layer: Layer) -> tuple[FieldType, FieldType]:
    """The fields between which a kernel is: one group of those of the input, or of a transposed layer's output."""
    fields = layer.in_type, layer.out_type
    parts = [of.index_select(list(range(len(of) // layer.groups))) for of in fields]
    return (fields[0], parts[1]) if isinstance(layer, RelaxedR2ConvTransposed) else (parts[0], fields[1])


def taps_of(layer: Layer) -> list[Point]:
    """Offsets in pixels in the order of a flattened filter."""
    line = [(n - (layer.kernel_size - 1) / 2) * layer.dilation for n in range(layer.kernel_size)]
    return [as_point(index) for index in itertools.product(line, repeat=layer.in_type.gspace.dimensionality)]


def position_of(pixel: Index, size: Index) -> Point:
    """Position of a pixel, or of a cell, from the centre over half of the image along each axis."""
    return as_point([(2 * n + 1 - side) / side for n, side in zip(pixel, size, strict=True)])


def cells_of(layer: Layer) -> list[Point]:
    """Centres of the cells over which a kernel varies; the origin where it is the same at every position."""
    if "translation" not in layer.domain_frequency:
        return [(0.0,) * layer.in_type.gspace.dimensionality]
    cells = layer.regions, layer.regions
    return [position_of(cell, cells) for cell in itertools.product(*map(range, cells))]


class Oracle:
    """A layer in one state evaluated by loops.

    Args:
        layer: gives the place of the convolution and the bias.
        kappa: κ.
        elements: those over which the mean is taken.
    """

    def __init__(self, layer: Layer, kappa: Kappa, elements: Elements) -> None:
        self.layer, self.kappa = layer, kappa
        in_type, out_type = kernel_types(layer)
        self.matrices = [(matrix_of(out_type, g), matrix_of(in_type, ~g)) for g in elements.elements]
        self.is_soft_in_translation = "translation" in layer.domain_frequency
        self._banks: dict[tuple[Point, Point], Tensor] = {}
        self._region_banks: dict[tuple[Point, Index], Tensor] = {}

    def bank(self, tap: Point, position: Point) -> Tensor:
        """Equation (2): K(d; x), (C_out, C_in/groups); each is evaluated once."""
        if (tap, position) not in self._banks:
            terms = [rho @ self.kappa(n, tap, position) @ inverse for n, (rho, inverse) in enumerate(self.matrices)]
            self._banks[tap, position] = torch.stack(terms).mean(dim=0)
        return self._banks[tap, position]

    def filter_bank(self) -> Tensor:
        """K of a layer that is strict in translation, (C_out, C_in/groups, taps)."""
        origin = (0.0,) * self.layer.in_type.gspace.dimensionality
        return torch.stack([self.bank(tap, origin) for tap in taps_of(self.layer)], dim=-1)

    def __call__(self, features: Tensor) -> Tensor:
        """The output of the layer."""
        is_transposed = isinstance(self.layer, RelaxedR2ConvTransposed)
        output = self._transposed(features) if is_transposed else self._convolution(features)
        bias = self.layer.expanded_bias
        return output if bias is None else output + bias.view(-1, *[1] * (output.dim() - 2))

    def _convolution(self, features: Tensor) -> Tensor:
        layer, size = self.layer, tuple(features.shape[2:])
        reach = layer.dilation * (layer.kernel_size - 1)
        padding = _of_axes(layer.padding, size)
        output = tuple((n + 2 * p - reach - 1) // layer.stride + 1 for n, p in zip(size, padding, strict=True))
        answers = []
        for pixel in itertools.product(*map(range, output)):
            total = features.new_zeros(len(features), layer.out_type.size)
            for tap, bank in self._banks_at(pixel, output):
                places = [x * layer.stride + t - p for x, t, p in zip(pixel, tap, padding, strict=True)]
                read = [copied_cell(place, n, layer.padding_mode) for place, n in zip(places, size, strict=True)]
                if None not in read:
                    values = features[(..., *read)].chunk(layer.groups, dim=1)
                    parts = zip(bank.chunk(layer.groups), values, strict=True)
                    total = total + torch.cat([value @ part.mT for part, value in parts], dim=1)
            answers.append(total)
        return torch.stack(answers, dim=-1).unflatten(-1, output)

    def _transposed(self, features: Tensor) -> Tensor:
        layer, size = self.layer, tuple(features.shape[2:])
        reach = layer.dilation * (layer.kernel_size - 1)
        padding, added = _of_axes(layer.padding, size), _of_axes(layer.output_padding, size)
        output = [
            (n - 1) * layer.stride + reach + 1 - 2 * p + more for n, p, more in zip(size, padding, added, strict=True)
        ]
        total = features.new_zeros(len(features), layer.out_type.size, *output)
        for pixel in itertools.product(*map(range, size)):
            values = features[(..., *pixel)].chunk(layer.groups, dim=1)
            for tap, bank in self._banks_at(pixel, size):
                place = [x * layer.stride + t - p for x, t, p in zip(pixel, tap, padding, strict=True)]
                if all(0 <= y < side for y, side in zip(place, output, strict=True)):
                    parts = zip(bank.chunk(layer.groups, dim=1), values, strict=True)
                    total[(..., *place)] += torch.cat([value @ part.mT for part, value in parts], dim=1)
        return total

    def _banks_at(self, pixel: Index, size: Index) -> list[tuple[Index, Tensor]]:
        """The kernel of a pixel: for each tap its place from the first one, and K(d; x)."""
        layer = self.layer
        steps = [n * layer.dilation for n in range(layer.kernel_size)]
        places = itertools.product(steps, repeat=len(size))
        regions = Regions(size, layer.regions) if self.is_soft_in_translation else None
        banks = []
        for tap in taps_of(layer):
            if regions is None:
                banks.append(self.bank(tap, (0.0,) * len(size)))
            else:
                banks.append(torch.stack([self._bank_of(tap, regions, of) for of in regions.at(pixel)]).mean(dim=0))
        return list(zip(places, banks, strict=True))

    def _bank_of(self, tap: Point, regions: Regions, region: Index) -> Tensor:
        """The mean of K(d; x) over the cells that a region covers."""
        if (tap, region) not in self._region_banks:
            cells = self.layer.regions, self.layer.regions
            parts = [share * self.bank(tap, position_of(cell, cells)) for cell, share in regions.shares(region).items()]
            self._region_banks[tap, region] = torch.stack(parts).sum(dim=0)
        return self._region_banks[tap, region]


def matrix_of(field_type: FieldType, element: GroupElement) -> Tensor:
    """escnn's matrix of all fields of a type."""
    return torch.block_diag(*(torch.from_numpy(matrix(field, element)) for field in field_type.representations))


def _of_axes(value: int | Sequence[int], size: Index) -> Sequence[int]:
    return (value,) * len(size) if isinstance(value, int) else value


def copied_cell(index: int, size: int, mode: str) -> int | None:
    """The pixel that a cell of a padded axis copies, None for a zero."""
    if 0 <= index < size:
        return index
    if mode == "zeros":
        return None
    if mode == "circular":
        return index % size
    if mode == "replicate":
        return min(max(index, 0), size - 1)
    return -index if index < 0 else 2 * (size - 1) - index
