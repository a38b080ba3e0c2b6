"""escnn's numerical solutions, made the same in every process.

escnn takes representations apart by solving linear systems, whose solution is a space of embeddings: it keeps some
orthogonal basis of that space, which depends on random samples, on LAPACK and on the order in which layers were built,
and writes it to a cache on disk. Equal weights were other filters where another cache was filled. Here each space gets
the basis that follows from the space alone, however escnn came by it.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import escnn.group as escnn_group
import numpy as np
from escnn.group import Group, _clebsh_gordan, _numerical, groups_dict, irrep, representation
from escnn.group.groups import ico, o3group, octa, so3group
from escnn.kernels import wignereckart_solver
from numpy.typing import NDArray

Array = NDArray[np.float64]

# The first coordinate that holds this part of the largest one decides. No ratio of small algebraic numbers is near it,
# so that rounding does not.
_DECIDES = 0.618


def canonical_embeddings(embeddings: Array, endomorphisms: Array) -> Array:
    """Return embeddings (m, n, d) of an irrep that follow from their span alone, orthonormal."""
    count, rows, size = embeddings.shape
    spanned = np.einsum("mnd,edc->menc", embeddings, endomorphisms).reshape(-1, rows * size)
    complement = np.linalg.qr(spanned.T)[0]
    canonical = []
    for _ in range(count):
        shares = np.square(complement).sum(axis=1)
        pivot = int(np.argmax(shares >= _DECIDES * shares.max()))
        vector = complement @ complement[pivot] / np.sqrt(shares[pivot])
        embedding = vector.reshape(rows, size) * np.sqrt(size)
        canonical.append(embedding)
        taken = complement.T @ np.einsum("nd,edc->enc", embedding, endomorphisms).reshape(len(endomorphisms), -1).T
        complement = complement @ np.linalg.qr(taken, mode="complete")[0][:, len(endomorphisms) :]
    return np.array(canonical).reshape(embeddings.shape)


def use_canonical_solutions() -> None:
    """Make escnn use canonical solutions, and clear its cached ones."""
    tensor, restrict = _clebsh_gordan._clebsh_gordan_tensor, irrep._restrict_irrep
    if hasattr(tensor, "is_canonical"):
        return
    _clebsh_gordan._clebsh_gordan_tensor = _canonical(tensor, _canonical_tensor)
    _clebsh_gordan._find_tensor_decomposition = _canonical(
        _clebsh_gordan._find_tensor_decomposition, lambda found, *arguments, **keys: sorted(found)
    )
    irrep._restrict_irrep = _canonical(restrict, _canonical_restriction)
    of_so3 = _canonical(
        so3group._clebsh_gordan_tensor_so3, lambda found, *_: _as_embeddings(found, np.eye(found.shape[-1])[None])
    )
    so3group._clebsh_gordan_tensor_so3 = o3group._clebsh_gordan_tensor_so3 = of_so3
    decompose = representation.decompose_representation_finitegroup

    def canonical_decomposition(matrices: Mapping[Any, Array], group: Group) -> tuple[Array, list[tuple[Any, int]]]:
        with _own_random_numbers():
            basis, multiplicities = decompose(matrices, group)
        return _canonical_basis(basis, multiplicities, group), multiplicities

    representation.decompose_representation_finitegroup = canonical_decomposition
    # Null spaces are computed as where scikit-learn is not installed.
    _numerical.randomized_svd = None
    # The irreps of the cube and the icosahedron are loaded without a line on the console for each.
    for kept in (octa._build_octa_irrep_picklable, ico._build_ico_irrep_picklable):
        kept._verbose = 0
    _forget_solutions()


def _canonical(solve: Callable[..., Any], canonicalise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a solver that makes its solutions canonical and keeps them in this process."""

    @functools.cache
    def solved(*arguments: Any, **keys: Any) -> Any:
        with _own_random_numbers():
            return canonicalise(solve(*arguments, **keys), *arguments, **keys)

    @functools.wraps(solve)
    def canonical(*arguments: Any, **keys: Any) -> Any:
        solution = solved(*arguments, **keys)
        return solution.copy() if isinstance(solution, (np.ndarray, list)) else (solution[0].copy(), list(solution[1]))

    canonical.is_canonical = True  # type: ignore[attr-defined]
    return canonical


@contextlib.contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Seed escnn's solvers in a ``with`` block, and restore NumPy's generator after it."""
    state = np.random.get_state()
    np.random.seed(0)
    try:
        with warnings.catch_warnings():
            # One of escnn's solvers sends what another package prints to a file that nothing closes.
            warnings.simplefilter("ignore", ResourceWarning)
            yield
    finally:
        np.random.set_state(state)


def _canonical_tensor(coefficients: Array, first: Any, second: Any, third: Any, group_class: str, **keys: Any) -> Array:
    """Return Clebsch–Gordan coefficients (J, l, s, j) as canonical embeddings of j."""
    return _as_embeddings(coefficients, groups_dict[group_class]._generator(**keys).irrep(*third).endomorphism_basis())


def _as_embeddings(coefficients: Array, endomorphisms: Array) -> Array:
    rows, columns, count, size = coefficients.shape
    embeddings = coefficients.reshape(rows * columns, count, size).swapaxes(0, 1)
    return canonical_embeddings(embeddings, endomorphisms).swapaxes(0, 1).reshape(coefficients.shape)


def _canonical_restriction(
    restriction: tuple[Array, list[Any]], identifier: Any, subgroup: Any, group_class: str, **keys: Any
) -> tuple[Array, list[Any]]:
    """Return the change of basis that decomposes the restriction of an irrep, and the irreps of the subgroup."""
    basis, irreps = restriction
    group = groups_dict[group_class]._generator(**keys)
    part = group.subgroup(group._decode_subgroup_id_pickleable(subgroup))[0]
    multiplicities = [(name, irreps.count(name)) for name in dict.fromkeys(irreps)]
    return _canonical_basis(np.asarray(basis), multiplicities, part), irreps


def _canonical_basis(basis: Array, multiplicities: list[tuple[Any, int]], group: Group) -> Array:
    """Return a change of basis whose columns are canonical embeddings of irreps, copies of an irrep side by side."""
    columns, start = [], 0
    for identifier, count in multiplicities:
        part = group.irrep(*identifier)
        end = start + count * part.size
        embeddings = np.asarray(basis)[:, start:end].reshape(len(basis), count, part.size).swapaxes(0, 1)
        canonical = canonical_embeddings(embeddings, part.endomorphism_basis())
        columns.append(canonical.swapaxes(0, 1).reshape(len(basis), -1))
        start = end
    return np.concatenate(columns, axis=1)


def _forget_solutions() -> None:
    """Clear what escnn has built from earlier solutions."""
    for kind in (wignereckart_solver.WignerEckartBasis, wignereckart_solver.RestrictedWignerEckartBasis):
        kind._cached_instances.clear()
    for kind in vars(escnn_group).values():
        for group in _instances(kind):
            for known in (*group._irreps.values(), *group._representations.values()):
                known._cached_restricted_representations.clear()


def _instances(kind: object) -> list[Group]:
    """Return the groups of a class that escnn keeps."""
    one = getattr(kind, "_cached_group_instance", None)
    several = getattr(kind, "_cached_group_instances", one if isinstance(one, dict) else {})
    return [group for group in (one, *several.values()) if isinstance(group, Group)]
