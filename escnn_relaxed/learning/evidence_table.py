"""The table of what the data determine of softness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..measure.reports import Report, plain_table


@dataclass(frozen=True)
class EvidenceRow:
    """The soft weights of one layer and subgroup; ``pandas.DataFrame(table)`` makes a table of them.

    Attributes:
        layer: name of the layer.
        subgroup: the subgroup, or ``"rotation × reflection"`` for functions of both.
        weights: their number n.
        determined: γ, the number of them that the data determine; not a number before the first update.
        softness: s of the layer in that subgroup.
        precision: δ of their prior.

    Example:
        >>> EvidenceRow("conv", "rotation", 20, 3.0, 0.002, 50.0).gamma_per_weight
        0.15
    """

    layer: str
    subgroup: str
    weights: int
    determined: float
    softness: float
    precision: float

    @property
    def gamma_per_weight(self) -> float:
        """γ/n, near 0 where the data do not ask for the softness and near 1 where they determine it."""
        return self.determined / self.weights

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        numbers = f"{self.weights}", f"{self.determined:.1f}", f"{self.gamma_per_weight:.2f}", f"{self.softness:.1e}"
        return (self.layer, self.subgroup, *numbers)


class EvidenceTable(tuple[EvidenceRow, ...], Report):
    """A tuple of a row for each layer and subgroup that is soft.

    Its text is a table with sums below: of each subgroup that several layers are soft in, and of all rows. Softness
    there is that of the softest.

    Example:
        >>> turns = EvidenceRow("conv", "rotation", 20, 3.0, 0.002, 50.0)
        >>> flips = EvidenceRow("conv", "reflection", 5, 2.0, 0.001, 50.0)
        >>> print(EvidenceTable((turns, flips)))
        layer  subgroup    weights n  determined γ  γ/n   softness s
        conv   rotation    20         3.0           0.15  2.0e-03
        conv   reflection  5          2.0           0.40  1.0e-03
        all    all         25         5.0           0.20  2.0e-03
    """

    @property
    def rows(self) -> tuple[EvidenceRow, ...]:
        """The rows, as of other reports, in the order of the layers; no sums are among them."""
        return tuple(self)

    def __str__(self) -> str:
        groups = {row.subgroup: [each for each in self if each.subgroup == row.subgroup] for row in self}
        sums = [_sum(f"{len(rows)} layers", name, rows) for name, rows in groups.items() if len(rows) > 1]
        if len(groups) > 1:
            sums.append(_sum("all", "all", self))
        header = ("layer", "subgroup", "weights n", "determined γ", "γ/n", "softness s")
        return plain_table(header, [row.cells() for row in (*self, *sums)])


def _sum(layer: str, subgroup: str, rows: Sequence[EvidenceRow]) -> EvidenceRow:
    """Return a row for several."""
    sums = sum(row.weights for row in rows), sum(row.determined for row in rows)
    return EvidenceRow(layer, subgroup, *sums, max(row.softness for row in rows), math.nan)
