"""The axes about which a group of space turns the voxel grid onto itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .elements import sample_group

if TYPE_CHECKING:
    from escnn.group import GroupElement
    from escnn.gspaces import GSpace

__all__ = ["RotationAxis", "name_of_axis", "rotation_axes"]

Array = NDArray[np.float64]

_SAME = 1e-6


@dataclass(frozen=True)
class RotationAxis:
    """An axis and the least rotation about it that maps voxels to voxels.

    Attributes:
        direction: a vector of length 1 along the axis, (x, y, z).
        fold: n, where the rotation is by 360°/n.
        element: the rotation, counter-clockwise seen from the tip of the direction.
    """

    direction: tuple[float, float, float]
    fold: int
    element: GroupElement

    @property
    def name(self) -> str:
        """``"x"``, ``"y"`` or ``"z"``, or the components as integers."""
        return name_of_axis(self.direction)


def name_of_axis(direction: tuple[float, float, float]) -> str:
    """Return the letter of a direction of the voxel grid, or its components as integers.

    Example:
        >>> name_of_axis((0.0, 0.0, 1.0)), name_of_axis((math.sqrt(0.5), -math.sqrt(0.5), 0.0))
        ('z', '(1, -1, 0)')
    """
    components = [round(value / max(map(abs, direction))) for value in direction]
    return "xyz"[components.index(1)] if components.count(0) == 2 else f"({', '.join(map(str, components))})"


def rotation_axes(gspace: GSpace) -> list[RotationAxis]:
    """Return the axes of a gspace of space, those of the finest rotations first; of a continuous one, of its sample.

    Example:
        >>> from escnn import gspaces
        >>> axes = rotation_axes(gspaces.octaOnR3())
        >>> [axis.fold for axis in axes]
        [4, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2]
        >>> [axis.name for axis in axes[:4]]
        ['x', 'y', 'z', '(1, 1, 1)']
    """
    sample = sample_group(gspace)
    least: dict[tuple[int, ...], tuple[float, RotationAxis]] = {}
    for element, action in zip(sample.elements, sample.action, strict=True):
        is_on_voxels = np.allclose(action, action.round(), rtol=0, atol=_SAME)
        if not is_on_voxels or np.linalg.det(action) < 0 or np.allclose(action, np.eye(3), rtol=0, atol=_SAME):
            continue
        direction, angle = _direction_and_angle(action.round())
        key = tuple(np.round(2 * direction).astype(int).tolist())
        if key not in least or angle < least[key][0]:
            x, y, z = direction.tolist()
            least[key] = angle, RotationAxis((x, y, z), round(2 * math.pi / angle), element)
    axes = [axis for _, axis in least.values()]
    return sorted(axes, key=lambda axis: (-axis.fold, [-round(value, 6) for value in axis.direction]))


def _direction_and_angle(rotation: Array) -> tuple[Array, float]:
    """Return the axis u of a rotation, one of u and −u, and the angle about it in (0, 2π)."""
    cos = (np.trace(rotation) - 1) / 2
    # Rodrigues: the symmetric part is cos θ + (1 − cos θ) u uᵀ, the other sin θ u×.
    outer = ((rotation + rotation.T) / 2 - cos * np.eye(3)) / (1 - cos)
    column = int(np.argmax(np.round(outer.diagonal(), 6)))
    direction = outer[column] / math.sqrt(outer[column, column])
    twice_sin = np.array(
        [rotation[2, 1] - rotation[1, 2], rotation[0, 2] - rotation[2, 0], rotation[1, 0] - rotation[0, 1]]
    )
    return direction, math.atan2(float(twice_sin @ direction) / 2, cos) % (2 * math.pi)
