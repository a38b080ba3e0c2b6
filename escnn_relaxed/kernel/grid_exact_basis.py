"""A basis that escnn sampled in float32, made exact to float64 on the grid of taps, with its inner products."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from escnn.group import GroupElement, Representation
from escnn.nn.modules.basismanager import SingleBlockBasisExpansion
from numpy.typing import NDArray
from torch import Tensor

from ..group.exact_constants import Constant

__all__ = ["GridExactBasis", "grid_exact_basis"]

Symmetries = list[tuple[GroupElement, list[int]]]

# Values of each element of a basis that make its fingerprint.
_FINGERPRINT = 1000
# escnn's samples and exact values differ by less than this, those of two bases by more.
_SAMPLED = 1e-5

# escnn keeps the sampled basis of a pair of representations for all layers. The exact basis is kept as long. The key is
# the identity, since escnn compares such modules by their values.
_PREPARED: dict[int, GridExactBasis] = {}


class GridExactBasis(Constant):
    """A basis (B, |A|, |B|, k²): escnn's own samples for dtypes below float64, and in float64 exact values.

    Both are large where fields are regular. So escnn's samples are not copied, and of exact values that are the same on
    orbits one of each orbit is kept.

    Args:
        samples: escnn's samples.
        values: exact values of the orbits of entries, (B, orbits).
        orbits: the number of the orbit of each entry, (|A|·|B|·k²).
        gram: inner products (B, B) of the elements.
        attributes: those of each element, as escnn gives them.

    Attributes:
        fingerprint: a number of the basis: another basis has another one.
    """

    def __init__(
        self,
        samples: Tensor,
        values: NDArray[np.float64],
        orbits: NDArray[np.int64],
        gram: NDArray[np.float64],
        attributes: list[dict[str, Any]],
    ) -> None:
        self._samples, self._version = samples, _version_of(samples)
        self._values, self._orbits = values, orbits
        self.gram = gram
        self.attributes = attributes
        self.fingerprint = _fingerprint(values, orbits)

    def at(self, dtype: torch.dtype) -> Tensor:
        """Return the values that a buffer of a dtype rounds."""
        if dtype == torch.float64:
            return torch.from_numpy(self._values[:, self._orbits]).view(self._samples.shape)
        if _version_of(self._samples) != self._version:
            # A state that an R3Conv loads is written over the samples that it shares, and may be of another basis.
            exact = self.at(torch.float64)
            if not torch.allclose(self._samples.double(), exact, rtol=0, atol=_SAMPLED):
                self._samples = exact.float()
            self._version = _version_of(self._samples)
        return self._samples

    def __getstate__(self) -> dict[str, Any]:
        # Where this is unpickled, writes are counted anew.
        return {**vars(self), "_samples": self.at(torch.float32)}


def _version_of(tensor: Tensor) -> int:
    """Return a number that grows with each write to a tensor."""
    return -1 if tensor.is_inference() else tensor._version


def grid_exact_basis(
    block: Any,
    points: NDArray[np.float64],
    in_field: Representation,
    out_field: Representation,
    symmetries: Callable[[], Symmetries],
) -> GridExactBasis:
    """Return the exact basis of a block that escnn sampled, made once for each block.

    Args:
        block: escnn's ``SingleBlockBasisExpansion``.
        points: the points at which it is sampled, in escnn's order.
        in_field: representation of its input.
        out_field: representation of its output.
        symmetries: returns the result of :func:`~escnn_relaxed.group.elements.grid_symmetries`.
    """
    if id(block) not in _PREPARED:
        _PREPARED[id(block)] = _prepared(block, points, in_field, out_field, symmetries())
        weakref.finalize(block, _PREPARED.pop, id(block), None)
    return _PREPARED[id(block)]


def _prepared(
    block: Any, points: NDArray[np.float64], in_field: Representation, out_field: Representation, symmetries: Symmetries
) -> GridExactBasis:
    """Return the exact basis of a block."""
    samples = _sampled(block, points)
    orbits = _orbits(in_field, out_field, symmetries)
    if orbits is None:
        exact = _grid_exact(samples.numpy().astype(np.float64, order="C"), in_field, out_field, symmetries)
        values, orbits = exact.reshape(len(exact), -1), np.arange(exact[0].size)
    else:
        values = _means_over(orbits, samples.numpy())
    gram = _gram(values, orbits, in_field, out_field)
    return GridExactBasis(samples, values, orbits, gram, [dict(element) for element in block.get_basis_info()])


def _sampled(block: Any, points: NDArray[np.float64]) -> Tensor:
    """Return escnn's samples; new ones where a network that shares the block was cast, which rounds or removes them."""
    sampled: Tensor = block.sampled_basis
    if not _is_intact(sampled):
        device = next((buffer.device for buffer in block.basis.buffers()), torch.device("cpu"))
        with device:
            sampled = SingleBlockBasisExpansion(block.basis, points, block._mask.cpu().numpy()).sampled_basis.cpu()
    # Another object on the same memory: writes to it are counted together, and a cast in place does not reach it.
    return sampled.clone() if sampled.is_inference() else sampled.detach()


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


def _gram(
    values: NDArray[np.float64], orbits: NDArray[np.int64], in_field: Representation, out_field: Representation
) -> NDArray[np.float64]:
    """Return the inner products of the elements of a basis where ρ is orthogonal, (B, B)."""
    left, right = out_field.change_of_basis_inv, in_field.change_of_basis.T
    if all(np.allclose(of @ of.T, np.eye(len(of)), rtol=0, atol=1e-12) for of in (left, right)):
        orthogonal = values * np.sqrt(np.bincount(orbits))
    else:
        basis = values[:, orbits].reshape(len(values), len(left), len(right), -1)
        turned = right[None, None] @ (left @ basis.transpose(0, 3, 1, 2)).swapaxes(2, 3)
        orthogonal = turned.reshape(len(basis), -1)
    gram: NDArray[np.float64] = orthogonal @ orthogonal.T
    return gram


def _grid_exact(
    basis: NDArray[np.float64],
    in_field: Representation,
    out_field: Representation,
    symmetries: Symmetries,
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


def _orbits(in_field: Representation, out_field: Representation, symmetries: Symmetries) -> NDArray[np.int64] | None:
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
    """Return the means of a basis (B, |A|, |B|, k²) over orbits of its entries, (B, orbits).

    They are the values of its average over the group.
    """
    order = np.argsort(orbits, kind="stable")
    starts = np.flatnonzero(np.diff(orbits[order], prepend=-1))
    sizes = np.diff(np.append(starts, len(order)))
    elements = (element.ravel()[order].astype(np.float64) for element in basis)
    return np.stack([np.add.reduceat(element, starts) / sizes for element in elements])
