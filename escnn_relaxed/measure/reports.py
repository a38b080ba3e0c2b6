"""Reports that the measures return: rows, and a table as text."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar


class Report:
    """Rows, which are dataclasses, and a table as text; ``pandas.DataFrame(report.rows)`` makes a data frame."""

    __slots__ = ()

    rows: Any
    _header: ClassVar[tuple[str, ...]]  # of the columns that ``cells()`` of a row fills

    def __str__(self) -> str:
        return plain_table(self._header, [row.cells() for row in self.rows])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True)
class ErrorRow:
    """The error under one transformation.

    Attributes:
        name: the transformation in degrees or pixels. ``"reflection along x"`` is x → −x, and along 45° that of the
            direction at 45° from x. In space with the axis, a coordinate or a vector: ``"rotation 120° about
            (1, 1, 1)"``, ``"inversion"``, and ``"rotation 90° about z, inverted"``, the turn of the inverted volume.
        subgroup: ``"rotation"``, ``"reflection"`` or ``"translation"``; ``"group"`` of elements that are none of these,
            whose name is as escnn writes them, ``"element (0, 1)"``.
        angle: in degrees, [0, 360), 0 for a shift. A reflection is this turn after y → −y, in space after the
            inversion. The first component of an axis in space that is not 0 is positive.
        kind: ``"exact"`` where pixels go to pixels in every feature map; ``"strided"`` where a stride does not fit the
            size or the shift; else ``"interpolated"``.
        error: ‖f(gx) − g f(x)‖ / ‖f(x)‖.
        resampling: error of interpolation alone: 0 for exact rows, NaN for strided ones whose output has no pixels.
        is_empty: whether nothing was compared, since f(x) is 0 or all pixels are left out; the error is 0 then.

    Example:
        >>> row = ErrorRow(
        ...     "rotation 45°", "rotation", 45.0, "interpolated", error=0.15, resampling=0.014
        ... )
        >>> row.error > row.resampling  # more than interpolation can explain
        True
    """

    name: str
    subgroup: str
    angle: float
    kind: str
    error: float
    resampling: float
    is_empty: bool = False

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        resampling = f"{self.resampling:.2g}" if self.resampling > 0 else ""
        return self.name, self.kind, "nothing compared" if self.is_empty else f"{self.error:.2g}", resampling


@dataclass(frozen=True)
class EquivarianceReport(Report):
    """A row for each transformation; its text is a table.

    Attributes:
        layer: name of the module whose output was compared, ``""`` for the whole.
        rows: exact, strided and interpolated ones, in the order elements, angles, shifts.

    Example:
        >>> turn = ErrorRow("rotation 90°", "rotation", 90.0, "exact", 5e-7, 0.0)
        >>> between = ErrorRow("rotation 45°", "rotation", 45.0, "interpolated", 0.15, 0.014)
        >>> report = EquivarianceReport("", (turn, between))
        >>> print(report)
        transformation  kind          error  resampling alone
        rotation 90°    exact         5e-07
        rotation 45°    interpolated  0.15   0.014
        >>> [row.name for row in report.exact]
        ['rotation 90°']
    """

    layer: str
    rows: tuple[ErrorRow, ...]
    _header = ("transformation", "kind", "error", "resampling alone")

    @property
    def exact(self) -> tuple[ErrorRow, ...]:
        """The rows in which nothing is interpolated."""
        return tuple(row for row in self.rows if row.kind == "exact")


def plain_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return columns of equal width as text, a row for each of ``lines``; cells may be of several lines."""
    rows = [[cell.split("\n") for cell in line] for line in (header, *lines)]
    cells = [line for row in rows for line in zip_longest(*row, fillvalue="")]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in padded)
