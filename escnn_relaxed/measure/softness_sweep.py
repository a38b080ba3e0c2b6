"""The accuracy of a classifier on untransformed and transformed images, as a gate reduces its softness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from torch import Tensor, nn

from ..checks import check_number, check_sequence
from ..network.gate import gate_softness
from .batches import Batches
from .measured_network import Data
from .reports import Report, plain_table
from .robustness import RobustnessReport, robustness_report


@dataclass(frozen=True)
class SweepRow:
    """Accuracy of a classifier under one gate on its softness.

    Attributes:
        gate: g; 0 is strict, and 1 the network as it is.
        accuracy: part of the images as they are whose class is right.
        transformed: the same of transformed images, the mean over the transformations.
        worst: the least of these.
        report: the accuracy after each transformation.

    Example:
        >>> report = RobustnessReport(0.9, 100, ())
        >>> SweepRow(0.5, 0.9, 0.6, 0.4, report).cells()
        ('0.5', '90.0', '60.0', '40.0')
    """

    gate: float
    accuracy: float
    transformed: float
    worst: float
    report: RobustnessReport

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        return (f"{self.gate:g}", *(f"{100 * value:.1f}" for value in (self.accuracy, self.transformed, self.worst)))


@dataclass(frozen=True)
class SoftnessSweep(Report):
    """A row for each gate; its text is a table.

    Attributes:
        rows: in the order of the gates.

    Example:
        >>> print(SoftnessSweep((SweepRow(0.5, 0.9, 0.6, 0.4, RobustnessReport(0.9, 100, ())),)))
        gate g  right, %  transformed, %  worst, %
        0.5     90.0      60.0            40.0
    """

    rows: tuple[SweepRow, ...]

    def __str__(self) -> str:
        return plain_table(["gate g", "right, %", "transformed, %", "worst, %"], [[*row.cells()] for row in self.rows])


def softness_sweep(
    network: nn.Module,
    data: Data | Batches,
    labels: Tensor | None = None,
    *subgroups: str,
    gates: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    **measuring: Any,
) -> SoftnessSweep:
    """Measure the accuracy of a classifier on untransformed and transformed images, under several gates.

    A network that has learned which way up its images are gains by its softness on such images, and loses on others.
    The sweep shows how much of both a gate g leaves. :func:`~escnn_relaxed.network.write_gate` writes the g that you
    pick into the weights. Images must not be those of the training, and not those of the final test either, as g is
    chosen by them.

    Args:
        network: a classifier with relaxed layers, left as it was.
        data: images, as in :func:`~escnn_relaxed.robustness_report`.
        labels: the class of each image; left out with a DataLoader.
        *subgroups: only the softness in these is gated; by default all.
        gates: the values of g; 1 is the network as it is, and 0 its nearest strict network.
        **measuring: ``in_type``, ``elements``, ``angles``, ``shifts``, ``batch_size`` and ``output`` of
            :func:`~escnn_relaxed.robustness_report`.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for no gate, one that is not finite, a network without a relaxed layer, or with none that is soft in
            the named subgroups, or nothing to measure.

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> image = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> two_classes = nn.FieldType(gspace, [gspace.trivial_repr] * 2)
        >>> network = RelaxedR2Conv(image, two_classes, 5, initial_softness=0.3)
        >>> sweep = softness_sweep(network, torch.randn(20, 1, 5, 5), torch.arange(20) % 2)
        >>> [row.gate for row in sweep.rows], sweep.rows[0].accuracy == sweep.rows[0].transformed
        ([0.0, 0.25, 0.5, 0.75, 1.0], True)
    """
    wanted = [check_number("gates", gate) for gate in check_sequence("gates", gates, "numbers")]
    if not wanted:
        raise ValueError("gates must have a number, got none")
    rows = []
    for gate in wanted:
        with gate_softness(network, gate, *subgroups):
            report = robustness_report(network, data, labels, **measuring)
        accuracies = [row.accuracy for row in report.rows]
        rows.append(SweepRow(gate, report.accuracy, fmean(accuracies), min(accuracies), report))
    return SoftnessSweep(tuple(rows))
