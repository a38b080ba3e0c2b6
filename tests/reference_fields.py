"""Field types as the loop oracle sees them: fields, and the blocks that output weights are kept for."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from escnn.group import GroupElement, Representation


@dataclass(frozen=True)
class Block:
    """A permutation field, or one irrep of any other field."""

    kind: str
    size: int
    row: int  # its first row in the field's basis of irreps
    number: int  # its number among the blocks of this kind of the whole type


@dataclass(frozen=True)
class Field:
    """A field of a type."""

    representation: Representation
    blocks: list[Block]
    is_permutation: bool


class Fields:
    """The fields of a type; kinds of blocks are kept in the order in which they first occur."""

    def __init__(self, representations: list[Representation], elements: list[GroupElement]) -> None:
        self.fields: list[Field] = []
        counts: dict[str, int] = {}
        for representation in representations:
            permutation = permutation_kind(representation, elements)
            if permutation is None:
                irreps = [representation.group.irrep(*i) for i in representation.irreps]
                parts = [(f"irrep {irrep.id}", irrep.size) for irrep in irreps]
            else:
                parts = [(permutation, representation.size)]
            blocks, row = [], 0
            for kind, size in parts:
                blocks.append(Block(kind, size, row, counts.get(kind, 0)))
                counts[kind] = counts.get(kind, 0) + 1
                row += size
            self.fields.append(Field(representation, blocks, permutation is not None))
        self.kinds = list(counts)


def permutation_kind(representation: Representation, elements: list[GroupElement]) -> str | None:
    """Return a name for the kind of permutation field, None for a field that has no transitive permutation."""
    if representation.group.continuous or representation.size == 1:
        return None
    matrices = [matrix(representation, g) for g in elements]
    # escnn computes these matrices from irreps: 0 and 1 up to rounding.
    if any(np.abs(m - (m > 0.5)).max() > 1e-6 or ((m > 0.5).sum(axis=0) != 1).any() for m in matrices):
        return None
    images = [coset(representation, g) for g in elements]
    return f"permutation {images}" if len(set(images)) == representation.size else None


def coset(representation: Representation, element: GroupElement) -> int:
    """The channel that g moves channel 0 to: the coset of g."""
    return int(np.argmax(matrix(representation, element)[:, 0]))


@functools.cache
def matrix(representation: Representation, element: GroupElement) -> np.ndarray:
    """escnn's matrix, which it would put together of irreps at every call."""
    return np.array(representation(element), dtype=np.float64)
