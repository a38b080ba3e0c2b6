"""The slow oracle: equations (1) and (2) of docs/concepts/mathematics.md by plain loops, for any κ.

    h(x) = Σ_d K(d; x) f(x + d)                                          (1)
    h(y) = Σ_x K(y − s x; x) f(x)                                        the transposed layer, adjoint to such a one;
    h(y) = Σ_x K(y − s x; y) f(x)                                        with a tied kernel the position is the output's
    K(d; x) = mean_g ρ_out(g) κ(g⁻¹d; ω′ ⊙ a(g, x)) ρ_in(g)⁻¹            (2)

It loops over pixels, taps and group elements of the plane and of space, with escnn's matrices of whole field types. Of
the layer it takes the place of the convolution and the bias; κ is given, see ``reference_kappas``.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
from escnn.group import GroupElement
from escnn.nn import FieldType
from reference_group import Elements, Point, as_point, matrix
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, RelaxedR3Conv, RelaxedR3ConvTransposed
from escnn_relaxed.continuous.kernel import SteeredKernel

Layer = RelaxedR2Conv | RelaxedR2ConvTransposed | RelaxedR3Conv | RelaxedR3ConvTransposed
TRANSPOSED = (RelaxedR2ConvTransposed, RelaxedR3ConvTransposed)
Index = tuple[int, ...]
# κ of the element of this number, at a tap d and a pixel of an image of some size: its value at g⁻¹d and a(g, x),
# (C_out, C_in).
Kappa = Callable[[int, Point, Index, Index], Tensor]


def kernel_types(layer: Layer) -> tuple[FieldType, FieldType]:
    """The fields between which a kernel is: one group of those of the input, or of a transposed layer's output."""
    fields = layer.in_type, layer.out_type
    parts = [of.index_select(list(range(len(of) // layer.groups))) for of in fields]
    return (fields[0], parts[1]) if isinstance(layer, TRANSPOSED) else (parts[0], fields[1])


def taps_of(layer: Layer) -> list[Point]:
    """Offsets in pixels in the order of a flattened filter."""
    line = [(n - (layer.kernel_size - 1) / 2) * layer.dilation for n in range(layer.kernel_size)]
    return [as_point(index) for index in itertools.product(line, repeat=layer.in_type.gspace.dimensionality)]


def position_of(pixel: Index, size: Index) -> Point:
    """Position of a pixel from the centre over half of the image along each axis."""
    return as_point([(2 * n + 1 - side) / side for n, side in zip(pixel, size, strict=True)])


class Oracle:
    """A layer in one state, which gives the place of the convolution and the bias, evaluated by loops."""

    def __init__(self, layer: Layer, kappa: Kappa, elements: Elements) -> None:
        self.layer, self.kappa = layer, kappa
        in_type, out_type = kernel_types(layer)
        self.matrices = [(matrix_of(out_type, g), matrix_of(in_type, ~g)) for g in elements.elements]
        self.is_soft_in_translation = "translation" in layer.domain_frequency
        self._banks: dict[tuple[Point, Index, Index], Tensor] = {}
        self._taps: dict[Index, Point] = {}

    def bank(self, tap: Point, pixel: Index, size: Index) -> Tensor:
        """Equation (2): K(d; x), (C_out, C_in/groups); each is evaluated once."""
        if not self.is_soft_in_translation:
            pixel, size = (0,) * len(tap), (1,) * len(tap)
        if (tap, pixel, size) not in self._banks:
            terms = [left @ self.kappa(n, tap, pixel, size) @ right for n, (left, right) in enumerate(self.matrices)]
            self._banks[tap, pixel, size] = torch.stack(terms).mean(dim=0)
        return self._banks[tap, pixel, size]

    def filter_bank(self, pixel: Index = (0, 0, 0), size: Index = (1, 1, 1)) -> Tensor:
        """K at a pixel of an image, (C_out, C_in/groups, taps); by default that of an image of one pixel."""
        axes = self.layer.in_type.gspace.dimensionality
        return torch.stack([self.bank(tap, pixel[:axes], size[:axes]) for tap in taps_of(self.layer)], dim=-1)

    def __call__(self, features: Tensor) -> Tensor:
        """The output of the layer."""
        is_transposed = isinstance(self.layer, TRANSPOSED)
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
            for tap in self._places(len(size)):
                bank = self._bank_at(tap, pixel, output)
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
        output = tuple(
            (n - 1) * layer.stride + reach + 1 - 2 * p + more for n, p, more in zip(size, padding, added, strict=True)
        )
        total = features.new_zeros(len(features), layer.out_type.size, *output)
        for pixel in itertools.product(*map(range, size)):
            values = features[(..., *pixel)].chunk(layer.groups, dim=1)
            for tap in self._places(len(size)):
                place = tuple(x * layer.stride + t - p for x, t, p in zip(pixel, tap, padding, strict=True))
                if all(0 <= y < side for y, side in zip(place, output, strict=True)):
                    where = (place, output) if not isinstance(layer.kernel, SteeredKernel) else (pixel, size)
                    parts = zip(self._bank_at(tap, *where).chunk(layer.groups, dim=1), values, strict=True)
                    total[(..., *place)] += torch.cat([value @ part.mT for part, value in parts], dim=1)
        return total

    def _places(self, axes: int) -> list[Index]:
        """The place of each tap from the first one, in pixels."""
        steps = [n * self.layer.dilation for n in range(self.layer.kernel_size)]
        return list(itertools.product(steps, repeat=axes))

    def _bank_at(self, place: Index, pixel: Index, size: Index) -> Tensor:
        """K of the tap at a place from the first one."""
        if not self._taps:
            self._taps = dict(zip(self._places(len(size)), taps_of(self.layer), strict=True))
        return self.bank(self._taps[place], pixel, size)


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
