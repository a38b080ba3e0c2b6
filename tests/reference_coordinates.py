"""Coordinates as the loop oracle sees them, from escnn's element parametrisations and matrices, and padding by hand."""

from __future__ import annotations

import math

import numpy as np
from escnn.group import GroupElement
from escnn.gspaces import GSpace2D
from reference_fields import matrix

Point = tuple[float, ...]


def angle_and_flip(space: GSpace2D, element: GroupElement) -> tuple[float, int]:
    """Principal angle in (−π, π] and s of g = r^θ f^s."""
    if space.rotations_order == 1 and space.flips_order:
        return 0.0, element.to("int") if not isinstance(element.to("int"), tuple) else element.to("int")[0]
    value = element.to("radians")
    flip, angle = value if isinstance(value, tuple) else (0, value)
    principal = math.remainder(angle, 2 * math.pi)
    return (math.pi if principal < -math.pi + 1e-9 else principal), int(flip)


def subgroup_coordinates(space: GSpace2D, element: GroupElement, form: str) -> dict[str, list[float]]:
    """Coordinates of an element per subgroup: the table of docs/concepts/mathematics.md."""
    angle, flip = angle_and_flip(space, element)
    rotation = [math.cos(angle), math.sin(angle)] if form == "circle" else [angle / (2 * math.pi)]
    return {"rotation": rotation, "reflection": [flip / 2]}


def window_weight(tap: Point, kernel_size: int, dilation: int, support: str) -> float:
    """1 in the disk, falling as cos² over its outer tap; the hard disk has a radius of ⌊k/2⌋ taps."""
    distance = math.hypot(*tap) / dilation
    if support == "disk":
        return 1.0 if distance <= kernel_size // 2 + 1e-9 else 0.0
    inside = kernel_size / 2 - 1
    if distance >= inside + 1:
        return 0.0
    return math.cos(math.pi / 2 * max(distance - inside, 0)) ** 2


def inverse_action(space: GSpace2D, element: GroupElement, point: Point) -> Point:
    """g⁻¹p."""
    return tuple(map(float, matrix(space.basespace_action, ~element) @ np.array(point)))


def copied_cell(index: int, size: int, mode: str) -> int | None:
    """The pixel that a cell of a padded axis copies, None for a zero."""
    if 0 <= index < size:
        return index
    if mode == "zeros":
        return None
    if mode == "circular":
        return index % size
    if mode == "replicate":
        return min(max(index, 0), size - 1)
    return -index if index < 0 else 2 * (size - 1) - index
