"""The table of symmetries and field types that every claim of equivariance is checked on."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from escnn import gspaces
from escnn.group import Representation, change_basis, directsum
from escnn.gspaces import GSpace2D
from escnn.nn import FieldType

GSPACES: dict[str, Callable[[], GSpace2D]] = {
    "trivial": gspaces.trivialOnR2,
    "flip": gspaces.flip2dOnR2,
    "flip axis 0": lambda: gspaces.flip2dOnR2(axis=0.0),
    "C2": lambda: gspaces.rot2dOnR2(2),
    "C3": lambda: gspaces.rot2dOnR2(3),
    "C4": lambda: gspaces.rot2dOnR2(4),
    "C6": lambda: gspaces.rot2dOnR2(6),
    "C8": lambda: gspaces.rot2dOnR2(8),
    "D1": lambda: gspaces.flipRot2dOnR2(1),
    "D2": lambda: gspaces.flipRot2dOnR2(2),
    "D3": lambda: gspaces.flipRot2dOnR2(3),
    "D4": lambda: gspaces.flipRot2dOnR2(4),
    "D4 axis 45°": lambda: gspaces.flipRot2dOnR2(4, axis=np.pi / 4),
    "D6": lambda: gspaces.flipRot2dOnR2(6),
    "D8": lambda: gspaces.flipRot2dOnR2(8),
    "SO(2)": lambda: gspaces.rot2dOnR2(-1),
    "O(2)": lambda: gspaces.flipRot2dOnR2(-1),
}
CONTINUOUS = ("SO(2)", "O(2)")
WITH_ROTATION = tuple(name for name in GSPACES if name not in ("trivial", "flip", "flip axis 0", "D1"))
WITH_REFLECTION = tuple(name for name in GSPACES if name.startswith(("flip", "D", "O")))

# A field type is a string of fields; a gspace has only some of them.
Fields = Callable[[GSpace2D], list[Representation]]


@functools.cache
def gspace(name: str) -> GSpace2D:
    return GSPACES[name]()


def mixing(size: int, seed: int, orthogonal: bool) -> np.ndarray:
    """A change of basis: any rotation, or any well-conditioned invertible matrix."""
    random = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(random.normal(size=(size, size)))
    return rotation if orthogonal else rotation @ np.diag(random.uniform(0.5, 2, size))


def _all_irreps(space: GSpace2D) -> list[Representation]:
    group = space.fibergroup
    return [group.irrep(*i) for i in group.bl_irreps(2)] if group.continuous else list(group.irreps())


@functools.cache
def _mixed(space: GSpace2D, orthogonal: bool) -> Representation:
    fields = [space.trivial_repr, *_all_irreps(space)[::-1]]
    size = sum(field.size for field in fields)
    name = f"mixed {'rotated' if orthogonal else 'sheared'}"
    return directsum(fields, mixing(size, seed=len(fields), orthogonal=orthogonal), name=name)


@functools.cache
def _reordered_regular(space: GSpace2D) -> Representation:
    """A regular field whose last two channels are exchanged: they are no longer in the order of the elements."""
    order = list(range(space.fibergroup.order()))
    order[-2:] = order[:-3:-1]
    return change_basis(space.regular_repr, np.eye(len(order))[order], name="reordered regular")


@functools.cache
def _signed_regular(space: GSpace2D) -> Representation:
    """A regular field with one channel negated: no permutation."""
    signs = np.diag([1.0] * (space.fibergroup.order() - 1) + [-1.0])
    return change_basis(space.regular_repr, signs, name="signed regular")


@functools.cache
def _two_regular(space: GSpace2D) -> Representation:
    """A permutation that is not transitive."""
    return directsum([space.regular_repr, space.regular_repr], name="two regular in one")


@functools.cache
def _hidden_regular(space: GSpace2D) -> Representation:
    matrix = mixing(space.fibergroup.order(), seed=2, orthogonal=True)
    return change_basis(space.regular_repr, matrix, name="hidden regular")


def _quotients(space: GSpace2D) -> list[Representation]:
    """Return quotients by a rotation subgroup and by a reflection, which is not normal."""
    if space.fibergroup.continuous:
        return [space.quotient_repr((None, -1))]
    order = space.rotations_order
    divisor = min((d for d in range(2, order + 1) if order % d == 0), default=1)
    if not space.flips_order:
        return [space.quotient_repr(divisor)]
    if order == 1:
        return [space.fibergroup.quotient_representation(_full_subgroup(space))]
    quotients = [space.quotient_repr((None, divisor))]
    return [*quotients, space.quotient_repr((0, 1)), space.quotient_repr((1, 1))]


def _full_subgroup(space: GSpace2D) -> tuple[int, int] | int:
    return 2 if space.fibergroup.name.startswith("C") else (0, 1)


def _induced(space: GSpace2D) -> list[Representation]:
    """From the rotations where there are reflections too, else from a smaller rotation group."""
    order = space.rotations_order
    subgroup: object = (None, order) if space.flips_order and order != 1 else order // 2 if order % 2 == 0 else 1
    small, _, _ = space.fibergroup.subgroup(subgroup)
    irrep = small.irrep(1) if small.continuous else small.irreps()[min(1, len(small.irreps()) - 1)]
    return [space.induced_repr(subgroup, irrep)]


FIELDS: dict[str, Fields] = {
    "trivial": lambda g: [g.trivial_repr],
    "regular": lambda g: [g.regular_repr],
    "two regular": lambda g: [g.regular_repr] * 2,
    "irreps": _all_irreps,
    "last irrep": lambda g: _all_irreps(g)[-1:],
    "quotient": _quotients,
    "induced": _induced,
    "mixed": lambda g: [_mixed(g, True)],
    "mixed, sheared": lambda g: [_mixed(g, False)],
    "reordered regular": lambda g: [_reordered_regular(g)],
    "signed regular": lambda g: [_signed_regular(g)],
    "two regular in one": lambda g: [_two_regular(g)],
    "hidden regular": lambda g: [_hidden_regular(g)],
    "band-limited": lambda g: [g.fibergroup.bl_regular_representation(2)],
}
EVERYWHERE = ("trivial", "irreps", "last irrep", "mixed", "mixed, sheared")
FINITE_ONLY = ("regular", "two regular", "reordered regular", "two regular in one", "hidden regular")

PAIRS_EVERYWHERE = (
    "trivial -> trivial",
    "trivial -> irreps",
    "irreps -> trivial",
    "irreps -> irreps",
    "mixed -> irreps",
    "last irrep + trivial + last irrep -> mixed + trivial",
    "mixed, sheared -> mixed, sheared",
)
PAIRS_FINITE = (
    "trivial -> regular",
    "regular -> trivial",
    "two regular -> regular",
    "regular -> irreps",
    "irreps -> two regular",
    "mixed, sheared -> regular",
    "reordered regular -> regular",
    "regular -> reordered regular",
    "two regular in one -> hidden regular",
    "signed regular -> regular",
    "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed",
)
PAIRS_ROTATION = (
    "quotient -> regular",
    "regular -> quotient",
    "quotient -> quotient",
    "quotient -> irreps",
    "induced -> induced",
    "induced + quotient + trivial -> regular + induced",
)
PAIRS_CONTINUOUS = ("band-limited -> band-limited", "band-limited + trivial -> irreps + mixed")
PAIRS_O2 = ("quotient -> irreps", "induced -> induced", "irreps + quotient -> induced + band-limited")


@functools.cache
def field_type(space: str, fields: str) -> FieldType:
    """A field type from names of fields joined by `` + ``."""
    names = fields.split(" + ")
    return FieldType(gspace(space), [field for name in names for field in FIELDS[name](gspace(space))])


def types(space: str, pair: str) -> tuple[FieldType, FieldType]:
    """Input and output type of a pair ``"a + b -> c"``."""
    left, right = pair.split(" -> ")
    return field_type(space, left), field_type(space, right)


def subgroups(space: str, value: float) -> dict[str, float]:
    """The same ω′ for rotation and reflection, where the symmetry has them."""
    names = {"rotation": space in WITH_ROTATION, "reflection": space in WITH_REFLECTION}
    return {name: value for name, present in names.items() if present}


def pairs(space: str) -> tuple[str, ...]:
    """The pairs of field types that this symmetry has."""
    if space in CONTINUOUS:
        return PAIRS_EVERYWHERE + PAIRS_CONTINUOUS + (PAIRS_O2 if space == "O(2)" else ())
    return PAIRS_EVERYWHERE + PAIRS_FINITE + (PAIRS_ROTATION if space != "trivial" else ())


def covering(*whole: str, step: int = 5) -> list[tuple[str, str]]:
    """Return all pairs of field types of the symmetries that are named, and a share of the pairs of each other one.

    Pairs differ by the blocks that their fields fall into, symmetries by their elements, and the code treats the one
    without the other. So all pairs of a few symmetries see what all pairs of every symmetry see, if each other symmetry
    has one pair in ``step``. These begin at another pair in each symmetry, so that together they are all pairs.
    """
    table = [(space, number, pair) for space in GSPACES for number, pair in enumerate(pairs(space))]
    first = {space: row % step for row, space in enumerate(GSPACES)}
    return [(space, pair) for space, number, pair in table if space in whole or number % step == first[space]]


ALL = [(space, pair) for space in GSPACES for pair in pairs(space)]


def random_input(in_type: FieldType, *size: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """White noise of a field type."""
    return torch.randn(batch, in_type.size, *size, dtype=dtype)
