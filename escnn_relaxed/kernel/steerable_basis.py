"""The steerable basis of ``escnn.nn.R2Conv`` (equation (9)), which maps weights to strict kernels.

The basis is escnn's own: the same elements, order and normalisation. So weights mean the same as in
``R2Conv`` and can be exchanged with it. Layers share the exact basis, which is never written to. ``as_held`` takes the
basis of an ``R2Conv`` as it is now, since a state that it loaded may have brought another one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from escnn.group import Representation
from escnn.nn import FieldType
from escnn.nn.modules.basismanager import BasisManager
from numpy.typing import NDArray
from torch import Tensor

from ..group.elements import grid_symmetries
from ..group.exact_constants import ExactConstants
from ..group.fields import channels_by_name, pair_rows
from ..group.points import tap_grid
from .grid_exact_basis import grid_exact_basis


class ChannelPair(NamedTuple):
    """Two representations, the channels of all their fields, and the place of their weights."""

    names: tuple[str, str]  # of the input, of the output
    outs: NDArray[np.int64]  # (fields, channels of a field)
    ins: NDArray[np.int64]
    weights: slice
    attributes: list[dict[str, Any]]  # those of each element of the basis
    sizes: tuple[int, int]  # channels of a field of the output and of the input


class SteerableBasis(ExactConstants):
    """The map from weights of ``R2Conv`` to its filter bank: one matrix product for each pair of representations."""

    order: Tensor
    elements: dict[int, Tensor]
    orbits: dict[int, Tensor]

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        dilation: int,
        expansion: Any,
        as_held: bool = False,
    ) -> None:
        super().__init__()
        taps = tap_grid(kernel_size, dilation, in_type.gspace.dimensionality)
        ins, outs = (channels_by_name(field_type.representations) for field_type in (in_type, out_type))
        symmetries = functools.cache(lambda: grid_symmetries(in_type.gspace, taps))
        pairs, fingerprint = list[ChannelPair](), list[float]()
        values, singles, orbits = {}, {}, {}
        for number, names in enumerate(() if expansion is None else expansion._representations_pairs):
            block = getattr(expansion, f"block_expansion_{expansion._escape_pair(names)}")
            fields = field_named(names[0], in_type), field_named(names[1], out_type)
            basis = grid_exact_basis(block, expansion.points, *fields, symmetries, as_held)
            weights, sizes = slice(*expansion._weights_ranges[names]), (fields[1].size, fields[0].size)
            pairs.append(ChannelPair(names, outs[names[1]], ins[names[0]], weights, basis.attributes, sizes))
            values[number], singles[number] = basis.values, basis.values if basis.single is None else basis.single
            if basis.orbits is not None:
                orbits[number] = basis.orbits
            fingerprint.append(basis.fingerprint)
        has_singles = any(singles[number] is not values[number] for number in values)
        self.set_constant("elements", values, single=singles if has_singles else None)
        self.set_constant("orbits", orbits)
        self._arrange((in_type, out_type), pairs, fingerprint, len(taps))

    def _arrange(
        self, fields: tuple[FieldType, FieldType], pairs: list[ChannelPair], fingerprint: list[float], taps: int
    ) -> None:
        """Take the pairs of representations, and find the rows of their kernels in the filter bank."""
        self.fields, self.pairs, self.fingerprint = fields, pairs, fingerprint
        self._size = (fields[1].size, fields[0].size, taps)
        self.dimension = pairs[-1].weights.stop if pairs else 0
        self.set_constant("order", pair_rows([(pair.outs, pair.ins) for pair in self.pairs], self._size[:2]))
        self._counts = [pair.weights.stop - pair.weights.start for pair in self.pairs]
        self._missing = math.prod(self._size[:2]) - sum(pair.outs.size * pair.ins.size for pair in self.pairs)
        self._is_one_pair = len(self.pairs) == 1 and not self._missing

    def by_pair(
        self, kind: Literal["constant", "exact", "single"] = "constant"
    ) -> Iterator[tuple[tuple[str, str], slice, Tensor]]:
        """Yield each pair of representations, the place of its weights, its basis (B, |A|, |B|, taps)."""
        constants: Any = self if kind == "constant" else getattr(self, kind)
        for number, pair in enumerate(self.pairs):
            values, orbits = constants.elements[number], constants.orbits.get(number)
            entries = values.flatten(1) if orbits is None else values.index_select(1, orbits)
            yield pair.names, pair.weights, entries.view(len(values), *pair.sizes, -1)

    def saved_samples(self, state: Mapping[str, Tensor], prefix: str, names: tuple[str, str]) -> Tensor | None:
        """Return the samples of a pair's basis that a state of escnn's layer holds, (B, |A|, |B|, taps)."""
        # The names as escnn writes them in the names of its modules.
        escaped = tuple(name.replace(".", "^") for name in names)
        return state.get(f"{prefix}_basisexpansion.block_expansion_{escaped}.sampled_basis")

    def start_weights(self) -> Tensor:
        """Return weights drawn as ``R2Conv`` draws them (escnn's generalised He rule)."""
        # The fields that reach an irrep of the output, by the irrep of the input.
        reached: dict[tuple[str, int], Counter[Any]] = defaultdict(Counter)
        for pair in self.pairs:
            for element in pair.attributes:
                reached[pair.names[1], element["out_irrep_idx"]][element["in_irrep"]] += len(pair.ins)
        deviations = [torch.zeros(0)]
        for pair in self.pairs:
            values = []
            for element in pair.attributes:
                counts = reached[pair.names[1], element["out_irrep_idx"]]
                values.append(1 / math.sqrt(len(counts) * counts[element["in_irrep"]]))
            deviations.append(torch.tensor(values, dtype=torch.float32).repeat(len(pair.outs) * len(pair.ins)))
        deviation = torch.cat(deviations)
        # Drawn in float32, whatever the default dtype.
        return (deviation * torch.randn_like(deviation)).to(torch.get_default_dtype())

    def forward(self, weights: Tensor, elements: Mapping[int, Tensor] | None = None, taps: int = 0) -> Tensor:
        """Return the filter bank (C_out, C_in/groups, T) of the weights (dimension,).

        Elements of each pair (B, |A|, |B|, taps) may be given in place of the basis's own.
        """
        if elements is None:
            elements, taps = self.elements, self._size[2]
        # The kernel of each pair of representations, (pairs of fields, |A|·|B|·T).
        products: list[Tensor] = []
        parts = weights.split(self._counts) if len(self.pairs) > 1 else (weights,)
        for number, part in enumerate(parts[: len(self.pairs)]):
            basis, orbits = elements[number].flatten(1), self.orbits.get(number)
            product = part.view(-1, len(basis)) @ basis
            # Of a large basis these are the values of orbits of entries.
            products.append(product if orbits is None else product.index_select(1, orbits))
        size = (*self._size[:2], taps)
        if self._is_one_pair:
            pair = self.pairs[0]
            fields = products[0].view(len(pair.outs), len(pair.ins), *pair.sizes, -1)
            return fields.transpose(1, 2).reshape(size)
        for number, product in enumerate(products):
            products[number] = product.reshape(-1, taps)
        if self._missing:
            products.append(weights.new_zeros(self._missing, taps))
        return torch.cat(products).index_select(0, self.order).view(size)


class BasisElements(BasisManager):
    """The methods of ``R2Conv.basisexpansion``, without being a module or holding a layer's state."""

    def __init__(self, basis: SteerableBasis) -> None:
        super().__init__()
        self._basis = basis
        # What functions of escnn.nn.init read.
        self._representations_pairs = [pair.names for pair in basis.pairs]
        self._weights_ranges = {pair.names: (pair.weights.start, pair.weights.stop) for pair in basis.pairs}

    def __call__(self, weights: Tensor) -> Tensor:
        """Return the strict filter of these weights, (C_out, C_in/groups, k²), as ``R2Conv.basisexpansion`` does."""
        if weights.shape != (self.dimension(),):
            raise ValueError(f"weights must be of shape ({self.dimension()},), got {tuple(weights.shape)}")
        kernel: Tensor = self._basis(weights)
        return kernel

    def by_pair(self) -> Iterator[tuple[tuple[str, str], slice, Tensor]]:
        """Yield each pair of representations, the place of its weights, its basis (B, |A|, |B|, taps)."""
        return self._basis.by_pair()

    def dimension(self) -> int:
        """Number of weights."""
        return self._basis.dimension

    def get_basis_info(self) -> Iterator[dict[str, Any]]:
        """Yield the attributes of the element that each weight multiplies, in the order of the weights."""
        ins, outs = map(_fields_by_name, self._basis.fields)
        numbers = itertools.count()
        for pair in self._basis.pairs:
            in_name, out_name = pair.names
            for (out_position, out_irreps), (in_position, in_irreps) in itertools.product(outs[out_name], ins[in_name]):
                for element in pair.attributes:
                    yield {
                        **element,
                        "in_irreps_position": in_irreps + element["in_irrep_idx"],
                        "out_irreps_position": out_irreps + element["out_irrep_idx"],
                        "in_repr": in_name,
                        "out_repr": out_name,
                        "in_field_position": in_position,
                        "out_field_position": out_position,
                        "block_id": element["id"],
                        "id": next(numbers),
                    }

    def get_element_info(self, name: int) -> dict[str, Any]:
        """Return the attributes of the element that one weight multiplies."""
        for element in self.get_basis_info():
            if element["id"] == name:
                return element
        raise ValueError(f"name must be the number of one of {self.dimension()} weights, got {name!r}")


def _fields_by_name(field_type: FieldType) -> dict[str, list[tuple[int, int]]]:
    """Return the places of each representation's fields: among all fields, and of its first irrep among all irreps."""
    places: dict[str, list[tuple[int, int]]] = {}
    irreps = 0
    for position, field in enumerate(field_type.representations):
        places.setdefault(field.name, []).append((position, irreps))
        irreps += len(field.irreps)
    return places


def field_named(name: str, field_type: FieldType) -> Representation:
    """Return the field of a name among those of a type."""
    return next(field for field in field_type.representations if field.name == name)
