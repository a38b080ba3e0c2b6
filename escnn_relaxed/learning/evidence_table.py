"""Tables of what the data determine of softness, and of what hardening costs."""

from __future__ import annotations

import math
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
        >>> EvidenceRow("conv", "rotation", 20, 3.0, 0.002, 50.0).share
        0.15
    """

    layer: str
    subgroup: str
    weights: int
    determined: float
    softness: float
    precision: float

    @property
    def share(self) -> float:
        """γ/n, near 0 where the data do not ask for the softness and near 1 where they determine it."""
        return self.determined / self.weights

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        numbers = f"{self.weights}", f"{self.determined:.1f}", f"{self.share:.2f}", f"{self.softness:.1e}"
        return (self.layer, self.subgroup, *numbers)


@dataclass(frozen=True)
class HardeningTrial:
    """A subgroup that was made strict for a trial, and whether it stays so.

    Attributes:
        subgroup: the subgroup, or several that the layers can be strict in only together.
        layers: names of the layers.
        weights: n, the number of soft weights that go.
        rise: Δ, by how much the negative log likelihood of all observations rises.
        error: its standard error, by the spread over the inputs.
        price: by how much log p(data) falls for having these weights, where they do not fit the data better.
        is_hardened: whether the layers stay strict, since the rise is not far above the price.

    Example:
        >>> HardeningTrial("rotation", ("a", "b"), 40, 3.0, 1.0, 12.0, True).cells()
        ('rotation', '2 layers', '40', '3.0 ± 1.0', '12.0', 'strict')
    """

    subgroup: str
    layers: tuple[str, ...]
    weights: int
    rise: float
    error: float
    price: float
    is_hardened: bool

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        where = self.layers[0] if len(self.layers) == 1 else f"{len(self.layers)} layers"
        costs = f"{self.rise:.1f} ± {self.error:.1f}", f"{self.price:.1f}"
        return (self.subgroup, where, f"{self.weights}", *costs, "strict" if self.is_hardened else "soft")


class EvidenceTable(tuple[EvidenceRow, ...], Report):
    """A tuple of a row for each layer and subgroup that is soft; its text is a table.

    Example:
        >>> print(EvidenceTable((EvidenceRow("conv", "rotation", 20, 3.0, 0.002, 50.0),)))
        layer  subgroup  weights n  determined γ  γ/n   softness s
        conv   rotation  20         3.0           0.15  2.0e-03
    """

    @property
    def rows(self) -> tuple[EvidenceRow, ...]:
        """The rows, as of other reports, in the order of the layers."""
        return tuple(self)

    def by_subgroup(self) -> EvidenceTable:
        """Return a short table with a row for each subgroup, of all layers that are soft in it.

        Numbers of weights and γ are sums, the softness is that of the softest layer, and δ is left out, NaN.

        Example:
            >>> first = EvidenceRow("first", "rotation", 20, 3.0, 0.002, 50.0)
            >>> second = EvidenceRow("second", "rotation", 10, 6.0, 0.01, 2.0)
            >>> print(EvidenceTable((first, second)).by_subgroup())
            layer     subgroup  weights n  determined γ  γ/n   softness s
            2 layers  rotation  30         9.0           0.30  1.0e-02
        """
        rows = []
        for name in dict.fromkeys(row.subgroup for row in self):
            of = [row for row in self if row.subgroup == name]
            layer = of[0].layer if len(of) == 1 else f"{len(of)} layers"
            sums = sum(row.weights for row in of), sum(row.determined for row in of)
            rows.append(EvidenceRow(layer, name, *sums, max(row.softness for row in of), math.nan))
        return EvidenceTable(rows)

    def __str__(self) -> str:
        header = ("layer", "subgroup", "weights n", "determined γ", "γ/n", "softness s")
        return plain_table(header, [row.cells() for row in self])


class HardeningReport(tuple[HardeningTrial, ...], Report):
    """A tuple of a row for each trial, in their order; its text is a table.

    Example:
        >>> trial = HardeningTrial("rotation", ("first", "second"), 40, 351.0, 20.0, 14.0, False)
        >>> print(HardeningReport((trial,)))
        subgroup  where     weights n  rise Δ        price  result
        rotation  2 layers  40         351.0 ± 20.0  14.0   soft
    """

    @property
    def rows(self) -> tuple[HardeningTrial, ...]:
        """The rows, as of other reports: subgroups in all layers, and those that stay soft in each layer alone."""
        return tuple(self)

    def __str__(self) -> str:
        header = ("subgroup", "where", "weights n", "rise Δ", "price", "result")
        return plain_table(header, [trial.cells() for trial in self])
