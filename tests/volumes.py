"""Gspaces of space, field types on them, and volumes that elements move."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from escnn import gspaces
from escnn.group import GroupElement
from escnn.gspaces import GSpace3D
from escnn.nn import FieldType
from transformations import equivariance_error, on_grid_elements

from escnn_relaxed import RelaxedR3Conv

_SPACES: dict[str, Callable[[], GSpace3D]] = {
    "octahedral": gspaces.octaOnR3,
    "full octahedral": gspaces.fullOctaOnR3,
    "icosahedral": gspaces.icoOnR3,
    "SO(3)": gspaces.rot3dOnR3,
    "O(3)": gspaces.flipRot3dOnR3,
    "C4": lambda: gspaces.rot2dOnR3(4),
    "SO(2)": gspaces.rot2dOnR3,
    "D4": lambda: gspaces.dihedralOnR3(4),
    "dihedral": lambda: gspaces.dihedralOnR3(maximum_frequency=6),
    "cone 4": lambda: gspaces.conicalOnR3(4),
    "cone": lambda: gspaces.conicalOnR3(maximum_frequency=6),
    "cylinder 2": lambda: gspaces.cylindricalOnR3(2),
    "full cylinder 2": lambda: gspaces.fullCylindricalOnR3(2),
    "inversion": gspaces.invOnR3,
    "mirror": gspaces.mirOnR3,
    "trivial": gspaces.trivialOnR3,
}

# The fields of each gspace that are quick to build.
_FIELDS: dict[str, Callable[[GSpace3D], list[Any]]] = {
    "octahedral": lambda s: [s.irrep(0), s.irrep(1), s.irrep(2)],
    "full octahedral": lambda s: [s.trivial_repr, s.irrep((1,), (1,))],
    "icosahedral": lambda s: [s.irrep(0), s.irrep(1)],
    "SO(3)": lambda s: [s.irrep(0), s.irrep(1), s.irrep(2)],
    "O(3)": lambda s: [s.irrep(0, 0), s.irrep(1, 1)],
    "C4": lambda s: [s.regular_repr, s.quotient_repr(2)],
    "SO(2)": lambda s: [s.irrep(0), s.irrep(1)],
    "D4": lambda s: [s.regular_repr],
    "dihedral": lambda s: [s.irrep(0, 0), s.irrep(1, 1)],
    "cone 4": lambda s: [s.regular_repr, s.irrep(1, 1)],
    "cone": lambda s: [s.irrep(0, 0), s.irrep(1, 1)],
    "cylinder 2": lambda s: [s.trivial_repr, s.regular_repr],
    "full cylinder 2": lambda s: [s.trivial_repr],
    "inversion": lambda s: [s.regular_repr],
    "mirror": lambda s: [s.regular_repr],
    "trivial": lambda s: [s.trivial_repr],
}
SPACES = tuple(_SPACES)


@functools.cache
def gspace(name: str) -> GSpace3D:
    return _SPACES[name]()


def fields(name: str) -> FieldType:
    return FieldType(gspace(name), _FIELDS[name](gspace(name)))


def layer(in_type: FieldType, kernel_size: int = 3, out_type: FieldType | None = None, **options: Any) -> RelaxedR3Conv:
    """A layer in float64 that is far from strict."""
    options = {"initial_softness": 0.05, **options}
    return RelaxedR3Conv(in_type, out_type or in_type, kernel_size, **options).double()


def voxel_symmetries(space: GSpace3D) -> list[GroupElement]:
    """The elements of a gspace that map voxels to voxels."""
    return [space.fibergroup.identity, *on_grid_elements(space)]


def about_z(space: GSpace3D, element: GroupElement) -> bool:
    """Whether an element is a rotation about z."""
    return bool(np.isclose(np.asarray(space.basespace_action(element))[2, 2], 1))


def errors(of: RelaxedR3Conv, elements: list[GroupElement], size: int = 7) -> list[float]:
    """‖f(gx) − g f(x)‖ / ‖f(x)‖ on white noise for each element."""
    volumes = torch.randn(2, of.in_type.size, size, size, size, dtype=torch.float64)
    return [equivariance_error(of, volumes, element) for element in elements]
