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

from ..group.fields import permuted_rows
from ..group.linear_maps import GroupAverage

Symmetries = list[tuple[GroupElement, list[int]]]

# Numbers in a basis above which one value of each orbit of its entries is kept: 4 MB in float32.
_LARGE = 2**20
# Values of each element of a basis that make its fingerprint.
_FINGERPRINT = 1000


class GridExactBasis(NamedTuple):
    """A basis (B, |A|, |B|, taps) that escnn sampled in float32, exact to float64."""

    values: NDArray[np.float64]  # (B, |A|, |B|, taps), or (B, orbits) with the values that orbits of entries share
    single: NDArray[np.float32] | None  # escnn's samples, for dtypes below float64; None beside values of orbits
    orbits: NDArray[np.int64] | None  # the number of the orbit of each entry, (|A|·|B|·taps); None beside values of all
    fingerprint: float  # another basis has another one
    attributes: list[dict[str, Any]]  # those of each element, as escnn gives them


# escnn keeps the sampled basis of a pair of representations for all layers. The exact basis is kept as long. The key is
# the identity, since escnn compares such modules by their values.
_PREPARED: dict[int, GridExactBasis] = {}


def grid_exact_basis(
    block: Any,
    points: NDArray[np.float64],
    in_field: Representation,
    out_field: Representation,
    symmetries: Callable[[], Symmetries],
) -> GridExactBasis:
    """Return the exact basis of escnn's ``SingleBlockBasisExpansion``, sampled at points, made once for each block."""
    if id(block) in _PREPARED:
        return _PREPARED[id(block)]
    single = _sampled(block, points)
    on_grid = symmetries()
    orbits = _orbits(in_field, out_field, on_grid)
    is_large = orbits is not None and single.size > _LARGE
    if orbits is None:
        # escnn samples in float32 and is equivariant to 1e-7. The average is equivariant to float64.
        average = GroupAverage([in_field], [out_field], on_grid)
        exact = average.by_blocks(torch.from_numpy(single.astype(np.float64))).numpy()
        values, orbits = exact.reshape(len(exact), -1), np.arange(exact[0].size)
    else:
        values = _means_over(orbits, single)
    facts = _fingerprint(values, orbits), [dict(element) for element in block.get_basis_info()]
    if is_large:
        found = GridExactBasis(values, None, orbits, *facts)
    else:
        # In C order, so that layers share it.
        found = GridExactBasis(values.take(orbits, axis=1).reshape(single.shape), single, None, *facts)
    _PREPARED[id(block)] = found
    weakref.finalize(block, _PREPARED.pop, id(block), None)
    return found


def _sampled(block: Any, points: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return escnn's samples; new ones where a network that shares the block was cast, which rounds or removes them."""
    sampled = block.sampled_basis
    if not _is_intact(sampled):
        device = next((buffer.device for buffer in block.basis.buffers()), torch.device("cpu"))
        with device:
            sampled = SingleBlockBasisExpansion(block.basis, points, block._mask.cpu().numpy()).sampled_basis.cpu()
    return sampled.numpy().copy()


def _is_intact(sampled: Tensor) -> bool:
    """Whether samples are in single precision, use it, and have the size that escnn gives them, about one."""
    if sampled.dtype != torch.float32 or sampled.device.type != "cpu":
        return False
    if any(torch.equal(sampled.to(dtype).float(), sampled) for dtype in (torch.float16, torch.bfloat16)):
        return False
    energy = sampled.square().sum((1, 2, 3))
    return bool(((energy > 0.01) & (energy < 10)).all())


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
