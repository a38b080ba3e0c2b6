"""Field types → the blocks that steering acts on, permutation fields and irreps.

A regular or quotient field is kept as it is, because its matrices permute the channels. Every other field is
taken apart into irreps by its change of basis. Equal blocks are gathered, so that a type of many fields costs
a few large operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from escnn.group import Representation
from numpy.typing import NDArray
from scipy.linalg import block_diag

from .elements import GroupSample


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
        """True if the channels are group elements or cosets."""
        return self.image is not None

    def element_means(self) -> NDArray[np.float64]:
        """Return the mean over each channel, an element or a coset, of a permutation field, (size, M)."""
        members = np.equal(np.asarray(self.image), np.arange(self.size)[:, None])
        return members / members.sum(axis=1, keepdims=True)


class FieldStructure:
    """The blocks of a list of representations and how channels are assembled from them."""

    def __init__(self, representations: Sequence[Representation], sample: GroupSample) -> None:
        splits = {field: _split(field, sample) for field in dict.fromkeys(representations)}
        order = [block for field in representations for block in splits[field][0]]
        self.blocks = list({block.name: block for block in order}.values())
        # The channels of the fields of each block in the basis of permutations and irreps, (fields, size).
        self.channels = list(channels_by_name(order).values())
        self.size = sum(block.size for block in order)
        # The change from that basis.
        self.basis: NDArray[np.float64] | None = None
        self.basis_inverse: NDArray[np.float64] | None = None
        if any(not np.array_equal(basis, np.eye(len(basis))) for _, basis, _ in splits.values()):
            self.basis = block_diagonal([splits[field][1] for field in representations])
            self.basis_inverse = block_diagonal([splits[field][2] for field in representations])


def channels_by_name(fields: Sequence[Representation] | Sequence[Block]) -> dict[str, NDArray[np.int64]]:
    """Return the channel indices of all fields of each name, (fields, size)."""
    channels: dict[str, list[range]] = {}
    start = 0
    for field in fields:
        channels.setdefault(field.name, []).append(range(start, start + field.size))
        start += field.size
    return {name: np.array(ranges, dtype=np.int64) for name, ranges in channels.items()}


def pair_rows(
    pairs: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], shape: tuple[int, int]
) -> NDArray[np.int64]:
    """Return for each pair of channels, (o, a) and (i, b), its row among the rows (o, i, a, b) of pairs of kinds."""
    rows = np.full(shape, -1, dtype=np.int64)
    start = 0
    for outs, ins in pairs:
        numbers = start + np.arange(outs.size * ins.size).reshape(len(outs), len(ins), outs.shape[1], ins.shape[1])
        rows[np.ix_(outs.ravel(), ins.ravel())] = numbers.transpose(0, 2, 1, 3).reshape(outs.size, ins.size)
        start += numbers.size
    # The rows of channels in none of the pairs follow.
    rows[rows < 0] = np.arange(start, rows.size)
    return rows.ravel()


def _split(
    representation: Representation, sample: GroupSample
) -> tuple[list[Block], NDArray[np.float64], NDArray[np.float64]]:
    """Return the blocks of one field, its change of basis from them, and the inverse."""
    identity = np.eye(representation.size)
    is_finite = representation.size > 1 and not representation.group.continuous
    if is_finite and (permutation := _permutation_block(representation, sample)) is not None:
        return [permutation], identity, identity
    irreps = [representation.group.irrep(*identifier) for identifier in representation.irreps]
    blocks = [Block(f"irrep {irrep.id}", irrep.size, sample.matrices(irrep), None, irrep) for irrep in irreps]
    basis = np.asarray(representation.change_of_basis, dtype=np.float64)
    inverse = np.asarray(representation.change_of_basis_inv, dtype=np.float64)
    if np.allclose(basis, identity, rtol=0, atol=1e-12):  # escnn's own rounding
        return blocks, identity, identity
    return blocks, basis, inverse


def _permutation_block(representation: Representation, sample: GroupSample) -> Block | None:
    """Return the block of a transitive permutation of the channels; None if the field is not one."""
    matrices = sample.matrices(representation)
    rows = permuted_rows(matrices)
    if rows is None or len(set(rows[:, 0].tolist())) < representation.size:
        return None
    return Block(f"permutation {rows[:, 0].tolist()}", representation.size, matrices.round(), rows[:, 0])


def permuted_rows(matrices: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Return the row of the 1 in each column of permutation matrices (…, n, n); None for other matrices."""
    # escnn computes these matrices from irreps: 0 and 1 up to rounding.
    exact = np.abs(matrices.round())
    is_permutation = (exact.sum(axis=-1) == 1).all() and (exact.sum(axis=-2) == 1).all()
    return exact.argmax(axis=-2) if is_permutation and np.allclose(matrices, exact, rtol=0, atol=1e-6) else None


def block_diagonal(matrices: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the block-diagonal matrix of some square matrices."""
    return block_diag(*matrices).astype(np.float64)


def channel_elements(
    fields: Sequence[Representation], sample: GroupSample
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the mean over the elements of each channel, (C, M), or over all, and whether it has elements, (C,)."""
    rows, has_any = [], []
    for field in fields:
        blocks = FieldStructure([field], sample).blocks
        has_elements = len(blocks) == 1 and blocks[0].is_permutation
        of_all = np.full((field.size, len(sample)), 1 / len(sample))
        rows.append(blocks[0].element_means() if has_elements else of_all)
        has_any += [has_elements] * field.size
    return np.concatenate(rows), np.array(has_any)
