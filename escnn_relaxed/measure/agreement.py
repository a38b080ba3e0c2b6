"""The part of images whose predicted class changes when they are turned, reflected or shifted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from escnn.group import GroupElement
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn

from ..checks import check_module
from .equivariance import ErrorRow
from .forward_probe import ModuleOutput, Output, evaluated
from .measured_network import MeasuredNetwork, Shifts
from .tables import plain_table

__all__ = ["AgreementReport", "prediction_agreement"]


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
        lines = [[row.name, row.kind, f"{1 - row.error:.3f}", _kept_by_resampling(row)] for row in self.rows]
        lines.append(["all of these", "", f"{self.orbit:.3f}", ""])
        return plain_table(["transformation", "kind", "agreement", "resampling alone"], lines)


def prediction_agreement(
    classifier: nn.Module,
    data: Tensor | GeometricTensor | tuple[Any, ...],
    *,
    in_type: FieldType | None = None,
    elements: Sequence[GroupElement] | None = None,
    angles: Sequence[float] = (),
    shifts: Shifts = (),
    output: Output = None,
) -> AgreementReport:
    """Measure the part of images that a classifier gives the same class before and after a transformation.

    The class is the largest of the logits. The classifier is run in eval mode without gradients, and left as it was.
    Interpolated transformations fade images as in :func:`~escnn_relaxed.equivariance_error`, before and after alike.

    Args:
        classifier: a network with an output (batch, classes); its forward takes a GeometricTensor, or a plain tensor.
        data: images (batch, C, H, W) or volumes (batch, C, D, H, W), or a tuple of all inputs as of
            :func:`~escnn_relaxed.equivariance_error`.
        in_type: fields of the input. By default those of the network, or of the first module inside that has some.
        elements: of the fiber group; all of them by default (of a continuous group 16 rotations, of SO(3) and O(3) the
            24 of the cube), ``()`` for none.
        angles: further rotations, in radians, in space about z.
        shifts: rows down and columns to the right, in pixels; of volumes planes before them.
        output: from what the classifier returns to the logits, where it returns a dict or a tuple.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for images that do not fit, nothing to measure, or an output that is not (batch, classes).

    Example:
        >>> from escnn import gspaces
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> image = FieldType(gspace, [gspace.trivial_repr])
        >>> class BrightestColumn(nn.Module):
        ...     def forward(self, images: Tensor) -> Tensor:
        ...         return images.sum(dim=(1, 2))
        >>> left = torch.zeros(1, 1, 5, 5)
        >>> left[..., 2, 0] = 1
        >>> report = prediction_agreement(BrightestColumn(), left, in_type=image)
        >>> [(row.name, row.error) for row in report.rows]
        [('rotation 90°', 1.0), ('rotation 180°', 1.0), ('rotation 270°', 1.0)]
    """
    check_module("classifier", classifier)
    network = MeasuredNetwork(classifier, None, data, in_type, None, ("",), output)
    rows = []
    same = torch.ones(1, dtype=torch.bool)
    with evaluated(classifier):
        for isometry in network.required_isometries(elements, angles, shifts):
            passed = network.transformed(isometry)
            before, after, returned = (_classes(found[""]) for found in (passed.before, passed.after, passed.returned))
            error, resampling = ((classes != before).double().mean().item() for classes in (after, returned))
            rows.append(ErrorRow(isometry.name, isometry.subgroup, isometry.angle, passed.kind(""), error, resampling))
            same = same.to(before.device) & (after == before)
    return AgreementReport(tuple(rows), same.double().mean().item())


def _kept_by_resampling(row: ErrorRow) -> str:
    return f"{1 - row.resampling:.3f}" if row.kind == "interpolated" else ""


def _classes(found: ModuleOutput) -> Tensor:
    tensor = found.tensor
    logits = tensor.flatten(1) if tensor.shape[2:].numel() == 1 else tensor
    if logits.dim() != 2:
        raise ValueError(f"classifier: the output must be (batch, classes), got {tuple(tensor.shape)}")
    return logits.argmax(dim=1)
