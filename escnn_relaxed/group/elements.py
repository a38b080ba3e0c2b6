"""Group elements → arrays of coordinates: the only module that reads escnn's element parametrisations and lie_learn.

Everything here is float64 NumPy, angles in radians.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # exported layers come here too, and run without escnn and lie_learn
    from escnn.group import GroupElement
    from escnn.gspaces import GSpace2D

__all__ = [
    "NOTHING_KEPT",
    "SUBGROUPS",
    "GroupSample",
    "KeptGroup",
    "circle_harmonic_limit",
    "element_with_action",
    "group_coordinates",
    "has_subgroup",
    "relative_elements",
    "rotation_matrix",
    "sample_group",
    "steer",
    "translates",
]


Array = NDArray[np.float64]


SUBGROUPS = ("rotation", "reflection", "translation")


@dataclass(frozen=True)
class GroupSample:
    """A finite sample of a fiber group as arrays, M elements.

    Attributes:
        elements: escnn's group elements.
        action: their 2×2 matrices on the plane, (M, 2, 2).
        angle: rotation of each element in radians, principal, in (−π, π], (M,).
        reflected: 1 where the element reflects, else 0, (M,).
        reflection: the 2×2 matrix of f, where an element is g = r^θ f^s; the identity without reflections.
        offset: angle in radians by which the grid of a continuous group is turned.
    """

    elements: tuple[GroupElement, ...]
    action: Array
    angle: Array
    reflected: NDArray[np.int64]
    reflection: Array
    offset: float

    def __len__(self) -> int:
        return len(self.elements)


class KeptGroup(NamedTuple):
    """A subgroup of the fiber group to which a layer stays strict, whatever is soft.

    Attributes:
        rotations: how many rotations it has.
        reflection: whether it has the reflection f.
    """

    rotations: int = 1
    reflection: bool = False

    def __str__(self) -> str:
        return f"{'D' if self.reflection else 'C'}{self.rotations}"


NOTHING_KEPT = KeptGroup()


def has_subgroup(gspace: GSpace2D, subgroup: str) -> bool:
    """Whether the symmetries of ``gspace`` contain more than the identity of ``subgroup``.

    Example:
        >>> from escnn import gspaces
        >>> (
        ...     has_subgroup(gspaces.rot2dOnR2(4), "reflection"),
        ...     has_subgroup(gspaces.rot2dOnR2(4), "rotation"),
        ... )
        (False, True)
    """
    return {
        "rotation": gspace.rotations_order != 1,
        "reflection": gspace.flips_order != 0,
        "translation": True,
    }[subgroup]


def sample_group(gspace: GSpace2D, samples: int, offset: float = 0.0) -> GroupSample:
    """All elements of a finite fiber group; of a continuous one, escnn's regular grid.

    Args:
        gspace: a symmetry of the plane.
        samples: number N of rotations sampled where the group is continuous (2N elements of O(2)).
        offset: angle in radians by which the grid of a continuous group is turned.

    Example:
        >>> from escnn import gspaces
        >>> sample_group(gspaces.rot2dOnR2(4), samples=16).angle.round(2).tolist()
        [0.0, 1.57, 3.14, -1.57]
    """
    group = gspace.fibergroup
    grid = group.grid(type="regular", N=samples) if group.continuous else group.elements
    action = np.stack([gspace.basespace_action(element) for element in grid]).astype(np.float64)
    reflected = (np.linalg.det(action) < 0).astype(np.int64)
    # escnn writes g = r^θ f^s and lists f itself first among the elements that reflect.
    reflection = action[np.argmax(reflected)] if reflected.any() else np.eye(2)
    rotation = np.where(reflected[:, None, None] == 1, action @ reflection, action)
    if offset:
        turn = rotation_matrix(offset)
        rotation, action = turn @ rotation, turn @ action
        grid = [_rotation_element(gspace, offset) @ element for element in grid]
    return GroupSample(tuple(grid), action, _principal_angle(rotation), reflected, reflection, offset)


def rotation_matrix(angle: float) -> Array:
    """The 2×2 matrix of a rotation by an angle in radians."""
    from lie_learn.groups import SO2

    matrix: Array = SO2.change_parameterization(np.asarray(angle), p_from="ANG", p_to="MAT")
    return matrix


def _rotation_element(gspace: GSpace2D, angle: float) -> GroupElement:
    value = (0, angle) if gspace.flips_order else angle
    return gspace.fibergroup.element(value, param="radians")


def _principal_angle(rotation: Array) -> Array:
    """Angle of each rotation matrix in (−π, π]; a half turn is +π whatever the sign of its rounding error."""
    from lie_learn.groups import SO2

    angle: Array = SO2.change_parameterization(rotation, p_from="MAT", p_to="ANG")
    return np.where(angle <= -np.pi + 1e-9, np.pi, angle)


def element_with_action(gspace: GSpace2D, action: Array) -> GroupElement | None:
    """The element of a fiber group that acts on the plane by a 2×2 matrix, None where there is none.

    Example:
        >>> from escnn import gspaces
        >>> element_with_action(gspaces.rot2dOnR2(4), np.array([[0.0, -1.0], [1.0, 0.0]]))
        1[2pi/4]
        >>> element_with_action(gspaces.rot2dOnR2(4), np.array([[1.0, 0.0], [0.0, -1.0]])) is None
        True
    """
    group = gspace.fibergroup
    candidates = group.elements
    if group.continuous:
        is_reflection = np.linalg.det(action) < 0
        if is_reflection and not gspace.flips_order:
            return None
        flip = gspace.basespace_action(group.element((1, 0.0), param="radians")) if is_reflection else np.eye(2)
        angle = float(_principal_angle((action @ flip)[None])[0])
        value = (int(is_reflection), angle) if gspace.flips_order else angle
        candidates = [group.element(value, param="radians")]
    matches = (e for e in candidates if np.allclose(gspace.basespace_action(e), action, rtol=0, atol=1e-6))
    return next(matches, None)


def relative_elements(sample: GroupSample) -> NDArray[np.int64]:
    """Index of the relative element g′⁻¹g in a finite group: entry [g′, g], (M, M)."""
    index = {element: i for i, element in enumerate(sample.elements)}
    return np.array([[index[~v @ u] for u in sample.elements] for v in sample.elements], dtype=np.int64)


def translates(
    sample: GroupSample, subgroups: Sequence[str], kept: KeptGroup = NOTHING_KEPT
) -> tuple[Array, NDArray[np.int64], Array]:
    """Hg for every sampled g and every h of a subgroup H of the fiber group.

    Args:
        sample: the elements g.
        subgroups: what H is made of: ``"rotation"``, all steps of the grid; ``"reflection"``, the identity and f. On a
            grid that is turned by an offset f is turned with it, so that H maps the sample to itself.
        kept: what H has in any case; its number of rotations divides that of the sample.

    Returns:
        Principal angle (M, |H|), reflected (M, |H|) and action (M, |H|, 2, 2) of hg.

    Example:
        >>> from escnn import gspaces
        >>> sample = sample_group(gspaces.flipRot2dOnR2(4), samples=16)
        >>> of_f = translates(sample, ["reflection"])[1]  # f turns a rotation into a reflection
        >>> of_f[:2].tolist()
        [[0, 1], [0, 1]]
    """
    count = int((sample.reflected == 0).sum())
    rotations = count if "rotation" in subgroups else kept.rotations
    turns = np.arange(rotations) * 2 * np.pi / rotations
    has_reflection = ("reflection" in subgroups or kept.reflection) and sample.reflected.any()
    flips = np.array([0, 1] if has_reflection else [0])
    angle, reflected = sample.angle[:, None, None], sample.reflected[:, None, None]
    # r^α f^t · r^θ f^s = r^(α ± θ) f^(t + s), with − where f stands before the rotation; f turned is r^(2 offset) f.
    turned = turns[:, None] + np.where(flips == 1, 2 * sample.offset - angle, angle)
    mirrored = np.broadcast_to((reflected + flips) % 2, turned.shape)
    matrices = np.stack([rotation_matrix(turn) for turn in turns])[:, None]
    reflection = rotation_matrix(2 * sample.offset) @ sample.reflection
    matrices = matrices @ np.where(flips[:, None, None] == 1, reflection, np.eye(2))
    action = np.einsum("tfij,mjk->mtfik", matrices, sample.action)
    shape = (len(sample), -1)
    principal = _principal_angle(np.stack([rotation_matrix(turn) for turn in turned.ravel()]))
    return principal.reshape(shape), mirrored.reshape(shape), action.reshape(*shape, 2, 2)


def group_coordinates(angle: Array, reflected: NDArray[np.int64], form: str) -> dict[str, Array]:
    """Coordinates of elements per subgroup (docs/concepts/mathematics.md, "Coordinates").

    Args:
        angle: rotation of each element in radians, principal, (…).
        reflected: 1 where the element reflects, else 0, (…).
        form: ``"circle"``, a rotation as the point (cos θ, sin θ); ``"log"``, the paper's principal angle
            over 2π.

    Returns:
        ``{"rotation": (…, 2) or (…, 1), "reflection": (…, 1)}``.
    """
    rotation = np.stack([np.cos(angle), np.sin(angle)], axis=-1) if form == "circle" else angle[..., None] / (2 * np.pi)
    return {"rotation": rotation, "reflection": reflected[..., None] / 2}


def circle_harmonic_limit(form: str, rotations: int) -> float:
    """The largest ω′_r whose features are resolved by ``rotations`` samples of the circle.

    In log coordinates a feature turns ω′_r times over the circle: the limit is N/2. In circle coordinates
    exp(2πi ω′_r w·(cos θ, sin θ)) holds the harmonics up to about 2π ω′_r |w| (Jacobi–Anger), and |w| is
    of order one: the limit is N/4π.
    """
    return rotations / 2 if form == "log" else rotations / (4 * np.pi)


def steer(sample: GroupSample, points: Array) -> Array:
    """g⁻¹p for each element and point: (M, 2, 2), (P, 2) → (M, P, 2)."""
    steered: Array = np.einsum("mji,pj->mpi", sample.action, points)
    return steered
