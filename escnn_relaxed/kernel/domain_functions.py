"""The functions h of the domain coordinates, and a choice of functions that do not depend on each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["DomainFunctions", "independent"]

# A function is left out if this part of it, or less, is not a sum of the functions before it.
_LEAST = 0.1
# A function of this size (root mean square) is 0; those of :class:`DomainFunctions` are at most 1.
_NOTHING = 1e-3


class DomainFunctions:
    """Functions of the coordinates a of the domain: h = tanh(2π ω′ a) of each coordinate, and some of their products.

    Each function is 0 for ω′ = 0. Near 0 it has the slope of sin(2π ω′ a), and it grows with ω′. A sine would vanish on
    all elements of C4 at ω′ = 0.5. Some products are added: those of rotation and reflection, and some squares.
    Squares of positions tell the centre from the border. Squares of rotations of space tell an axis from other axes,
    whichever way it points.

    Args:
        columns: the subgroup of each coordinate.

    Example:
        >>> functions = DomainFunctions(["rotation", "rotation", "reflection"])
        >>> functions(torch.zeros(8, 3)).shape
        torch.Size([5, 8])
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._places: dict[str, slice] = {}
        for name in dict.fromkeys(columns):
            first = list(columns).index(name)
            self._places[name] = slice(first, first + list(columns).count(name))

    def __call__(self, coordinates: Tensor) -> Tensor:
        """Return the functions (J, points) of scaled coordinates 2π ω′ ⊙ a, (points, D)."""
        first = coordinates.tanh().mT
        added = [first[place].square() for name, place in self._places.items() if self._has_squares(name, place)]
        if "rotation" in self._places and "reflection" in self._places:
            rotation, reflection = (first[self._places[name]] for name in ("rotation", "reflection"))
            added.append((rotation[:, None] * reflection).flatten(0, 1))
        return torch.cat([first, *added]) if added else first

    @staticmethod
    def _has_squares(name: str, place: slice) -> bool:
        # A rotation of the plane has two coordinates.
        return name == "translation" or (name == "rotation" and place.stop - place.start > 2)


def independent(functions: Tensor) -> list[int]:
    """Return the numbers of the functions that are not sums of those before them, given their values (J, points).

    Example:
        >>> independent(torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))
        [0, 2]
    """
    kept: list[int] = []
    basis = functions[:0]
    sizes = functions.square().mean(1).sqrt()
    for number in torch.nonzero(sizes > _NOTHING).flatten().tolist():
        function = functions[number] / functions[number].norm()
        rest = function - function @ basis.mT @ basis
        left = rest.norm()
        if left > _LEAST:
            kept.append(number)
            basis = torch.cat([basis, (rest / left)[None]])
    return kept
