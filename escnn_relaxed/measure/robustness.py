"""The accuracy of a classifier on untransformed images and after each transformation, in chunks of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from escnn.group import GroupElement
from escnn.nn import FieldType
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..checks import SUBGROUPS, check_integer, check_module
from ..network.relaxed_layers import first_input, in_eval_mode
from .batches import Batches, device_of, labelled_chunks
from .forward_probe import ModuleOutput, OutputSelector
from .measured_network import Data, MeasuredNetwork, Pass, Shifts
from .reports import Report, plain_table


@dataclass(frozen=True)
class RobustnessRow:
    """Accuracy of a classifier on images after one transformation.

    Attributes:
        name: of the transformation; this, its subgroup, angle and kind are as in
            :class:`~escnn_relaxed.measure.ErrorRow`.
        subgroup: ``"rotation"``, ``"reflection"`` or ``"translation"``.
        angle: in degrees.
        kind: ``"exact"``, ``"strided"`` or ``"interpolated"``.
        accuracy: part of the images whose class is right.
        agreement: part of the images that get the same class as before.
        error: ‖f(gx) − f(x)‖ / ‖f(x)‖ of the logits, the equivariance error.
        resampling: accuracy on images turned there and back, which interpolation alone leaves.

    Example:
        >>> row = RobustnessRow("rotation 90°", "rotation", 90.0, "exact", 0.42, 0.45, 0.9, 0.97)
        >>> f"{row.resampling - row.accuracy:.2f} are lost by the turn"
        '0.55 are lost by the turn'
    """

    name: str
    subgroup: str
    angle: float
    kind: str
    accuracy: float
    agreement: float
    error: float
    resampling: float


@dataclass(frozen=True)
class RobustnessReport(Report):
    """A row for each transformation; prints as a table with a row for untransformed images and each subgroup.

    Attributes:
        accuracy: part of the images as they are whose class is right.
        images: number of images.
        rows: in the order elements, angles, shifts.

    Example:
        >>> row = RobustnessRow("rotation 90°", "rotation", 90.0, "exact", 0.42, 0.45, 0.9, 0.97)
        >>> print(RobustnessReport(0.97, 1000, (row,)))
        images               right, %    worst, %             same class, %  error
        as they are          97.0 ± 0.5
        rotation, mean of 1  42.0        42.0 (rotation 90°)  45.0           0.9
    """

    accuracy: float
    images: int
    rows: tuple[RobustnessRow, ...]

    def __str__(self) -> str:
        standard_error = math.sqrt(self.accuracy * (1 - self.accuracy) / self.images)
        lines = [["as they are", f"{100 * self.accuracy:.1f} ± {100 * standard_error:.1f}", "", "", ""]]
        for name in SUBGROUPS:
            rows = [row for row in self.rows if row.subgroup == name]
            if not rows:
                continue
            worst = min(rows, key=lambda row: row.accuracy)
            accuracy, agreement = fmean(row.accuracy for row in rows), fmean(row.agreement for row in rows)
            error = math.sqrt(fmean(row.error**2 for row in rows))
            cells = f"{100 * accuracy:.1f}", f"{100 * worst.accuracy:.1f} ({worst.name})", f"{100 * agreement:.1f}"
            lines.append([f"{name}, mean of {len(rows)}", *cells, f"{error:.2g}"])
        return plain_table(["images", "right, %", "worst, %", "same class, %", "error"], lines)


@torch.no_grad()
def robustness_report(
    classifier: nn.Module,
    data: Data | Batches,
    labels: Tensor | None = None,
    *,
    in_type: FieldType | None = None,
    elements: Sequence[GroupElement] | None = None,
    angles: Sequence[float] = (),
    shifts: Shifts = (),
    batch_size: int = 250,
    output: OutputSelector = None,
) -> RobustnessReport:
    """Measure the accuracy of a classifier on untransformed images and after each transformation.

    A soft network may have learned which way up its images are, and then fails on others. Its accuracy on images like
    those of the training does not show that. Take images that were not trained on, whose classes a transformation does
    not change.

    The classifier runs in eval mode without gradients, and is left as it was. Interpolated transformations fade images
    to 0 outside of their inscribed circle, before and after, as in :func:`~escnn_relaxed.equivariance_error`:
    ``resampling`` of a row is the accuracy that interpolation alone leaves.

    Args:
        classifier: a network with an output (batch, classes); its forward takes a GeometricTensor, or a plain tensor.
        data: images (batch, C, H, W) or volumes (batch, C, D, H, W), as a tensor or GeometricTensor; or a tuple of all
            inputs, images first, of which tensors with as many entries go with the images; or a DataLoader of batches
            (images, labels), which are looked at one after the other.
        labels: the class of each image, (batch,); left out with a DataLoader.
        in_type: fields of the input. By default those of the classifier, or of the first module inside that has some.
        elements: of the fiber group; all but the identity by default, of a continuous group 16 rotations, ``()`` for
            none.
        angles: further rotations, in degrees.
        shifts: in pixels, (rows down, columns to the right), of volumes (planes, rows, columns).
        batch_size: number of images that are looked at together.
        output: from what the classifier returns to the logits, where it returns a dict or a tuple.

    Returns:
        A :class:`~escnn_relaxed.measure.RobustnessReport`, a row for each transformation.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for labels that are not one for each image, or nothing to measure.

    Example:
        >>> from escnn import gspaces
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> class BrightestColumn(nn.Module):
        ...     def forward(self, images: Tensor) -> Tensor:
        ...         return images.sum(dim=(1, 2))
        >>> left = torch.zeros(1, 1, 5, 5)
        >>> left[..., 2, 0] = 1
        >>> image = FieldType(gspace, [gspace.trivial_repr])
        >>> report = robustness_report(BrightestColumn(), left, torch.tensor([0]), in_type=image)
        >>> report.accuracy, [(row.name, row.accuracy) for row in report.rows[:2]]
        (1.0, [('rotation 90°', 0.0), ('rotation 180°', 0.0)])
    """
    check_module("classifier", classifier)
    check_integer("batch_size", batch_size, 1)
    if not isinstance(data, DataLoader):
        _check_labels(data, labels)
    chunks = labelled_chunks(("data", "labels"), data, labels, batch_size, device_of(classifier))
    right, count, names = 0, 0, list[tuple[str, str, float, str]]()
    sums = torch.zeros((), dtype=torch.float64)
    with in_eval_mode(classifier):
        for chunk, some in chunks:
            count += _check_labels(chunk, some)
            network = MeasuredNetwork(classifier, None, chunk, in_type, None, ("",), output)
            passes = list(network.passes(elements, angles, shifts))
            whole = network.whole[""]
            classes = _classes_of(whole)
            _check_range(some, whole.tensor)
            right += int((classes == some.to(classes.device)).sum())
            names = [passed.description("") for passed in passes]
            sums = sums + torch.stack([_sums(passed, some) for passed in passes])
    if not count:
        raise ValueError("data must have images, got an empty DataLoader")
    rows = (_row(name, row, count) for name, row in zip(names, sums.tolist(), strict=True))
    return RobustnessReport(right / count, count, tuple(rows))


def _sums(passed: Pass, labels: Tensor) -> Tensor:
    """Return sums over images, (5,): correct, same class, correct after g and g⁻¹, ‖f(gx) − f(x)‖² and ‖f(x)‖²."""
    before, after, returned = (_classes_of(outputs[""]) for outputs in (passed.before, passed.after, passed.returned))
    logits, moved = passed.before[""].tensor.double(), passed.after[""].tensor.double()
    labels = labels.to(before.device)
    each = after == labels, after == before, returned == labels, (moved - logits).square(), logits.square()
    return torch.stack([values.sum().double() for values in each]).cpu()


def _row(description: tuple[str, str, float, str], sums: list[float], images: int) -> RobustnessRow:
    """Return the row of all images from their sums."""
    right, same, returned, difference, before = sums
    error = math.sqrt(difference / before) if before > 0 else (math.inf if difference else 0.0)
    return RobustnessRow(*description, right / images, same / images, error, returned / images)


def _check_labels(data: Any, labels: Any) -> int:
    """Return the number of images, of which each must have a label."""
    count = len(first_input(data, "data"))
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        raise TypeError(f"labels must be a tensor of integers, got {getattr(labels, 'dtype', type(labels).__name__)}")
    if tuple(labels.shape) != (count,) or not count:
        raise ValueError(
            f"data and labels must be as many, and some: got {count} images and labels {tuple(labels.shape)}"
        )
    return count


def _check_range(labels: Tensor, logits: Tensor) -> None:
    """Raise a ``ValueError`` unless labels are classes of the output and the output is finite."""
    classes = max(logits[0].numel(), 2)  # one logit tells two classes
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"labels must be in 0 to {classes - 1}, the classes of the output, got {labels.min()} to {labels.max()}"
        )
    if not logits.isfinite().all():
        raise ValueError("classifier: the output must be finite, got NaN or infinite values")


def _classes_of(output: ModuleOutput) -> Tensor:
    """Return the class of each image, (batch,); for a single logit whether it is above 0."""
    tensor = output.tensor
    if tensor.dim() == 1 or tensor.shape[1:].numel() == 1:
        return (tensor.flatten() > 0).long()
    logits = tensor.flatten(1) if tensor.shape[2:].numel() == 1 else tensor
    if logits.dim() != 2:
        raise ValueError(f"classifier: the output must be (batch, classes) or one logit, got {tuple(tensor.shape)}")
    return logits.argmax(dim=1)
