"""Corrections of escnn's global state: the irreps of its groups, and their copies and pickles."""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from escnn.group import (
    O2,
    O3,
    SO2,
    SO3,
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


def keep_irreps() -> None:
    """Keep the irreps of a continuous group, of which escnn has one instance, where no frequency is requested."""
    for kind in (SO2, O2, SO3, O3):
        generate = kind._generator
        if not hasattr(generate, "keeps_irreps"):
            kind._generator = classmethod(_keeping_irreps(generate.__func__))


def _keeping_irreps(generate: Callable[..., Group]) -> Callable[..., Group]:
    """Return a function of a class of groups and a highest frequency, by default that of the group that is there."""

    @functools.wraps(generate)
    def generated(kind: type[Group], *frequency: int, **keys: int) -> Group:
        known: Group | None = kind._cached_group_instance
        return generate(kind, *frequency, **keys) if frequency or keys or known is None else known

    generated.keeps_irreps = True  # type: ignore[attr-defined]
    return generated


def register_reducers() -> None:
    """Make field types and their components picklable; copying a group returns the group itself."""
    for kind in (Group, GSpace0D, GSpace2D, GSpace3D):
        kind.__deepcopy__ = lambda self, memo: self
    for group in groups_dict.values():
        copyreg.pickle(group, lambda group: (_group, (type(group), dict(group._keys), _frequency(group, None))))
    copyreg.pickle(DirectProductGroup, _reduce_product)
    copyreg.pickle(IrreducibleRepresentation, lambda irrep: (type(irrep.group).irrep, (irrep.group, *irrep.id)))
    copyreg.pickle(Representation, _reduce_representation)
    copyreg.pickle(GroupElement, lambda element: (GroupElement, (element.value, element.group, element.param)))
    copyreg.pickle(GSpace0D, lambda gspace: (GSpace0D, (gspace.fibergroup,)))
    # 6 is escnn's value for groups without a maximum frequency of their own.
    copyreg.pickle(GSpace2D, lambda gspace: (GSpace2D, (gspace._sg_id, _frequency(gspace.fibergroup, 6))))
    copyreg.pickle(
        GSpace3D, lambda gspace: (_gspace_of_space, (gspace._sg_id, gspace.name, _frequency(gspace.fibergroup, 1)))
    )
    copyreg.pickle(FieldType, lambda fields: (FieldType, (fields.gspace, list(fields.representations))))


def _reduce_product(group: DirectProductGroup) -> tuple[Any, ...]:
    # Its keys lack its name, without which escnn builds another group.
    keys = next(key for key, known in DirectProductGroup._cached_group_instance.items() if known is group)
    return _group, (DirectProductGroup, dict(keys))


def _group(kind: type[Group], keys: dict[str, Any], frequency: int | None = None) -> Group:
    if kind is DirectProductGroup:
        # escnn would add irreps to one that it knows.
        known: Group | None = kind._cached_group_instance.get(tuple(sorted(keys.items())))
        return kind._generator(**keys) if known is None else known
    if frequency is not None and kind._cached_group_instance is None:
        keys = {**keys, "maximum_frequency": frequency}
    return kind._generator(**keys)


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
    fresh = name if known is None else f"{name}, unpickled"
    representation = Representation(group, fresh, irreps, basis, nonlinearities, change_of_basis_inv=inverse)
    representation.name = name
    return representation


def _frequency(group: Group, default: int | None) -> int | None:
    """Return the highest frequency of the irreps of a continuous group, or of the factors of a product."""
    factors = [group.G1, group.G2] if isinstance(group, DirectProductGroup) else [group]
    return max((part._maximum_frequency for part in factors if hasattr(part, "_maximum_frequency")), default=default)


def _gspace_of_space(identifier: tuple[Any, ...], name: str, frequency: int) -> GSpace3D:
    gspace = GSpace3D(identifier, frequency)
    # escnn names it after what its user wrote of the identifier.
    gspace.name = name
    return gspace
