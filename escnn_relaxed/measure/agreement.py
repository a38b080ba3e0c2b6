"""How often a classifier changes its mind when an image is turned, reflected or shifted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from escnn.group import GroupElement
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn

from .forward_probe import Answer, evaluated
from .measured_network import MeasuredNetwork, Shifts
from .tables import plain_table

__all__ = ["AgreementReport", "AgreementRow", "prediction_agreement"]


@dataclass(frozen=True)
class AgreementRow:
    """Agreement under one transformation; ``pandas.DataFrame(report.rows)`` makes a table of them.

    Attributes:
        name: of the transformation, in degrees or pixels.
        subgroup: ``"rotation"``, ``"reflection"`` or ``"translation"``.
        angle: in radians, [0, 2π); of a reflection the turn that follows on y → −y; 0 for a shift.
        kind: ``"exact"``, ``"strided"`` or ``"interpolated"``, as in :class:`~escnn_relaxed.measure.ErrorRow`.
        agreement: part of the images that get the same class before and after.
        resampling: the same for an image that is turned there and back, what interpolation alone changes; 1 where
            nothing is interpolated.

    Example:
        >>> row = AgreementRow("rotation 90°", "rotation", 1.5708, "exact", agreement=0.83, resampling=1.0)
        >>> f"{row.name}: {row.agreement:.0%} keep their class"
        'rotation 90°: 83% keep their class'
    """

    name: str
    subgroup: str
    angle: float
    kind: str
    agreement: float
    resampling: float


@dataclass(frozen=True)
class AgreementReport:
    """A row for each transformation; its text is a table.

    Attributes:
        rows: in the order elements, angles, shifts.
        orbit: part of the images that get one class under all of these transformations and without.

    Example:
        >>> print(AgreementReport((AgreementRow("rotation 90°", "rotation", 1.5708, "exact", 0.83, 1.0),), orbit=0.83))
        transformation  kind   agreement  resampling alone
        rotation 90°    exact  0.830
        all of these           0.830
    """

    rows: tuple[AgreementRow, ...]
    orbit: float

    def __str__(self) -> str:
        lines = [
            [row.name, row.kind, f"{row.agreement:.3f}", f"{row.resampling:.3f}" if row.kind == "interpolated" else ""]
            for row in self.rows
        ]
        lines.append(["all of these", "", f"{self.orbit:.3f}", ""])
        return plain_table(["transformation", "kind", "agreement", "resampling alone"], lines)


def prediction_agreement(
    classifier: nn.Module,
    data: Tensor | GeometricTensor,
    *,
    in_type: FieldType | None = None,
    elements: Sequence[GroupElement] | None = None,
    angles: Sequence[float] = (),
    shifts: Shifts = (),
) -> AgreementReport:
    """The part of images that a classifier gives the same class before and after a transformation.

    The class is the largest of the logits. The classifier is run in eval mode without gradients, and left as it was.
    Interpolated transformations fade images as in :func:`~escnn_relaxed.equivariance_error`, before and after alike.

    Args:
        classifier: a network with an output (batch, classes); its forward takes a GeometricTensor, or a plain tensor.
        data: images, (batch, C, H, W).
        in_type: fields of the input. By default those of the network, or of the first module inside that has some.
        elements: of the fiber group; all of them by default (16 rotations of a continuous group), ``()`` for none.
        angles: further rotations, in radians.
        shifts: rows down and columns to the right, in pixels.

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
        >>> [(row.name, row.agreement) for row in report.rows]
        [('rotation 90°', 0.0), ('rotation 180°', 0.0), ('rotation 270°', 0.0)]
    """
    network = MeasuredNetwork(classifier, None, data, in_type, None, ("",))
    rows = []
    same = torch.ones(1, dtype=torch.bool)
    with evaluated(classifier):
        for motion in network.required_motions(elements, angles, shifts):
            passed = network.transformed(motion)
            before, after, returned = (_classes(found[""]) for found in (passed.before, passed.after, passed.returned))
            agreement, resampling = ((classes == before).double().mean().item() for classes in (after, returned))
            rows.append(
                AgreementRow(motion.name, motion.subgroup, motion.angle, passed.kind(""), agreement, resampling)
            )
            same = same.to(before.device) & (after == before)
    return AgreementReport(tuple(rows), same.double().mean().item())


def _classes(answer: Answer) -> Tensor:
    tensor = answer.tensor
    logits = tensor.flatten(1) if tensor.shape[2:].numel() == 1 else tensor
    if logits.dim() != 2:
        raise ValueError(f"classifier: the output must be (batch, classes), got {tuple(tensor.shape)}")
    return logits.argmax(dim=1)
