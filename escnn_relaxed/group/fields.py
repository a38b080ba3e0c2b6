"""Field types → the blocks that steering acts on: permutation fields and irreps.

A regular or quotient field is kept as it is, because its matrices permute the channels. Every other field is
taken apart into irreps by its change of basis. Equal blocks are gathered, so that a type of many fields costs
a few large operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .elements import GroupSample

if TYPE_CHECKING:
    from escnn.group import Representation


@dataclass(frozen=True, eq=False)
class Block:
    """A representation that steering treats as a whole."""

    name: str
    size: int
    matrices: NDArray[np.float64]  # ρ(g) for each element of the sample, (M, size, size)
    image: NDArray[np.int64] | None  # of a permutation, the channel that g moves channel 0 to, (M,); None of an irrep
    irrep: Representation | None = None

    @property
    def is_permutation(self) -> bool:
        """Whether the channels are the group elements or cosets."""
        return self.image is not None

    def turned(self, angle: float) -> NDArray[np.float64]:
        """Return ρ(g r) of an irrep of a continuous group of the plane for each element, (M, size, size)."""
        if self.irrep is None or not self.irrep.group.continuous:
            return self.matrices
        group = self.irrep.group
        rotation = group.element((0, angle) if group.order() == -1 and group.name == "O(2)" else angle, "radians")
        turned: NDArray[np.float64] = self.matrices @ np.asarray(self.irrep(rotation), dtype=np.float64)
        return turned

    def element_means(self) -> NDArray[np.float64]:
        """Return the mean over the elements of each channel of a permutation field, one or a coset, (size, M)."""
        members = np.equal(np.asarray(self.image), np.arange(self.size)[:, None]).astype(np.float64)
        means: NDArray[np.float64] = members / members.sum(axis=1, keepdims=True)
        return means


class FieldStructure:
    """The blocks of a list of representations and how channels are assembled from them."""

    def __init__(self, representations: Sequence[Representation], sample: GroupSample) -> None:
        known: dict[str, Block] = {}
        order: list[str] = []
        bases: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        by_representation: dict[Representation, tuple[list[Block], NDArray[np.float64], NDArray[np.float64]]] = {}
        for representation in representations:
            if representation not in by_representation:
                by_representation[representation] = _split(representation, sample)
            blocks, basis, inverse = by_representation[representation]
            bases.append((basis, inverse))
            for block in blocks:
                known.setdefault(block.name, block)
                order.append(block.name)
        self.blocks = list(known.values())
        self.counts = [order.count(block.name) for block in self.blocks]
        self.size = sum(block.size * count for block, count in zip(self.blocks, self.counts, strict=True))
        # The position in block order of each channel in the basis of permutations and irreps, and the change from it.
        self.channels = self._channel_order(order)
        self.basis: NDArray[np.float64] | None = None
        self.basis_inverse: NDArray[np.float64] | None = None
        if any(not np.array_equal(basis, np.eye(len(basis))) for basis, _ in bases):
            self.basis = block_diagonal([basis for basis, _ in bases])
            self.basis_inverse = block_diagonal([inverse for _, inverse in bases])

    def block_ranges(self) -> list[slice]:
        """The places of the channels of all fields of each block in block order."""
        ends = np.cumsum([block.size * count for block, count in zip(self.blocks, self.counts, strict=True)]).tolist()
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def _channel_order(self, order: list[str]) -> NDArray[np.int64]:
        start = {block.name: place.start for block, place in zip(self.blocks, self.block_ranges(), strict=True)}
        sizes = {block.name: block.size for block in self.blocks}
        channels: list[int] = []
        for name in order:
            channels.extend(range(start[name], start[name] + sizes[name]))
            start[name] += sizes[name]
        return np.array(channels, dtype=np.int64)


def _split(
    representation: Representation, sample: GroupSample
) -> tuple[list[Block], NDArray[np.float64], NDArray[np.float64]]:
    """Blocks of one field, its change of basis from them and the inverse."""
    identity = np.eye(representation.size)
    if representation.size > 1 and not representation.group.continuous:
        permutation = _permutation_block(representation, sample)
        if permutation is not None:
            return [permutation], identity, identity
    irreps = [representation.group.irrep(*identifier) for identifier in representation.irreps]
    blocks = [Block(f"irrep {irrep.id}", irrep.size, sample.matrices(irrep), None, irrep) for irrep in irreps]
    basis = np.asarray(representation.change_of_basis, dtype=np.float64)
    inverse = np.asarray(representation.change_of_basis_inv, dtype=np.float64)
    if np.allclose(basis, identity, rtol=0, atol=1e-12):  # escnn's own rounding
        return blocks, identity, identity
    return blocks, basis, inverse


def _permutation_block(representation: Representation, sample: GroupSample) -> Block | None:
    """The block of a transitive permutation of the channels, None if the field is not one."""
    matrices = sample.matrices(representation)
    exact = matrices.round()
    # escnn computes these matrices from irreps: 0 and 1 up to rounding.
    if not np.allclose(matrices, exact, rtol=0, atol=1e-6):
        return None
    is_permutation = (exact >= 0).all() and (exact.sum(axis=1) == 1).all() and (exact.sum(axis=2) == 1).all()
    image = exact[:, :, 0].argmax(axis=1)
    if not is_permutation or len(set(image.tolist())) < representation.size:
        return None
    return Block(f"permutation {image.tolist()}", representation.size, exact, image)


def block_diagonal(matrices: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return one matrix with some square matrices along its diagonal."""
    size = sum(len(matrix) for matrix in matrices)
    result = np.zeros((size, size))
    start = 0
    for matrix in matrices:
        end = start + len(matrix)
        result[start:end, start:end] = matrix
        start = end
    return result


def channel_elements(
    fields: Sequence[Representation], sample: GroupSample
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the mean over each channel's elements, (C, M), over all where it has none; and whether it has, (C,)."""
    rows, has_any = [], []
    for field in fields:
        blocks = FieldStructure([field], sample).blocks
        has_elements = len(blocks) == 1 and blocks[0].is_permutation
        of_all = np.full((field.size, len(sample)), 1 / len(sample))
        rows.append(blocks[0].element_means() if has_elements else of_all)
        has_any += [has_elements] * field.size
    return np.concatenate(rows), np.array(has_any)
