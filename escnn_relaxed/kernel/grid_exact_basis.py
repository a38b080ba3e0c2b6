"""A basis that escnn sampled in float32, made exact to float64 on the grid of taps, with its inner products."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np
import torch
from escnn.group import GroupElement, Representation
from escnn.nn.modules.basismanager import SingleBlockBasisExpansion
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["GridExactBasis", "grid_exact_basis"]


class GridExactBasis(NamedTuple):
    """A basis (B, |A|, |B|, k²) as escnn samples it, the same to float64, its inner products (B, B), and a number.

    The number is that of the basis: another basis has another one.
    """

    single: NDArray[np.float32]
    exact: NDArray[np.float64]
    gram: NDArray[np.float64]
    fingerprint: float


# Values of each element of a basis that make its fingerprint.
_FINGERPRINT = 1000

# escnn keeps the sampled basis of a pair of representations for all layers. The exact basis is kept as long. The key is
# the identity, since escnn compares such modules by their values.
_PREPARED: dict[int, GridExactBasis] = {}


def grid_exact_basis(
    block: Any,
    points: NDArray[np.float64],
    in_field: Representation,
    out_field: Representation,
    symmetries: list[tuple[GroupElement, list[int]]],
) -> GridExactBasis:
    """Return the exact basis of a block that escnn sampled, made once for each block.

    Args:
        block: escnn's ``SingleBlockBasisExpansion``.
        points: the points at which it is sampled, in escnn's order.
        in_field: representation of its input.
        out_field: representation of its output.
        symmetries: the result of :func:`~escnn_relaxed.group.elements.grid_symmetries`.
    """
    if id(block) not in _PREPARED:
        single = _sampled(block, points)
        orbits = _orbits(in_field, out_field, symmetries)
        if orbits is None:
            exact = _grid_exact(single.astype(np.float64), in_field, out_field, symmetries)
        else:
            exact = _means_over(orbits, single)
        gram = _gram(exact, in_field, out_field)
        _PREPARED[id(block)] = GridExactBasis(single, exact, gram, _fingerprint(exact))
        weakref.finalize(block, _PREPARED.pop, id(block), None)
    return _PREPARED[id(block)]


def _sampled(block: Any, points: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return escnn's samples; new ones where a network that shares the block was cast, which rounds or removes them."""
    sampled = block.sampled_basis
    if not _is_intact(sampled):
        device = next((buffer.device for buffer in block.basis.buffers()), torch.device("cpu"))
        with device:
            sampled = SingleBlockBasisExpansion(block.basis, points, block._mask.cpu().numpy()).sampled_basis.cpu()
    single: NDArray[np.float32] = sampled.numpy().copy()
    return single


def _is_intact(sampled: Tensor) -> bool:
    """Whether samples are in single precision, use it, and have the size that escnn gives them, about one."""
    if sampled.dtype != torch.float32 or sampled.device.type != "cpu":
        return False
    if any(torch.equal(sampled.to(dtype).float(), sampled) for dtype in (torch.float16, torch.bfloat16)):
        return False
    energy = sampled.square().sum((1, 2, 3))
    return bool(((energy > 0.01) & (energy < 10)).all())


def _fingerprint(basis: NDArray[np.float64]) -> float:
    """Return the mean of a sample of the values of a basis, with weights that no symmetry shares."""
    values = basis.reshape(len(basis), -1)
    sample = values[:, :: max(1, values.shape[1] // _FINGERPRINT)].ravel()
    scale = float(np.sqrt(np.square(sample).sum())) or 1.0
    return round(float(sample @ np.cos(np.sqrt(2) * np.arange(len(sample)) + 1)) / scale, 6)


def _gram(basis: NDArray[np.float64], in_field: Representation, out_field: Representation) -> NDArray[np.float64]:
    """Return the inner products of the elements of a basis (B, |A|, |B|, k²) where ρ is orthogonal, (B, B)."""
    left, right = out_field.change_of_basis_inv, in_field.change_of_basis.T
    if all(np.allclose(of @ of.T, np.eye(len(of)), rtol=0, atol=1e-12) for of in (left, right)):
        orthogonal = basis.reshape(len(basis), -1)
    else:
        turned = right[None, None] @ (left @ basis.transpose(0, 3, 1, 2)).swapaxes(2, 3)
        orthogonal = turned.reshape(len(basis), -1)
    gram: NDArray[np.float64] = orthogonal @ orthogonal.T
    return gram


def _grid_exact(
    basis: NDArray[np.float64],
    in_field: Representation,
    out_field: Representation,
    symmetries: list[tuple[GroupElement, list[int]]],
) -> NDArray[np.float64]:
    """Return the basis (B, |A|, |B|, k²) averaged over the elements that map the grid to itself.

    escnn samples in float32 and is equivariant to 1e-7. The average is equivariant to float64.
    """
    total = np.zeros_like(basis)
    for element, steered in symmetries:
        # ρ_out(g) K(g⁻¹d) ρ_in(g)⁻¹, with the taps first.
        kernel = out_field(element) @ basis[..., steered].transpose(0, 3, 1, 2) @ in_field(~element)
        total += kernel.transpose(0, 2, 3, 1)
    return total / len(symmetries)


def _orbits(
    in_field: Representation, out_field: Representation, symmetries: list[tuple[GroupElement, list[int]]]
) -> NDArray[np.int64] | None:
    """Return the number of the orbit of each entry (|A|·|B|·k²) between permutation fields; None between others."""
    labels = np.arange(out_field.size * in_field.size * len(symmetries[0][1])) if symmetries else np.zeros(0)
    entries = labels.reshape(out_field.size, in_field.size, -1)
    for element, steered in symmetries:
        rows, columns = _permutation(out_field(~element)), _permutation(in_field(~element))
        if rows is None or columns is None:
            return None
        labels = np.minimum(labels, entries[np.ix_(rows, columns, np.array(steered))].ravel())
    return np.unique(labels, return_inverse=True)[1]


def _permutation(matrix: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Return the row of the 1 in each column of a matrix that permutes, None of another."""
    exact = np.abs(matrix).round()
    is_permutation = np.allclose(matrix, exact, rtol=0, atol=1e-6) and (exact.sum(0) == 1).all()
    return exact.argmax(axis=0) if is_permutation and (exact.sum(1) == 1).all() else None


def _means_over(orbits: NDArray[np.int64], basis: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return a basis (B, |A|, |B|, k²) averaged over orbits of its entries, which is its average over a group."""
    order = np.argsort(orbits, kind="stable")
    starts = np.flatnonzero(np.diff(orbits[order], prepend=-1))
    sizes = np.diff(np.append(starts, len(order)))
    exact = np.empty(basis.shape)
    for values, result in zip(basis.reshape(len(basis), -1), exact.reshape(len(basis), -1), strict=True):
        result[:] = (np.add.reduceat(values[order].astype(np.float64), starts) / sizes)[orbits]
    return exact
