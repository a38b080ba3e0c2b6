"""Field types → the blocks that steering acts on, permutation fields and irreps; and the mean of kernels over elements.

A regular or quotient field is kept as it is, because its matrices permute the channels. Every other field is
taken apart into irreps by its change of basis. Equal blocks are gathered, so that a type of many fields costs
a few large operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from escnn.group import GroupElement, Representation
from escnn.nn import FieldType
from numpy.typing import NDArray
from torch import Tensor

from .elements import GroupSample
from .exact_constants import ExactConstants

# Entries of a representation below this are rounding.
_ROUNDING = 1e-13


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
        if not angle or self.irrep is None or not self.irrep.group.continuous:
            return self.matrices
        group = self.irrep.group
        rotation = group.element((0, angle) if group.order() == -1 and group.name == "O(2)" else angle, "radians")
        turned: NDArray[np.float64] = self.matrices @ np.asarray(self.irrep(rotation), dtype=np.float64)
        return turned

    def element_means(self) -> NDArray[np.float64]:
        """Return the mean over the elements of each channel of a permutation field, one or a coset, (size, M)."""
        members = np.equal(np.asarray(self.image), np.arange(self.size)[:, None])
        means: NDArray[np.float64] = members / members.sum(axis=1, keepdims=True)
        return means


class FieldStructure:
    """The blocks of a list of representations and how channels are assembled from them."""

    def __init__(self, representations: Sequence[Representation], sample: GroupSample) -> None:
        parts = {field: _split(field, sample) for field in dict.fromkeys(representations)}
        order = [block for field in representations for block in parts[field][0]]
        self.blocks = list({block.name: block for block in order}.values())
        # The channels of the fields of each block in the basis of permutations and irreps, (fields, size).
        self.channels = list(channels_by_name(order).values())
        self.size = sum(block.size for block in order)
        # The change from that basis.
        self.basis: NDArray[np.float64] | None = None
        self.basis_inverse: NDArray[np.float64] | None = None
        if any(not np.array_equal(basis, np.eye(len(basis))) for _, basis, _ in parts.values()):
            self.basis = block_diagonal([parts[field][1] for field in representations])
            self.basis_inverse = block_diagonal([parts[field][2] for field in representations])


def channels_by_name(fields: Sequence[Representation] | Sequence[Block]) -> dict[str, NDArray[np.int64]]:
    """Return the numbers of the channels of all fields of each name, (fields, size), where they stand side by side."""
    found: dict[str, list[range]] = {}
    start = 0
    for field in fields:
        found.setdefault(field.name, []).append(range(start, start + field.size))
        start += field.size
    return {name: np.array(ranges, dtype=np.int64) for name, ranges in found.items()}


def pair_rows(
    pairs: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], shape: tuple[int, int]
) -> NDArray[np.int64]:
    """Return the row of each pair of channels, output first, among the rows (o, i, a, b) of pairs of kinds of fields.

    The pairs are channels of the output (o, a) and of the input (i, b). The rows of channels in none of them follow.
    """
    rows = np.full(shape, -1, dtype=np.int64)
    start = 0
    for outs, ins in pairs:
        numbers = start + np.arange(outs.size * ins.size).reshape(len(outs), len(ins), outs.shape[1], ins.shape[1])
        rows[np.ix_(outs.ravel(), ins.ravel())] = numbers.transpose(0, 2, 1, 3).reshape(outs.size, ins.size)
        start += numbers.size
    rows[rows < 0] = np.arange(start, rows.size)
    return rows.ravel()


def _split(
    representation: Representation, sample: GroupSample
) -> tuple[list[Block], NDArray[np.float64], NDArray[np.float64]]:
    """Blocks of one field, its change of basis from them and the inverse."""
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
    return torch.block_diag(*[torch.from_numpy(np.asarray(matrix, dtype=np.float64)) for matrix in matrices]).numpy()


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


class GroupAverage(ExactConstants):
    """The map K → mean_h ρ_out(h) K(h⁻¹d) ρ_in(h)⁻¹ of kernels (…, C_out, C_in, T), h in a subgroup."""

    steered: Tensor
    left: Tensor
    right: Tensor

    def __init__(
        self,
        in_fields: Sequence[Representation],
        out_fields: Sequence[Representation],
        symmetries: Sequence[tuple[GroupElement, list[int]]],
    ) -> None:
        super().__init__()
        self.set_constant("steered", np.array([steered for _, steered in symmetries], dtype=np.int64))
        left = [block_diagonal([field(element) for field in out_fields]) for element, _ in symmetries]
        right = [block_diagonal([field(~element) for field in in_fields]) for element, _ in symmetries]
        self.set_constant("left", np.stack(left))
        self.set_constant("right", np.stack(right))

    def forward(self, kernel: Tensor) -> Tensor:
        """Return the mean of a kernel, in the same shape."""
        return _mean(kernel, self.left, self.steered, self.right)

    def by_blocks(self, kernels: Tensor) -> Tensor:
        """Return the mean of many kernels (B, C_out, C_in, T) in double precision, most entries of which are 0.

        Only channels that the elements mix are looked at together. Of fields that are sums of irreps these are few.
        """
        left, right = self.exact("left"), self.exact("right")
        mean = torch.zeros_like(kernels)
        for rows in _mixed(left):
            for columns in _mixed(right):
                part = kernels[:, rows[:, None], columns]
                some = part.flatten(1).any(1).nonzero().flatten()
                if len(some):
                    matrices = left[:, rows[:, None], rows], self.steered, right[:, columns[:, None], columns]
                    mean[some[:, None, None], rows[:, None], columns] = _mean(part[some], *matrices)
        return mean


def _mean(kernel: Tensor, left: Tensor, steered: Tensor, right: Tensor) -> Tensor:
    """Return the mean over elements of a kernel (…, C_out, C_in, T), given their matrices and how they move taps."""
    # The taps first, as matrices of channels.
    taps = kernel.movedim(-1, 0).contiguous()
    total = torch.zeros_like(taps)
    for of_out, places, of_in in zip(left, steered, right, strict=True):
        total = total + of_out @ taps[places] @ of_in
    return (total / len(steered)).movedim(0, -1)


def _mixed(matrices: Tensor) -> list[Tensor]:
    """Return the numbers of the channels that matrices (M, C, C) mix with each other, of each such set."""
    mixes = (matrices.abs() > _ROUNDING).any(0) | torch.eye(matrices.shape[-1], dtype=torch.bool)
    reached = (mixes | mixes.T).double()
    while not torch.equal(further := (reached @ reached).clamp_max(1), reached):
        reached = further
    return [row.nonzero().flatten() for row in reached.unique(dim=0)]


class InvariantBias(ExactConstants):
    """The map from a value for each trivial irrep, in ``R2Conv``'s order, to the bias of each channel."""

    expansion: Tensor

    def __init__(self, out_type: FieldType) -> None:
        super().__init__()
        # The columns of the change of basis of all fields together are those of irreps, one after the other.
        irreps = [out_type.fibergroup.irrep(*name) for name in out_type.irreps]
        is_trivial = np.repeat([irrep.is_trivial() for irrep in irreps], [irrep.size for irrep in irreps])
        self.dimension = int(is_trivial.sum())
        # Not FieldType.change_of_basis, which calls what newer releases of SciPy warn of.
        whole = block_diagonal([field.change_of_basis for field in out_type.representations])
        self.set_constant("expansion", whole[:, is_trivial])

    def forward(self, values: Tensor) -> Tensor:
        """Return the bias of each channel, (C,), for the values (dimension,)."""
        return self.expansion @ values


class OrthogonalBasis(ExactConstants):
    """The map K → B_out⁻¹ K B_in of kernels (C_out, C_in/groups, k, k), where B takes irreps to the basis of fields."""

    def __init__(self, in_fields: Sequence[Representation], out_fields: Sequence[Representation]) -> None:
        super().__init__()
        # Many fields are of few representations.
        is_orthogonal = {}
        for number, field in {id(field): field for field in (*in_fields, *out_fields)}.items():
            basis = np.asarray(field.change_of_basis, dtype=np.float64)
            # escnn computes these matrices to rounding of float32.
            is_orthogonal[number] = np.allclose(basis.T @ basis, np.eye(len(basis)), rtol=0, atol=1e-6)
        self._is_needed = not all(is_orthogonal.values())
        if self._is_needed:
            left = [np.eye(f.size) if is_orthogonal[id(f)] else f.change_of_basis_inv for f in out_fields]
            right = [np.eye(f.size) if is_orthogonal[id(f)] else f.change_of_basis for f in in_fields]
            self.set_constant("left", block_diagonal(left))
            self.set_constant("right", block_diagonal(right))

    def forward(self, kernel: Tensor) -> Tensor:
        """Return B_out⁻¹ K B_in."""
        if not self._is_needed:
            return kernel
        return torch.einsum("ac,cd...,db->ab...", self.left, kernel, self.right)

    def adjoint(self, kernel: Tensor) -> Tensor:
        """Return B_out⁻ᵀ K B_inᵀ, the adjoint of :meth:`forward`: ⟨adjoint(K), L⟩ = ⟨K, forward(L)⟩."""
        if not self._is_needed:
            return kernel
        return torch.einsum("ca,cd...,bd->ab...", self.left, kernel, self.right)

    def energy(self, kernel: Tensor) -> Tensor:
        """Return ‖K‖², a tensor without dimensions."""
        return self(kernel).square().sum()
