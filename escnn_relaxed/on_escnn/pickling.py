"""Corrections of escnn's global state: its SVD, and the pickling of groups and representations."""

from __future__ import annotations

import copyreg
from typing import Any

import escnn.group._numerical as escnn_numerical
import numpy as np
from escnn.group import (
    DirectProductGroup,
    Group,
    GroupElement,
    IrreducibleRepresentation,
    Representation,
    groups_dict,
)
from escnn.gspaces import GSpace0D, GSpace2D, GSpace3D
from escnn.nn import FieldType
from numpy.typing import NDArray


def use_scipy_svd() -> None:
    """Let escnn compute null spaces as it does where scikit-learn is not installed."""
    escnn_numerical.randomized_svd = None


# escnn's value for groups without a maximum frequency of their own.
_MAXIMUM_FREQUENCY = 6


def register_reducers() -> None:
    """Make everything that a field type on the plane or on space consists of picklable."""
    for group in groups_dict.values():
        copyreg.pickle(group, _reduce_group)
    copyreg.pickle(DirectProductGroup, _reduce_product)
    copyreg.pickle(IrreducibleRepresentation, _reduce_irrep)
    copyreg.pickle(Representation, _reduce_representation)
    copyreg.pickle(GroupElement, _reduce_element)
    copyreg.pickle(GSpace0D, _reduce_gspace_without_base)
    copyreg.pickle(GSpace2D, _reduce_gspace)
    copyreg.pickle(GSpace3D, _reduce_gspace_of_space)
    copyreg.pickle(FieldType, _reduce_field_type)


def _reduce_group(group: Group) -> tuple[Any, ...]:
    return _group, (type(group), dict(group._keys))


def _reduce_product(group: DirectProductGroup) -> tuple[Any, ...]:
    # Its keys lack its name, without which escnn builds another group.
    keys = next(key for key, known in DirectProductGroup._cached_group_instance.items() if known is group)
    return _group, (DirectProductGroup, dict(keys))


def _group(kind: type[Group], keys: dict[str, Any]) -> Group:
    # Where there is one group for all, escnn would ask for irreps up to a frequency and add them to it.
    known = getattr(kind, "_cached_group_instance", None)
    return known if isinstance(known, Group) and not keys else kind._generator(**keys)


def _reduce_irrep(irrep: IrreducibleRepresentation) -> tuple[Any, ...]:
    return _irrep, (irrep.group, irrep.id)


def _irrep(group: Group, identifier: tuple[Any, ...]) -> IrreducibleRepresentation:
    return group.irrep(*identifier)


def _reduce_representation(representation: Representation) -> tuple[Any, ...]:
    return _representation, (
        representation.group,
        representation.name,
        list(representation.irreps),
        np.asarray(representation.change_of_basis),
        np.asarray(representation.change_of_basis_inv),
        sorted(representation.supported_nonlinearities),
    )


def _representation(
    group: Group,
    name: str,
    irreps: list[tuple[Any, ...]],
    basis: NDArray[np.float64],
    inverse: NDArray[np.float64],
    nonlinearities: list[str],
) -> Representation:
    # Where the group has the representation, escnn's own object is taken: its modules compare it faster.
    known = group.representations.get(name)
    if known is not None and known.irreps == irreps and np.array_equal(known.change_of_basis, basis):
        return known
    # escnn refuses a name that the group knows. But its solvers draw, and may have found another basis here.
    representation = Representation(
        group,
        name if known is None else f"{name}, unpickled",
        irreps,
        basis,
        nonlinearities,
        change_of_basis_inv=inverse,
    )
    representation.name = name
    return representation


def _reduce_element(element: GroupElement) -> tuple[Any, ...]:
    return GroupElement, (element.value, element.group, element.param)


def _reduce_gspace_without_base(gspace: GSpace0D) -> tuple[Any, ...]:
    return GSpace0D, (gspace.fibergroup,)


def _reduce_gspace(gspace: GSpace2D) -> tuple[Any, ...]:
    frequency = getattr(gspace.fibergroup, "_maximum_frequency", _MAXIMUM_FREQUENCY)
    return GSpace2D, (gspace._sg_id, frequency)


def _reduce_gspace_of_space(gspace: GSpace3D) -> tuple[Any, ...]:
    return _gspace_of_space, (gspace._sg_id, gspace.name, max(_maximum_frequencies(gspace.fibergroup), default=1))


def _maximum_frequencies(group: Group) -> list[int]:
    """Return the highest frequency of the irreps of a continuous group, or of the factors of a product."""
    factors = [group.G1, group.G2] if isinstance(group, DirectProductGroup) else [group]
    return [factor._maximum_frequency for factor in factors if hasattr(factor, "_maximum_frequency")]


def _gspace_of_space(identifier: tuple[Any, ...], name: str, frequency: int) -> GSpace3D:
    gspace = GSpace3D(identifier, frequency)
    # escnn names it after what its user wrote of the identifier.
    gspace.name = name
    return gspace


def _reduce_field_type(field_type: FieldType) -> tuple[Any, ...]:
    return FieldType, (field_type.gspace, list(field_type.representations))
