"""The steerable basis of ``escnn.nn.R2Conv`` (equation (9)), with which strict kernels are made of weights.

The basis is escnn's own: the same elements, order and normalisation. So weights mean the same as in
``R2Conv`` and can be exchanged with it. Layers share the exact basis, which is never written to.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from escnn.group import Representation
from escnn.nn import FieldType
from numpy.typing import NDArray
from torch import Tensor

from ..group.elements import grid_symmetries
from ..group.exact_constants import ExactConstants, RowOrder
from ..group.means import GroupAverage
from ..group.points import tap_grid
from ..on_escnn.basis_elements import BasisElements
from ..on_escnn.grid_exact_basis import grid_exact_basis


class SteerableBasis(ExactConstants):
    """The map from weights of ``R2Conv`` to its filter bank: one matrix product for each pair of representations."""

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        dilation: int,
        expansion: Any,
    ) -> None:
        super().__init__()
        dimension = in_type.gspace.dimensionality
        self._size = (out_type.size, in_type.size, *[kernel_size] * dimension)
        self._pairs: list[_PairLayout] = []
        self._deviations: list[Tensor] = []
        self.dimension = 0
        self.fingerprint: list[float] = []
        self.fields = in_type, out_type
        self._attributes: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._ranges: dict[tuple[str, str], tuple[int, int]] = {}
        if expansion is None:
            self.order = RowOrder(np.arange(out_type.size * in_type.size))
            self._missing, self._is_one_pair = out_type.size * in_type.size, False
            return
        self.dimension = expansion.dimension()
        self._ranges = dict(expansion._weights_ranges)
        taps = tap_grid(kernel_size, dilation, dimension)
        symmetries = functools.cache(lambda: grid_symmetries(in_type.gspace, taps))
        for number, names in enumerate(expansion._representations_pairs):
            self._pairs.append(_PairLayout(names, in_type, out_type, self._ranges[names]))
            block = getattr(expansion, f"block_expansion_{expansion._escape_pair(names)}")
            fields = field_named(names[0], in_type), field_named(names[1], out_type)
            basis = grid_exact_basis(block, expansion.points, *fields, symmetries, _averaged)
            self._attributes[names] = basis.attributes
            self.set_constant(f"basis_{number}", basis.values, single=basis.single)
            if basis.orbits is not None:
                self.set_constant(f"orbits_{number}", basis.orbits)
            self.fingerprint.append(basis.fingerprint)
        self._deviations = _he_deviations(self._pairs, list(self._attributes.values()))
        self.order = RowOrder(_row_numbers(self._pairs, out_type.size, in_type.size))
        self._counts = [pair.end - pair.start for pair in self._pairs]
        rows = sum(pair.in_count * pair.out_count * math.prod(pair.sizes) for pair in self._pairs)
        self._missing = out_type.size * in_type.size - rows
        self._is_one_pair = len(self._pairs) == 1 and not self._missing

    @property
    def elements(self) -> BasisElements:
        """The elements that the weights multiply; made anew, so that no two objects hold each other."""
        return BasisElements(*self.fields, self._attributes, self._ranges, self)

    def by_pair(self, exact: bool = False) -> Iterator[tuple[tuple[str, str], slice, Tensor]]:
        """Yield each pair of representations, the place of its weights, its basis (B, |A|, |B|, taps)."""
        for number, (names, pair) in enumerate(zip(self._attributes, self._pairs, strict=True)):
            values, orbits = (
                None if name not in self._masters else self.exact(name) if exact else self.constant(name)
                for name in (f"basis_{number}", f"orbits_{number}")
            )
            yield names, slice(pair.start, pair.end), _of_entries(values, orbits, pair.sizes)

    def start_weights(self) -> Tensor:
        """Return weights drawn as ``R2Conv`` draws them (escnn's generalised He rule), in float32."""
        deviations = [
            deviation.repeat(pair.out_count * pair.in_count)
            for pair, deviation in zip(self._pairs, self._deviations, strict=True)
        ]
        deviation = torch.cat([torch.zeros(0), *deviations])
        return deviation * torch.randn_like(deviation)

    def forward(self, weights: Tensor) -> Tensor:
        """Return the filter bank (C_out, C_in/groups, k, k) of the weights (dimension,)."""
        # The kernel of each pair of representations, (pairs of fields, |A|·|B|·k²).
        products: list[Tensor] = []
        parts = weights.split(self._counts) if len(self._pairs) > 1 else (weights,)
        for number, part in enumerate(parts[: len(self._pairs)]):
            basis = getattr(self, f"basis_{number}").flatten(1)
            product, orbits = part.view(-1, len(basis)) @ basis, getattr(self, f"orbits_{number}", None)
            # Of a large basis these are the values of orbits of entries.
            products.append(product if orbits is None else product.index_select(1, orbits))
        if self._is_one_pair:
            pair = self._pairs[0]
            fields = products[0].view(pair.out_count, pair.in_count, *pair.sizes, -1)
            return fields.transpose(1, 2).reshape(self._size)
        taps = math.prod(self._size[2:])
        for number, product in enumerate(products):
            products[number] = product.reshape(-1, taps)
        if self._missing:
            products.append(weights.new_zeros(self._missing, taps))
        return self.order(torch.cat(products)).view(self._size)


def _averaged(
    basis: NDArray[np.float64], in_field: Representation, out_field: Representation, symmetries: Any
) -> NDArray[np.float64]:
    """Return the mean of a basis (B, |A|, |B|, taps) over elements that map taps to taps."""
    if not symmetries:
        return np.zeros_like(basis)
    average = GroupAverage([in_field], [out_field], symmetries)
    mean: NDArray[np.float64] = average.by_blocks(torch.from_numpy(basis)).numpy()
    return mean


def _of_entries(basis: Any, orbits: Tensor | None, sizes: tuple[int, int]) -> Tensor:
    """Return a basis (B, |A|, |B|, taps), given its values of entries or of orbits."""
    entries: Tensor = basis.flatten(1) if orbits is None else basis.index_select(1, orbits)
    return entries.view(len(basis), *sizes, -1)


def _he_deviations(pairs: list[_PairLayout], elements: list[list[dict[str, Any]]]) -> list[Tensor]:
    """Return the deviation of the weight of each basis element by escnn's rule, for each pair of representations."""
    counts: dict[tuple[str, int], dict[Any, int]] = {}
    for pair, attributes in zip(pairs, elements, strict=True):
        for element in attributes:
            reached = counts.setdefault((pair.out_name, element["out_irrep_idx"]), {})
            reached[element["in_irrep"]] = reached.get(element["in_irrep"], 0) + pair.in_count
    deviations = []
    for pair, attributes in zip(pairs, elements, strict=True):
        values = []
        for element in attributes:
            reached = counts[pair.out_name, element["out_irrep_idx"]]
            values.append(1 / math.sqrt(len(reached) * reached[element["in_irrep"]]))
        deviations.append(torch.tensor(values, dtype=torch.float32))
    return deviations


class _PairLayout:
    """The places of the weights and the channels of one pair of representations."""

    def __init__(
        self, names: tuple[str, str], in_type: FieldType, out_type: FieldType, weights: tuple[int, int]
    ) -> None:
        self.start, self.end = weights
        self.out_name = names[1]
        self.in_channels = _channels_of(names[0], in_type)
        self.out_channels = _channels_of(names[1], out_type)
        self.in_count = [field.name for field in in_type.representations].count(names[0])
        self.out_count = [field.name for field in out_type.representations].count(names[1])
        self.sizes = len(self.out_channels) // self.out_count, len(self.in_channels) // self.in_count


def _row_numbers(pairs: list[_PairLayout], out_size: int, in_size: int) -> NDArray[np.int64]:
    """Return the row of each pair of channels, output first, among those of pairs of representations (o, i, a, b)."""
    bank = np.full((out_size, in_size), -1, dtype=np.int64)
    start = 0
    for pair in pairs:
        outs, ins = pair.out_channels.reshape(pair.out_count, -1), pair.in_channels.reshape(pair.in_count, -1)
        shape = len(outs), len(ins), outs.shape[1], ins.shape[1]
        numbers = start + np.arange(np.prod(shape)).reshape(shape)
        bank[np.ix_(outs.ravel(), ins.ravel())] = numbers.transpose(0, 2, 1, 3).reshape(outs.size, ins.size)
        start += numbers.size
    # The rows of pairs without a steerable kernel follow. They are 0.
    bank[bank < 0] = np.arange(start, bank.size)
    return bank.ravel()


def _channels_of(name: str, field_type: FieldType) -> NDArray[np.int64]:
    channels: list[int] = []
    start = 0
    for field in field_type.representations:
        if field.name == name:
            channels.extend(range(start, start + field.size))
        start += field.size
    return np.array(channels, dtype=np.int64)


def field_named(name: str, field_type: FieldType) -> Representation:
    """Return the field of a name among those of a type."""
    return next(field for field in field_type.representations if field.name == name)
