"""What the measures return: rows, in reports whose text is a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True)
class ErrorRow:
    """The error under one transformation; ``pandas.DataFrame(report.rows)`` makes a table of them.

    Attributes:
        name: of the transformation, in degrees or pixels. In space with the axis, a coordinate or a vector:
            ``"rotation 120° about (1, 1, 1)"``, ``"inversion"``, ``"reflection along z"`` (z → −z), and ``"rotation 90°
            about z, inverted"``, the turn of the inverted volume.
        subgroup: ``"rotation"``, ``"reflection"`` or ``"translation"``.
        angle: in radians, [0, 2π); of a reflection the turn that follows on y → −y, in space on the inversion; 0 for a
            shift. In space it is about the axis whose first component that is not 0 is positive.
        kind: ``"exact"`` where pixels go to pixels in every feature map; ``"strided"`` where they do in the image, but
            not in all maps, since a stride does not fit the size (or the shift); else ``"interpolated"``.
        error: ‖f(gx) − g f(x)‖ / ‖f(x)‖; of :func:`~escnn_relaxed.prediction_agreement` the part of the images that
            get another class.
        resampling: what interpolation alone costs: 0 for exact rows, NaN for strided ones whose output has no pixels.

    Example:
        >>> row = ErrorRow(
        ...     "rotation 45°", "rotation", 0.7854, "interpolated", error=0.15, resampling=0.014
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


@dataclass(frozen=True)
class EquivarianceReport:
    """A row for each transformation; its text is a table.

    Attributes:
        layer: name of the module whose output was compared, ``""`` for the whole.
        rows: exact and interpolated ones, in the order elements, angles, shifts.

    Example:
        >>> turn = ErrorRow("rotation 90°", "rotation", 1.5708, "exact", 5e-7, 0.0)
        >>> between = ErrorRow("rotation 45°", "rotation", 0.7854, "interpolated", 0.15, 0.014)
        >>> report = EquivarianceReport("", (turn, between))
        >>> print(report)
        transformation  kind          error  resampling alone
        rotation 90°    exact         5e-07
        rotation 45°    interpolated  0.15   0.014
        >>> len(report.exact), len(report.interpolated)
        (1, 1)
    """

    layer: str
    rows: tuple[ErrorRow, ...]

    @property
    def exact(self) -> tuple[ErrorRow, ...]:
        """The rows in which nothing is interpolated."""
        return tuple(row for row in self.rows if row.kind == "exact")

    @property
    def interpolated(self) -> tuple[ErrorRow, ...]:
        """The other rows, strided ones too, to be read beside ``resampling``."""
        return tuple(row for row in self.rows if row.kind != "exact")

    def __str__(self) -> str:
        lines = [
            [row.name, row.kind, f"{row.error:.2g}", f"{row.resampling:.2g}" if row.resampling > 0 else ""]
            for row in self.rows
        ]
        return plain_table(["transformation", "kind", "error", "resampling alone"], lines)


@dataclass(frozen=True)
class AgreementReport:
    """A row for each transformation; its text is a table.

    Attributes:
        rows: in the order elements, angles, shifts. ``error`` is the part of the images that get another class, and
            ``resampling`` that of images turned there and back, what interpolation alone changes.
        orbit: part of the images that get one class under all of these transformations and without.

    Example:
        >>> turn = ErrorRow("rotation 90°", "rotation", 1.5708, "exact", error=0.17, resampling=0.0)
        >>> print(AgreementReport((turn,), orbit=0.83))
        transformation  kind   agreement  resampling alone
        rotation 90°    exact  0.830
        all of these           0.830
    """

    rows: tuple[ErrorRow, ...]
    orbit: float

    def __str__(self) -> str:
        alone = [f"{1 - row.resampling:.3f}" if row.kind == "interpolated" else "" for row in self.rows]
        lines = [[row.name, row.kind, f"{1 - row.error:.3f}", kept] for row, kept in zip(self.rows, alone, strict=True)]
        lines.append(["all of these", "", f"{self.orbit:.3f}", ""])
        return plain_table(["transformation", "kind", "agreement", "resampling alone"], lines)


@dataclass(frozen=True)
class AblationRow:
    """One row of the ablation; ``pandas.DataFrame(report.rows)`` makes a table of them.

    Attributes:
        part: the part that was hardened: a layer, a subgroup, ``"everything"`` or ``"nothing"``.
        kind: ``"layer"``, ``"subgroup"`` or ``"network"``.
        value: what ``evaluate`` gave.
        change: value less that of the whole network.
        softness: s of that part; the largest where it has several layers.

    Example:
        >>> row = AblationRow("features.0", "layer", value=52.5, change=-47.0, softness=0.01)
        >>> f"without the softness of {row.part}: {row.change} points"
        'without the softness of features.0: -47.0 points'
    """

    part: str
    kind: str
    value: float
    change: float
    softness: float


class AblationReport(tuple[AblationRow, ...]):
    """A tuple of a row for each part that was hardened: nothing, layers, subgroups, everything; its text is a table.

    Example:
        >>> whole = AblationRow("nothing", "network", 99.5, 0.0, 0.01)
        >>> report = AblationReport((whole, AblationRow("features.0", "layer", 52.5, -47.0, 0.01)))
        >>> print(report)
        hardened          value   change  softness
        nothing           99.50             0.0100
        features.0        52.50   -47.00    0.0100
        >>> len(report), report[-1].part, [row.change for row in report]
        (2, 'features.0', [0.0, -47.0])
    """

    __slots__ = ()

    @property
    def rows(self) -> tuple[AblationRow, ...]:
        """The rows, as of other reports."""
        return tuple(self)

    def __str__(self) -> str:
        width = max(14, *(len(part) + 2 for part in ("hardened", *(row.part for row in self))))
        lines = [f"{'hardened':<{width}} {'value':>8} {'change':>8} {'softness':>9}"]
        for row in self:
            change = "" if row.part == "nothing" else f"{row.change:+.2f}"
            lines.append(f"{row.part:<{width}} {row.value:>8.2f} {change:>8} {row.softness:>9.4f}")
        return "\n".join(lines)


def plain_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return columns of equal width as text, a row for each of ``lines``; cells may be of several lines."""
    rows = [[cell.split("\n") for cell in line] for line in (header, *lines)]
    cells = [line for row in rows for line in zip_longest(*row, fillvalue="")]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in padded)
