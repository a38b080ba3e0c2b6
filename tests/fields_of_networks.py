"""The groups and fields that the small networks of the tests are built from."""

from __future__ import annotations

from collections.abc import Callable

from escnn import gspaces
from escnn.nn import EquivariantModule, FieldType

# With the arguments of R2Conv, or of R2ConvTransposed.
Layer = Callable[..., EquivariantModule]

C4, C8 = gspaces.rot2dOnR2(4), gspaces.rot2dOnR2(8)
D4, D8 = gspaces.flipRot2dOnR2(4), gspaces.flipRot2dOnR2(8)
SO2 = gspaces.rot2dOnR2(-1, maximum_frequency=2)


def trivial(space: gspaces.GSpace2D, count: int = 1) -> FieldType:
    return FieldType(space, [space.trivial_repr] * count)


def regular(space: gspaces.GSpace2D, count: int = 1) -> FieldType:
    return FieldType(space, [space.regular_repr] * count)
