"""The exact projection of linear maps between fields on those that are equivariant to a compact group (Schur's lemma).

An equivariant map takes each irrep to irreps of the same kind, by endomorphisms of these. So the mean over the group is
known to float64, where a mean over samples of a continuous group is not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from escnn.group import Representation
from numpy.typing import NDArray
from torch import Tensor

from .exact_constants import ExactConstants
from .fields import channels_by_name, pair_rows
from .points import Array


class NearestIntertwiner(ExactConstants):
    """The mean of maps (C_out, C_in, …) over a group, the nearest equivariant map where ρ is made orthogonal."""

    elements: dict[int, Tensor]
    duals: dict[int, Tensor]
    places: dict[int, Tensor]
    order: Tensor

    def __init__(self, in_fields: Sequence[Representation], out_fields: Sequence[Representation]) -> None:
        super().__init__()
        in_fields, out_fields = _irreps_apart(in_fields), _irreps_apart(out_fields)
        self._size = sum(field.size for field in out_fields), sum(field.size for field in in_fields)
        outs, ins = channels_by_name(out_fields), channels_by_name(in_fields)
        pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        elements, duals, places = {}, {}, {}
        for out_field in {field.name: field for field in out_fields}.values():
            for in_field in {field.name: field for field in in_fields}.values():
                of_pair, of_duals = intertwiners(in_field, out_field)
                if len(of_pair):
                    number, pair = len(pairs), (outs[out_field.name], ins[in_field.name])
                    elements[number] = of_pair.reshape(len(of_pair), -1)
                    duals[number] = of_duals.reshape(len(of_duals), -1)
                    # The entries of maps that each pair of fields connects, (fields, fields, |out|, |in|).
                    rows, columns = pair[0][:, None, :, None], pair[1][None, :, None, :]
                    places[number] = (rows * self._size[1] + columns).reshape(-1)
                    pairs.append(pair)
        self._missing = self._size[0] * self._size[1] - sum(places[number].size for number in places)
        self.set_constant("elements", elements)
        self.set_constant("duals", duals)
        self.set_constant("places", places)
        self.set_constant("order", pair_rows(pairs, self._size))

    def forward(self, kernel: Tensor) -> Tensor:
        """Return the mean of a map, in the same shape; further axes are a batch of maps."""
        entries = kernel.reshape(self._size[0] * self._size[1], -1)
        products = []
        for number, duals in self.duals.items():
            of_pair = entries.index_select(0, self.places[number]).view(-1, duals.shape[1], entries.shape[1])
            # (pairs of fields, maps, |out|·|in|)
            mean = of_pair.mT @ duals.mT @ self.elements[number]
            products.append(mean.mT.reshape(-1, entries.shape[1]))
        if self._missing or not products:
            products.append(entries.new_zeros(self._missing, entries.shape[1]))
        return torch.cat(products).index_select(0, self.order).view(kernel.shape)


def intertwiners(in_field: Representation, out_field: Representation) -> tuple[Array, Array]:
    """Return a basis of the equivariant maps between two fields and its duals, (B, |out|, |in|) each.

    The mean of a map W over the group is the sum of the elements times ⟨dual, W⟩.
    """
    elements, duals = [], []
    ins, outs = _places(in_field), _places(out_field)
    for kind in [kind for kind in ins if kind in outs]:
        endomorphisms = np.asarray(in_field.group.irrep(*kind).endomorphism_basis(), dtype=np.float64)
        # The elements are orthogonal to each other.
        endomorphisms = endomorphisms / np.linalg.norm(endomorphisms, axis=(1, 2), keepdims=True)
        for row in outs[kind]:
            for column in ins[kind]:
                left, right = out_field.change_of_basis[:, row], in_field.change_of_basis_inv[column]
                elements.append(left @ endomorphisms @ right)
                left, right = out_field.change_of_basis_inv[row].T, in_field.change_of_basis[:, column].T
                duals.append(left @ endomorphisms @ right)
    if not elements:
        return np.zeros((0, out_field.size, in_field.size)), np.zeros((0, out_field.size, in_field.size))
    return np.concatenate(elements), np.concatenate(duals)


def _irreps_apart(fields: Sequence[Representation]) -> list[Representation]:
    """Return fields with the irreps of those that are no more than irreps side by side, which makes small pairs."""
    apart: list[Representation] = []
    for field in fields:
        is_sum = np.array_equal(field.change_of_basis, np.eye(field.size))
        apart += [field.group.irrep(*kind) for kind in field.irreps] if is_sum else [field]
    return apart


def _places(field: Representation) -> dict[Any, list[slice]]:
    """Return the places of the copies of each irrep among the irreps of a field."""
    places: dict[Any, list[slice]] = {}
    start = 0
    for kind in field.irreps:
        size = field.group.irrep(*kind).size
        places.setdefault(kind, []).append(slice(start, start + size))
        start += size
    return places
