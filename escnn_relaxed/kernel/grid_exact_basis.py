"""A basis that escnn sampled in float32, made exact to float64 on the grid of taps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from escnn.group import GroupElement, Representation
from escnn.nn.modules.basismanager import SingleBlockBasisExpansion
from numpy.typing import NDArray
from torch import Tensor

from ..checks import warn_once
from ..group.fields import permuted_rows
from ..group.intertwiners import NearestIntertwiner
from ..group.linear_maps import GroupAverage
from ..on_escnn.sampled_basis import in_float32_and_main_memory, on_device

Symmetries = list[tuple[GroupElement, list[int]]]

# Numbers in a basis above which one value of each orbit of its entries is kept: 4 MB in float32.
_LARGE = 2**20
# Samples of the same basis in single precision differ by less, and errors of samples above this are warned of.
_SAME, _FAR = 1e-5, 1e-2
# A sampled basis is kept by orbits where its entries are its samples but for this.
_ALIKE = 1e-4
# Values of each element of a basis that make its fingerprint.
_FINGERPRINT = 1000


class GridExactBasis(NamedTuple):
    """A basis (B, |A|, |B|, taps) that escnn sampled in float32, exact to float64."""

    values: NDArray[np.float64]  # (B, |A|, |B|, taps), or (B, orbits) with the values that orbits of entries share
    single: NDArray[np.float32] | None  # escnn's samples, for dtypes below float64; None beside values of orbits
    orbits: NDArray[np.int64] | None  # the number of the orbit of each entry, (|A|·|B|·taps); None beside values of all
    fingerprint: float  # another basis has another one
    attributes: list[dict[str, Any]]  # those of each element, as escnn gives them

    def is_near(self, samples: Tensor) -> bool:
        """Return whether samples, in whatever precision a network holds them, are these values but for rounding."""
        held = samples.detach().double().cpu().numpy().reshape(len(samples), -1)
        near = max(_SAME, torch.finfo(samples.dtype).eps * float(np.abs(held).max()))
        exact = self.values.reshape(len(self.values), -1)
        alternatives: list[tuple[NDArray[Any], NDArray[np.int64] | None]] = [(exact, self.orbits)]
        if self.single is not None:
            alternatives.append((self.single.reshape(exact.shape), None))
        return any(_largest_difference(held, *of) < near for of in alternatives)


# escnn keeps the sampled basis of a pair of representations for all layers, and the exact one is kept as long, by the
# identity of the block, since escnn compares such modules by their values. What a network loads is written over the
# samples of all layers that share the block. The exact basis of such samples is kept beside the samples.
_PREPARED: dict[int, GridExactBasis] = {}
_OVERWRITTEN: dict[int, tuple[NDArray[np.float32], GridExactBasis]] = {}


def grid_exact_basis(
    block: Any,
    points: NDArray[np.float64],
    in_field: Representation,
    out_field: Representation,
    symmetries: Callable[[], Symmetries],
    as_held: bool = False,
) -> GridExactBasis:
    """Return the exact basis of escnn's ``SingleBlockBasisExpansion``, made once for each block.

    It is the basis that escnn samples at the points. With ``as_held`` it is that of the samples that the block holds
    now, which a loaded state may have replaced by another basis.
    """
    fields = in_field, out_field
    if id(block) not in _PREPARED:
        _PREPARED[id(block)] = _exact(_sampled(block, points), block, *fields, symmetries())
        weakref.finalize(block, _forget, id(block))
    own, held = _PREPARED[id(block)], block.sampled_basis
    if not as_held or held.is_meta or own.is_near(held):
        return own
    samples = held.detach().float().cpu().numpy().copy()
    known, found = _OVERWRITTEN.get(id(block), (None, own))
    if known is None or not np.array_equal(known, samples):
        found = _exact(samples, block, *fields, symmetries())
        _OVERWRITTEN[id(block)] = samples, found
    return found


def _forget(block_id: int) -> None:
    _PREPARED.pop(block_id, None)
    _OVERWRITTEN.pop(block_id, None)


def _sampled(block: Any, points: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the samples of a block as escnn makes them; those that it holds may be rounded, replaced or removed."""
    device = next((buffer.device for buffer in block.basis.buffers()), torch.device("cpu"))
    with in_float32_and_main_memory(), on_device(device):
        samples = SingleBlockBasisExpansion(block.basis, points, block._mask.cpu().numpy()).sampled_basis
    return samples.cpu().numpy()


def _exact(
    single: NDArray[np.float32], block: Any, in_field: Representation, out_field: Representation, on_grid: Symmetries
) -> GridExactBasis:
    """Return the exact basis of the samples (B, |A|, |B|, taps) of a block."""
    orbits, is_large = _orbits(in_field, out_field, on_grid), False
    if orbits is None:
        # escnn samples in float32 and is equivariant to 1e-7. The average is equivariant to float64.
        samples = torch.from_numpy(single.astype(np.float64))
        if samples.shape[-1] == 1 and in_field.group.continuous:
            # The elements that map the tap at the centre to itself are all, and not those of a sample.
            average = NearestIntertwiner([in_field], [out_field]).double()
            exact = average(samples.movedim(0, -1).squeeze(2)).movedim(-1, 0).unsqueeze(-1).numpy()
        else:
            exact = GroupAverage([in_field], [out_field], on_grid).by_blocks(samples).numpy()
        values, orbits = exact.reshape(len(exact), -1), np.arange(exact[0].size)
    else:
        values, is_large = _means_over(orbits, single), single.size > _LARGE
    error = _largest_difference(single.reshape(len(single), -1), values, orbits)
    if error > _FAR:
        warn_once(
            f"escnn samples the steerable basis from {in_field.name} to {out_field.name} with errors of up to "
            f"{error:.2g} at taps that are so far apart: some of its elements are 0 there but for rounding. R2Conv, "
            f"and this layer in single precision, break the equivariance by as much; in double precision this layer "
            f"does not, and computes other numbers. A frequencies_cutoff of about 3 / dilation leaves them out"
        )
    facts = _fingerprint(values, orbits), [dict(element) for element in block.get_basis_info()]
    if is_large and error < _ALIKE:
        return GridExactBasis(values, None, orbits, *facts)
    # In C order, so that layers share it.
    return GridExactBasis(values.take(orbits, axis=1).reshape(single.shape), single, None, *facts)


def _largest_difference(entries: NDArray[Any], values: NDArray[Any], orbits: NDArray[np.int64] | None = None) -> float:
    """Return the largest difference of entries (B, …) and values, which may be those of their orbits."""
    # One element after the other, since a basis may be large.
    pairs = zip(entries, values if orbits is None else (of[orbits] for of in values), strict=True)
    return max(float(np.abs(one - other).max()) for one, other in pairs)


def _fingerprint(values: NDArray[np.float64], orbits: NDArray[np.int64]) -> float:
    """Return the mean of a sample of the entries of a basis, with weights that no symmetry shares."""
    sample = values[:, orbits[:: max(1, len(orbits) // _FINGERPRINT)]].ravel()
    scale = float(np.sqrt(np.square(sample).sum())) or 1.0
    return round(float(sample @ np.cos(np.sqrt(2) * np.arange(len(sample)) + 1)) / scale, 6)


def _orbits(in_field: Representation, out_field: Representation, symmetries: Symmetries) -> NDArray[np.int64] | None:
    """Return the number of the orbit of each entry (|A|·|B|·k²) between permutation fields; None between others."""
    labels = np.arange(out_field.size * in_field.size * len(symmetries[0][1])) if symmetries else np.zeros(0)
    entries = labels.reshape(out_field.size, in_field.size, -1)
    for element, steered in symmetries:
        rows, columns = permuted_rows(out_field(~element)), permuted_rows(in_field(~element))
        if rows is None or columns is None:
            return None
        labels = np.minimum(labels, entries[np.ix_(rows, columns, np.array(steered))].ravel())
    return np.unique(labels, return_inverse=True)[1]


def _means_over(orbits: NDArray[np.int64], basis: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the means of a basis (B, |A|, |B|, k²) over orbits of its entries, (B, orbits)."""
    sizes = np.bincount(orbits)
    return np.stack([np.bincount(orbits, element.ravel()) / sizes for element in basis])
