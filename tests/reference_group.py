"""Group elements as the loop oracle sees them: escnn's matrices, and coordinates written out.

An element is r fˢ: f is the inversion of space where the group has it, else the first element that reflects. In the
plane the coordinates of r are those of the point (cos θ, sin θ), in space the nine numbers of its matrix over √2.
"""

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
from escnn.group import DirectProductGroup, Group, GroupElement, Representation
from escnn.gspaces import GSpace

Point = tuple[float, ...]
Array = np.ndarray


def as_point(index: Sequence[float]) -> Point:
    """(planes, rows, columns) → (x, y, z): y and z against the rows and the planes."""
    return (index[-1], *(-value for value in index[-2::-1]))


def sampled(group: Group, samples: int) -> list[GroupElement]:
    """All elements of a finite group; of a continuous one so many rotations, for all of space those of the cube."""
    if not group.continuous:
        return list(group.elements)
    if isinstance(group, DirectProductGroup):
        both = itertools.product(*(sampled(of, samples) for of in (group.G1, group.G2)))
        return [group.pair_elements(*pair) for pair in both]
    cube = group.name in ("SO(3)", "O(3)")
    return list(group.grid(type="cube") if cube else group.grid(type="regular", N=samples))


class Elements:
    """The elements over which a kernel is averaged, with those of the kept group.

    With ``about_axis`` all rotations about z are kept, ``fold`` is the number n of kept turns about the only axis, of
    which coordinates are those of nθ, and the ``form`` ``"log"`` has the angle over 2π.
    """

    def __init__(
        self,
        space: GSpace,
        samples: int = 16,
        kept: Sequence[GroupElement] = (),
        about_axis: bool = False,
        fold: int = 1,
        form: str = "circle",
    ) -> None:
        self.space, self.about_axis, self.fold, self.form = space, about_axis, fold, form
        self.elements = sampled(space.fibergroup, samples)
        self.actions = [self.action(g) for g in self.elements]
        self.kept = [self.action(h) for h in kept] or [np.eye(space.dimensionality)]
        mirrors = [action for action in self.actions if np.linalg.det(action) < 0]
        inversions = [action for action in mirrors if len(action) == 3 and np.allclose(action, -np.eye(3), atol=1e-6)]
        self.mirror = (inversions + mirrors + [np.eye(space.dimensionality)])[0]

    def action(self, element: GroupElement) -> Array:
        """escnn's matrix on the base space."""
        return matrix(self.space.basespace_action, element)

    def own(self, number: int, point: Point) -> Point:
        """g⁻¹p."""
        return tuple(map(float, self.actions[number].T @ np.array(point)))

    def parts(self, action: Array) -> tuple[Array, int]:
        """r and s."""
        reflected = int(np.linalg.det(action) < 0)
        return (action @ np.linalg.inv(self.mirror) if reflected else action), reflected

    def coordinates(self, action: Array) -> dict[str, list[float]]:
        """Those of an element by subgroup: the table of docs/concepts/mathematics.md."""
        rotation, reflected = self.parts(action)
        if self.about_axis:
            of_rotation = rotation.T @ [0, 0, 1]
        else:
            power = np.linalg.matrix_power(rotation, self.fold)
            of_rotation = power.ravel() / math.sqrt(2) if len(power) == 3 else power[:, 0]
            if self.form == "log":
                of_rotation = np.array([angle_of(power) / (2 * math.pi)])
        return {"rotation": of_rotation.tolist(), "reflection": [reflected / 2]}


def angle_of(rotation: Array) -> float:
    """The principal angle of a rotation of the plane, in (−π, π]."""
    angle = math.atan2(rotation[1, 0], rotation[0, 0])
    return math.pi if angle < -math.pi + 1e-9 else angle


def coset(representation: Representation, element: GroupElement) -> int:
    """The channel that g moves channel 0 to: the coset of g."""
    return int(np.argmax(matrix(representation, element)[:, 0]))


def permutation(representation: Representation, elements: Sequence[GroupElement]) -> list[int] | None:
    """The coset of every element; None for a field that is no transitive permutation of its channels."""
    if representation.group.continuous or representation.size == 1:
        return None
    for found in (matrix(representation, g) for g in elements):
        if not set(np.unique(found)) <= {0.0, 1.0} or (found.sum(axis=0) != 1).any():
            return None
    images = [coset(representation, g) for g in elements]
    return images if len(set(images)) == representation.size else None


@functools.cache
def matrix(representation: Representation, element: GroupElement) -> Array:
    """escnn's matrix, which it would put together of irreps at every call; whole numbers without its rounding."""
    found = np.array(representation(element), dtype=np.float64)
    return found.round() if np.abs(found - found.round()).max() < 1e-6 else found
