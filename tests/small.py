"""Symmetries of the plane and of space, field types on them, and small layers in float64, each weight off its start.

A layer is built as a user builds it where a test names no form of the kernel.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from errors import on_grid_elements
from escnn import gspaces
from escnn.group import GroupElement, Representation, change_basis, directsum
from escnn.gspaces import GSpace2D, GSpace3D
from escnn.nn import FieldType
from torch import Tensor, nn

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, RelaxedR2ConvTransposed, RelaxedR3Conv

Layer = TypeVar("Layer", RelaxedR2Conv, RelaxedR2ConvTransposed)

# --- symmetries of the plane ------------------------------------------------------------------------------------------

GSPACES: dict[str, Callable[[], GSpace2D]] = {
    "trivial": gspaces.trivialOnR2,
    "flip": gspaces.flip2dOnR2,
    "flip axis 0": lambda: gspaces.flip2dOnR2(axis=0.0),
    **{f"C{n}": functools.partial(gspaces.rot2dOnR2, n) for n in (2, 3, 4, 6, 8)},
    **{f"D{n}": functools.partial(gspaces.flipRot2dOnR2, n) for n in (1, 2, 3, 4)},
    "D4 axis 45°": lambda: gspaces.flipRot2dOnR2(4, axis=np.pi / 4),
    **{f"D{n}": functools.partial(gspaces.flipRot2dOnR2, n) for n in (6, 8)},
    "SO(2)": lambda: gspaces.rot2dOnR2(-1),
    "O(2)": lambda: gspaces.flipRot2dOnR2(-1),
}
CONTINUOUS = ("SO(2)", "O(2)")
WITH_ROTATION = tuple(name for name in GSPACES if name not in ("trivial", "flip", "flip axis 0", "D1"))
WITH_REFLECTION = tuple(name for name in GSPACES if name.startswith(("flip", "D", "O")))


@functools.cache
def gspace(name: str) -> GSpace2D:
    return GSPACES[name]()


def subgroups(space: str, value: float) -> dict[str, float]:
    """The same ω′ for rotation and reflection, where the symmetry has them."""
    names = {"rotation": space in WITH_ROTATION, "reflection": space in WITH_REFLECTION}
    return {name: value for name, present in names.items() if present}


def kept_elements(space: GSpace2D, keep: str) -> list[GroupElement]:
    """The elements of a subgroup that is named as ``"C4"`` or ``"D2"``."""
    count, has_flips = int(keep[1:]), keep.startswith("D")
    values = [(flip, 2 * np.pi * turn / count) for flip in range(1 + has_flips) for turn in range(count)]
    return [space.fibergroup.element(of if space.flips_order else of[1], param="radians") for of in values]


# --- field types: strings of fields, of which a gspace has some -------------------------------------------------------


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
def _changed_regular(space: GSpace2D, name: str) -> Representation:
    """A regular field in another basis: its last two channels exchanged, the last negated, or all of them mixed."""
    size = space.fibergroup.order()
    matrix = np.eye(size)
    if name == "reordered regular":
        matrix[-2:] = matrix[-2:][::-1].copy()
    elif name == "signed regular":
        matrix[-1, -1] = -1
    else:
        matrix = mixing(size, seed=2, orthogonal=True)
    return change_basis(space.regular_repr, matrix, name=name)


@functools.cache
def _two_regular(space: GSpace2D) -> Representation:
    """A permutation that is not transitive."""
    return directsum([space.regular_repr, space.regular_repr], name="two regular in one")


def _quotients(space: GSpace2D) -> list[Representation]:
    """Quotients by a rotation subgroup and by a reflection, which is not normal."""
    if space.fibergroup.continuous:
        return [space.quotient_repr((None, -1))]
    order = space.rotations_order
    divisor = min((d for d in range(2, order + 1) if order % d == 0), default=1)
    if not space.flips_order:
        return [space.quotient_repr(divisor)]
    if order == 1:
        whole = 2 if space.fibergroup.name.startswith("C") else (0, 1)
        return [space.fibergroup.quotient_representation(whole)]
    return [space.quotient_repr(subgroup) for subgroup in ((None, divisor), (0, 1), (1, 1))]


def _induced(space: GSpace2D) -> list[Representation]:
    """From the rotations where there are reflections too, else from a smaller rotation group."""
    order = space.rotations_order
    subgroup: object = (None, order) if space.flips_order and order != 1 else order // 2 if order % 2 == 0 else 1
    small, _, _ = space.fibergroup.subgroup(subgroup)
    irrep = small.irrep(1) if small.continuous else small.irreps()[min(1, len(small.irreps()) - 1)]
    return [space.induced_repr(subgroup, irrep)]


FIELDS: dict[str, Callable[[GSpace2D], list[Representation]]] = {
    "trivial": lambda g: [g.trivial_repr],
    "regular": lambda g: [g.regular_repr],
    "two regular": lambda g: [g.regular_repr] * 2,
    "irreps": _all_irreps,
    "last irrep": lambda g: _all_irreps(g)[-1:],
    "quotient": _quotients,
    "induced": _induced,
    "mixed": lambda g: [_mixed(g, True)],
    "mixed, sheared": lambda g: [_mixed(g, False)],
    "reordered regular": lambda g: [_changed_regular(g, "reordered regular")],
    "signed regular": lambda g: [_changed_regular(g, "signed regular")],
    "two regular in one": lambda g: [_two_regular(g)],
    "hidden regular": lambda g: [_changed_regular(g, "hidden regular")],
    "band-limited": lambda g: [g.fibergroup.bl_regular_representation(2)],
}
EVERYWHERE = ("trivial", "irreps", "last irrep", "mixed", "mixed, sheared")
FINITE_ONLY = ("regular", "two regular", "reordered regular", "two regular in one", "hidden regular")

PAIRS_EVERYWHERE = (
    *("trivial -> trivial", "trivial -> irreps", "irreps -> trivial", "irreps -> irreps", "mixed -> irreps"),
    *("last irrep + trivial + last irrep -> mixed + trivial", "mixed, sheared -> mixed, sheared"),
)
PAIRS_FINITE = (
    *("trivial -> regular", "regular -> trivial", "two regular -> regular", "regular -> irreps"),
    *("irreps -> two regular", "mixed, sheared -> regular", "reordered regular -> regular"),
    *("regular -> reordered regular", "two regular in one -> hidden regular", "signed regular -> regular"),
    "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed",
)
PAIRS_ROTATION = (
    *("quotient -> regular", "regular -> quotient", "quotient -> quotient", "quotient -> irreps"),
    *("induced -> induced", "induced + quotient + trivial -> regular + induced"),
)
PAIRS_CONTINUOUS = ("band-limited -> band-limited", "band-limited + trivial -> irreps + mixed")
PAIRS_O2 = ("quotient -> irreps", "induced -> induced", "irreps + quotient -> induced + band-limited")


@functools.cache
def field_type(space: str, fields: str) -> FieldType:
    """A field type from names of fields joined by `` + ``."""
    return FieldType(gspace(space), [field for name in fields.split(" + ") for field in FIELDS[name](gspace(space))])


def types(space: str, pair: str) -> tuple[FieldType, FieldType]:
    """Input and output type of a pair ``"a + b -> c"``."""
    left, right = pair.split(" -> ")
    return field_type(space, left), field_type(space, right)


def pairs(space: str) -> tuple[str, ...]:
    """The pairs of field types that this symmetry has."""
    if space in CONTINUOUS:
        return PAIRS_EVERYWHERE + PAIRS_CONTINUOUS + (PAIRS_O2 if space == "O(2)" else ())
    return PAIRS_EVERYWHERE + PAIRS_FINITE + (PAIRS_ROTATION if space != "trivial" else ())


def covering(*whole: str, step: int = 5) -> list[tuple[str, str]]:
    """All pairs of field types of the symmetries that are named, and one in ``step`` of each other, in turn all pairs.

    Pairs differ by the blocks of their fields, symmetries by their elements; the code treats the one without the other.
    """
    table = [(space, number, pair) for space in GSPACES for number, pair in enumerate(pairs(space))]
    first = {space: row % step for row, space in enumerate(GSPACES)}
    return [(space, pair) for space, number, pair in table if space in whole or number % step == first[space]]


def random_input(in_type: FieldType, *size: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    """White noise of a field type."""
    return torch.randn(batch, in_type.size, *size, dtype=dtype)


# --- layers of the plane ----------------------------------------------------------------------------------------------

# Where every claim about translation is exact.
TORUS: dict[str, object] = {"padding": 1, "padding_mode": "circular"}

# The forms of a kernel: a strict one that is tied to its modulation, the default; and the paper's continuous one.
SOFT_PARTS = ("tied", "continuous")
EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)

# ω of a continuous kernel that is rough on 3×3 taps: with the default one it is almost constant there, so invariant.
ROUGH = {"position": 0.4, "rotation": 0.3, "reflection": 0.7}

# How a kernel follows the position, and a small image; in translation with an odd and an even side.
SIZES = {"stationary": (2, 3), "in translation": (5, 4)}
EVERY_KIND = pytest.mark.parametrize("kind", SIZES)


def relaxation(kind: str, group: dict[str, float], translation: object = (0.3, 0.5)) -> dict[str, object]:
    """Arguments of a layer of this kind that is soft in these subgroups of the group."""
    return {"relax": group | ({} if kind == "stationary" else {"translation": translation})}


def options_of(soft_part: str, **shaping: object) -> dict[str, object]:
    """Arguments of a layer with this form of kernel, and of its κ. A tied one has none, so they are left out."""
    return {} if soft_part == "tied" else {"kernel": ContinuousKernel(**shaping)}


def with_kernel(arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments of a layer, of which tables give the form of the kernel, by default tied, and κ beside the others."""
    shaping = {name: arguments[name] for name in ContinuousKernel.__dataclass_fields__ if name in arguments}
    others = {name: value for name, value in arguments.items() if name not in shaping}
    soft_part = str(others.pop("soft_part", "continuous" if shaping else "tied"))
    return {**others, **options_of(soft_part, **shaping)}


def build(
    in_type: FieldType, out_type: FieldType, kernel_size: int = 3, make: type[Layer] = RelaxedR2Conv, **arguments: Any
) -> Layer:
    """A layer in float64, built in float32, so that constants that had lost digits would show; as small as can be."""
    arguments = {"samples": 8, **arguments}
    if arguments.get("soft_part") == "continuous":
        arguments = {"hidden_size": 6, **arguments}
    layer = make(in_type, out_type, kernel_size, **with_kernel(arguments)).double()
    shake(layer)
    return layer


def soft_layer(space: str, pair: str, **arguments: Any) -> RelaxedR2Conv:
    """A layer between the fields of a pair, so soft that its error is seen: by 0.3."""
    return build(*types(space, pair), **{"initial_softness": 0.3, **arguments})


def soft_transposed_layer(space: str, pair: str, **arguments: Any) -> RelaxedR2ConvTransposed:
    """The adjoint of such a layer."""
    return soft_layer(space, pair, **{"make": RelaxedR2ConvTransposed, "samples": 4, **arguments})


def soft_regular_layer(
    soft_part: str = "tied", space: str = "C4", relax: dict[str, float] | None = None, **arguments: Any
) -> RelaxedR2Conv:
    """A layer of 3×3 on the torus between regular fields; by default soft in rotation."""
    relax = {"rotation": 0.2} if relax is None else relax
    arguments = {**TORUS, "initial_softness": 0.1, "filter_frequency": ROUGH, **arguments}
    return build(*types(space, "regular -> regular"), relax=relax, soft_part=soft_part, **arguments)


@torch.no_grad()
def shake(layer: nn.Module) -> None:
    """Move every weight and bias from its start; claims about a layer hold for any of them. ω′ stays."""
    for name, parameter in layer.named_parameters():
        if "kernel.frequency" in name:
            continue
        if (parameter == 0).all():
            parameter.copy_(torch.randn_like(parameter) / 4)
        else:
            parameter.mul_(1 + 0.2 * torch.randn_like(parameter))


# --- space ------------------------------------------------------------------------------------------------------------

# Gspaces of space, and fields of each that are quick to build.
_VOLUMES: dict[str, tuple[Callable[[], GSpace3D], Callable[[Any], list[Representation]]]] = {
    "octahedral": (gspaces.octaOnR3, lambda s: [s.irrep(0), s.irrep(1), s.irrep(2)]),
    "full octahedral": (gspaces.fullOctaOnR3, lambda s: [s.trivial_repr, s.irrep((1,), (1,))]),
    "icosahedral": (gspaces.icoOnR3, lambda s: [s.irrep(0), s.irrep(1)]),
    "SO(3)": (gspaces.rot3dOnR3, lambda s: [s.irrep(0), s.irrep(1), s.irrep(2)]),
    "O(3)": (gspaces.flipRot3dOnR3, lambda s: [s.irrep(0, 0), s.irrep(1, 1)]),
    "C4": (lambda: gspaces.rot2dOnR3(4), lambda s: [s.regular_repr, s.quotient_repr(2)]),
    "SO(2)": (gspaces.rot2dOnR3, lambda s: [s.irrep(0), s.irrep(1)]),
    "D4": (lambda: gspaces.dihedralOnR3(4), lambda s: [s.regular_repr]),
    "dihedral": (lambda: gspaces.dihedralOnR3(maximum_frequency=6), lambda s: [s.irrep(0, 0), s.irrep(1, 1)]),
    "cone 4": (lambda: gspaces.conicalOnR3(4), lambda s: [s.regular_repr, s.irrep(1, 1)]),
    "cone": (lambda: gspaces.conicalOnR3(maximum_frequency=6), lambda s: [s.irrep(0, 0), s.irrep(1, 1)]),
    "cylinder 2": (lambda: gspaces.cylindricalOnR3(2), lambda s: [s.trivial_repr, s.regular_repr]),
    "full cylinder 2": (lambda: gspaces.fullCylindricalOnR3(2), lambda s: [s.trivial_repr]),
    "inversion": (gspaces.invOnR3, lambda s: [s.regular_repr]),
    "mirror": (gspaces.mirOnR3, lambda s: [s.regular_repr]),
    "trivial": (gspaces.trivialOnR3, lambda s: [s.trivial_repr]),
}
# escnn takes seconds to build the icosahedral group.
ICOSAHEDRAL = pytest.param("icosahedral", marks=pytest.mark.slow)
VOLUME_SPACES = tuple(name for name in _VOLUMES if name != "icosahedral")


@functools.cache
def volume_space(name: str) -> GSpace3D:
    return _VOLUMES[name][0]()


def volume_type(name: str) -> FieldType:
    return FieldType(volume_space(name), _VOLUMES[name][1](volume_space(name)))


def volume_layer(
    in_type: FieldType,
    kernel_size: int = 3,
    out_type: FieldType | None = None,
    make: Callable[..., RelaxedR3Conv] = RelaxedR3Conv,
    **options: Any,
) -> RelaxedR3Conv:
    """A layer in float64 that is far from strict."""
    return make(in_type, out_type or in_type, kernel_size, **{"initial_softness": 0.05, **options}).double()


def voxel_symmetries(space: GSpace3D) -> list[GroupElement]:
    """The elements of a gspace that map voxels to voxels."""
    return [space.fibergroup.identity, *on_grid_elements(space)]


def about_z(space: GSpace3D, element: GroupElement) -> bool:
    """Whether an element is a rotation about z."""
    return bool(np.isclose(np.asarray(space.basespace_action(element))[2, 2], 1))


TRANSPOSED_VOLUMES: dict[str, dict[str, Any]] = {
    "up": {"padding": 1, "stride": 2, "output_padding": 1},
    "uneven": {"padding": (1, 0, 2), "stride": 2, "output_padding": (0, 1, 1)},
    "dilated": {"dilation": 2, "padding": 1},
    "groups": {"groups": 2, "stride": 2},
}
