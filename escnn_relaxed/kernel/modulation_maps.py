"""The linear map from functions of the domain to those by which the channels and taps of a kernel are modulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..group.exact_constants import ExactConstants
from ..group.field_elements import channel_elements
from ..group.frame import GroupFrame
from .domain_functions import independent

if TYPE_CHECKING:  # exported layers come here too, and run without escnn
    from escnn.group import Representation

__all__ = ["FieldKind", "ModulationMaps", "Side"]

Array = NDArray[np.float64]

# The highest power of ⟨g e, d/|d|⟩: what is kept by quarter turns is not seen below the fourth.
_DEGREES = 4
# Sums over elements that should be 0 are smaller.
_SAME = 1e-9


class FieldKind(NamedTuple):
    """Output fields of one representation.

    Attributes:
        fields: their number.
        elements: the group elements of each channel, as a mean over the sample, (channels, M).
        functions: numbers of the functions h of the elements.
    """

    fields: int
    elements: Array
    functions: list[int]

    @property
    def size(self) -> int:
        """Channels of a field."""
        return len(self.elements)


class Side(NamedTuple):
    """A function of the taps, mean_g h(g) ⟨g e, d/|d|⟩ⁿ.

    Attributes:
        function: the number of h.
        axis: that of e.
        degree: n.
    """

    function: int
    axis: int
    degree: int


class ModulationMaps(ExactConstants):
    """From h at all elements to its means over the elements of channels, and to mean_g h(g) ⟨g e, d/|d|⟩ⁿ at the taps.

    n is 1, or for a function h of elements alone the least power whose mean is not 0. A function is left out if it is a
    sum of others at all elements and positions.

    Args:
        fields: one of each kind of the output's fields.
        counts: how many there are of each.
        frame: the sampled group elements.
        taps: offsets of the taps in pixels, (T, d).
        values: h at all positions and elements, (P, J, M).

    Attributes:
        kinds: the kinds of fields, with the functions of their elements.
        sides: the functions of the taps.
        of_values: the map (J·M, columns). Its columns are the channels of each function of each kind, and then the taps
            of each side.
        function_of_column: the number of the function that a column belongs to, (columns,).
    """

    of_values: Tensor
    function_of_column: Tensor

    def __init__(
        self,
        fields: Sequence[Representation],
        counts: Sequence[int],
        frame: GroupFrame,
        taps: Array,
        values: Array,
    ) -> None:
        super().__init__()
        length = np.linalg.norm(taps, axis=-1, keepdims=True)
        self._directions = np.divide(taps, length, out=np.zeros_like(taps), where=length > 0).T
        self._functions = values.shape[1]
        self.sides = self._independent_sides(values, frame.sample.action)
        elements = [channel_elements([field], frame.sample)[0] for field in fields]
        functions = [_independent(np.einsum("pjm,am->jpa", values, of), 1) for of in elements]
        self.kinds = [FieldKind(*of) for of in zip(counts, elements, functions, strict=True)]
        sizes = [kind.size for kind in self.kinds for _ in kind.functions] + [len(taps)] * len(self.sides)
        self.set_constant("function_of_column", np.repeat(np.arange(len(sizes)), sizes))
        self.set_frame(frame)

    def set_frame(self, frame: GroupFrame) -> None:
        """Take the elements of another frame, a turned grid of a continuous group."""
        action = frame.sample.action
        parts = [(number, kind.elements.T) for kind in self.kinds for number in kind.functions]
        parts += [(side.function, self._along(action, side.axis) ** side.degree / len(action)) for side in self.sides]
        columns = sum(part.shape[1] for _, part in parts)
        of_values = np.zeros((self._functions, len(action), columns))
        first = 0
        for number, part in parts:
            of_values[number, :, first : first + part.shape[1]] = part
            first += part.shape[1]
        self.set_constant("of_values", of_values.reshape(self._functions * len(action), columns))

    def _independent_sides(self, values: Array, action: Array) -> list[Side]:
        """Return the sides that do not depend on each other, given h (P, J, M) and the elements (M, d, d)."""
        sides: list[Side] = []
        functions: list[Array] = []
        axes = range(len(self._directions))
        along = np.stack([self._along(action, axis) for axis in axes])
        for number, function in enumerate(values.swapaxes(0, 1)):
            is_of_elements = np.ptp(function, axis=0).max() < _SAME
            for degree in range(1, 1 + (_DEGREES if is_of_elements else 1)):
                means = function @ along**degree / len(action)
                sides += [Side(number, axis, degree) for axis in axes]
                functions.append(means)
                if np.abs(means).max() > _SAME:
                    break
        return [sides[number] for number in _independent(np.concatenate(functions), 1)] if functions else []

    def _along(self, action: Array, axis: int) -> Array:
        """Return ⟨g e, d/|d|⟩ of an axis e at the taps, (M, T)."""
        along: Array = action[:, :, axis] @ self._directions
        return along

    @property
    def taps(self) -> int:
        """The number T of taps."""
        return self._directions.shape[1]

    @property
    def function_count(self) -> int:
        """The number of functions of all kinds and sides."""
        return sum(len(kind.functions) for kind in self.kinds) + len(self.sides)

    @property
    def weight_counts(self) -> list[int]:
        """The number of weights of each kind, and of the sides of all fields."""
        fields = sum(kind.fields for kind in self.kinds)
        return [*(kind.fields * len(kind.functions) for kind in self.kinds), fields * len(self.sides)]

    def columns_of(self, tap: int) -> list[int]:
        """Return the columns that f at one tap is made of."""
        end = self.of_values.shape[1]
        first = end - len(self.sides) * self.taps
        return [*range(first), *range(first + tap, end, self.taps)]

    def modulation(self, columns: Tensor, weights: Tensor, taps: int) -> Tensor:
        """Return f (P, C_out, taps), kind after kind of fields.

        Args:
            columns: the functions at P positions, (P, columns).
            weights: of all functions, those of the sides last.
            taps: the number of taps that the columns have.
        """
        sizes = [kind.size * len(kind.functions) for kind in self.kinds]
        *of_elements, of_taps = columns.split([*sizes, len(self.sides) * taps], dim=1)
        *alphas, mu = weights.split(self.weight_counts)
        counts = [kind.fields for kind in self.kinds]
        sides: list[Tensor | None] = [None] * len(counts)
        if self.sides:
            # (fields, sides) · (P, sides, taps).
            sides = list((mu.view(sum(counts), -1) @ of_taps.unflatten(1, (-1, taps))).unsqueeze(2).split(counts, 1))
        rows = []
        for kind, columns, alpha, side in zip(self.kinds, of_elements, alphas, sides, strict=True):
            shape = len(columns), kind.fields, kind.size, taps
            if kind.functions:
                # (fields, functions) · (P, functions, channels).
                functions = columns.unflatten(1, (-1, kind.size))
                part = (alpha.view(kind.fields, -1) @ functions).unsqueeze(-1)
                part = part if side is None else part + side
            else:
                part = columns.new_zeros(1, 1, 1, 1) if side is None else side
            rows.append(part.expand(shape).flatten(1, 2))
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


def _independent(functions: Array, lasting: int) -> list[int]:
    """Return the numbers of independent functions, which the first axes count."""
    return independent(torch.from_numpy(functions.reshape(int(np.prod(functions.shape[:lasting])), -1)))
