"""Functions that distinguish the elements of any finite group: entries of its smallest irreps (float64 NumPy)."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from escnn.group import GroupElement, Representation
from numpy.typing import NDArray

from .points import Array

# Entries of irreps that differ by less are the same.
_SAME = 1e-6


class _Candidate(NamedTuple):
    """An irrep, and the set of elements that it does not distinguish from the held ones, as bits of a number."""

    irrep: Representation
    alike: int


def separating_irreps(
    irreps: Sequence[Representation], elements: Sequence[GroupElement], held: NDArray[np.bool_]
) -> list[Representation]:
    """Return the irreps of the least total size that distinguish the cosets Hg of a subgroup H.

    Args:
        irreps: those to take from, all of a finite group.
        elements: all elements.
        held: whether each is in H, (M,). Of the identity alone the irreps are a faithful representation.
    """
    target, every = _bits(held), (1 << len(elements)) - 1
    candidates = []
    for irrep in irreps:
        seen = fixed_rows(irrep, elements, held)
        candidates.append(_Candidate(irrep, _bits(np.abs(seen - seen[held][0]).max((1, 2)) < _SAME)))
    # Dijkstra's algorithm over sets of elements that are not told from H.
    order = itertools.count()
    queue: list[tuple[int, int, int, tuple[int, ...]]] = [(0, next(order), every, ())]
    known: set[int] = set()
    while queue:
        size, _, alike, numbers = heapq.heappop(queue)
        if alike == target:
            return [candidates[number].irrep for number in numbers]
        if alike in known:
            continue
        known.add(alike)
        for number, candidate in enumerate(candidates):
            if alike & candidate.alike != alike:
                ahead = (size + candidate.irrep.size, next(order), alike & candidate.alike, (*numbers, number))
                heapq.heappush(queue, ahead)
    raise ValueError("irreps must tell the elements of the group apart, and the elements held must be a subgroup")


def coset_coordinates(
    irreps: Sequence[Representation], elements: Sequence[GroupElement], held: NDArray[np.bool_]
) -> Array:
    """Return the coordinates of the cosets Hg: entries of irreps, and their products with irreps of size 1, (M, D)."""
    columns = []
    parts = [fixed_rows(irrep, elements, held) for irrep in irreps]
    for part in parts:
        # Squared distances are twice 1 − cos Δ for turns, as those of (cos θ, sin θ).
        columns.append(part.reshape(len(part), -1) / (1 if part.shape[1] == 1 else np.sqrt(2)))
    for one, other in itertools.combinations(range(len(parts)), 2):
        if 1 in (parts[one].shape[1], parts[other].shape[1]):
            columns.append((columns[one][:, :, None] * columns[other][:, None]).reshape(len(elements), -1))
    return np.concatenate(columns, axis=1) if columns else np.zeros((len(elements), 0))


def fixed_rows(irrep: Representation, elements: Sequence[GroupElement], held: NDArray[np.bool_]) -> Array:
    """Return mean_h ρ(h) ρ(g) of each element g, h in the held subgroup, which is the same at hg: (M, size, size)."""
    matrices = np.stack([np.asarray(irrep(element), dtype=np.float64) for element in elements])
    fixed: Array = matrices[held].mean(0) @ matrices
    return fixed


def _bits(flags: NDArray[np.bool_]) -> int:
    """Return flags as the bits of a number."""
    return sum(1 << int(number) for number in np.flatnonzero(flags))
