"""The accuracy of a classifier on images as they are and after each transformation, in chunks of the data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from escnn.group import GroupElement
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn

from ..checks import SUBGROUPS, check_integer, check_module
from ..network.relaxed_layers import in_eval_mode
from .forward_probe import ModuleOutput, Output
from .measured_network import Data, MeasuredNetwork, Pass, Shifts
from .reports import Report, plain_table


@dataclass(frozen=True)
class RobustnessRow:
    """How a classifier does on images after one transformation.

    Attributes:
        name: of the transformation; this, its subgroup, angle and kind are as in
            :class:`~escnn_relaxed.measure.ErrorRow`.
        subgroup: ``"rotation"``, ``"reflection"`` or ``"translation"``.
        angle: in radians.
        kind: ``"exact"``, ``"strided"`` or ``"interpolated"``.
        accuracy: part of the images whose class is right.
        agreement: part of the images that get the same class as before.
        error: ‖f(gx) − f(x)‖ / ‖f(x)‖ of the logits, the equivariance error.
        resampling: accuracy on images turned there and back, which interpolation alone leaves.

    Example:
        >>> row = RobustnessRow("rotation 90°", "rotation", 1.57, "exact", 0.42, 0.45, 0.9, 0.97)
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
class RobustnessOfSubgroup:
    """The rows of a subgroup together.

    Attributes:
        subgroup: ``"rotation"``, ``"reflection"`` or ``"translation"``.
        transformations: how many there are, without the identity.
        accuracy: mean over them.
        worst: the row of the lowest accuracy.
        agreement: mean over them.
        error: root mean square over them.

    Example:
        >>> row = RobustnessRow("rotation 90°", "rotation", 1.57, "exact", 0.42, 0.45, 0.9, 0.97)
        >>> RobustnessReport(0.97, 1000, (row,)).subgroups[0].worst.name
        'rotation 90°'
    """

    subgroup: str
    transformations: int
    accuracy: float
    worst: RobustnessRow
    agreement: float
    error: float


@dataclass(frozen=True)
class RobustnessReport(Report):
    """A row for each transformation; its text is a table of images as they are and of each subgroup.

    Attributes:
        accuracy: part of the images as they are whose class is right.
        images: number of images.
        rows: in the order elements, angles, shifts.

    Example:
        >>> row = RobustnessRow("rotation 90°", "rotation", 1.57, "exact", 0.42, 0.45, 0.9, 0.97)
        >>> print(RobustnessReport(0.97, 1000, (row,)))
        images               right, %    worst, %             same class, %  error
        as they are          97.0 ± 0.5
        rotation, mean of 1  42.0        42.0 (rotation 90°)  45.0           0.9
    """

    accuracy: float
    images: int
    rows: tuple[RobustnessRow, ...]

    @property
    def standard_error(self) -> float:
        """The standard error of the accuracy on images as they are."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.images)

    @property
    def subgroups(self) -> tuple[RobustnessOfSubgroup, ...]:
        """The rows of each subgroup together."""
        found = []
        for subgroup in SUBGROUPS:
            rows = [row for row in self.rows if row.subgroup == subgroup]
            if rows:
                count, worst = len(rows), min(rows, key=lambda row: row.accuracy)
                accuracy, agreement = (sum(values) / count for values in zip(*map(_parts, rows), strict=True))
                error = math.sqrt(sum(row.error**2 for row in rows) / count)
                found.append(RobustnessOfSubgroup(subgroup, count, accuracy, worst, agreement, error))
        return tuple(found)

    def __str__(self) -> str:
        lines = [["as they are", f"{100 * self.accuracy:.1f} ± {100 * self.standard_error:.1f}", "", "", ""]]
        for part in self.subgroups:
            name = f"{part.subgroup}, mean of {part.transformations}"
            worst = f"{100 * part.worst.accuracy:.1f} ({part.worst.name})"
            cells = f"{100 * part.accuracy:.1f}", worst, f"{100 * part.agreement:.1f}", f"{part.error:.2g}"
            lines.append([name, *cells])
        return plain_table(["images", "right, %", "worst, %", "same class, %", "error"], lines)


@dataclass
class _Sums:
    """Sums over the images of what one transformation does."""

    description: tuple[str, str, float, str]
    right: int = 0
    same: int = 0
    returned_right: int = 0
    difference: float = 0.0
    before: float = 0.0

    def add(self, passed: Pass, labels: Tensor) -> None:
        """Count the images of a chunk."""
        before, after, returned = (_classes_of(found[""]) for found in (passed.before, passed.after, passed.returned))
        labels = labels.to(before.device)
        self.right += int((after == labels).sum())
        self.same += int((after == before).sum())
        self.returned_right += int((returned == labels).sum())
        logits, moved = passed.before[""].tensor.double(), passed.after[""].tensor.double()
        self.difference += float((moved - logits).square().sum())
        self.before += float(logits.square().sum())

    def row(self, images: int) -> RobustnessRow:
        """Return the row of all images."""
        nothing = math.inf if self.difference else 0.0
        error = math.sqrt(self.difference / self.before) if self.before > 0 else nothing
        parts = self.right / images, self.same / images
        return RobustnessRow(*self.description, *parts, error, self.returned_right / images)


@torch.no_grad()
def robustness_report(
    classifier: nn.Module,
    data: Data,
    labels: Tensor,
    *,
    in_type: FieldType | None = None,
    elements: Sequence[GroupElement] | None = None,
    angles: Sequence[float] = (),
    shifts: Shifts = (),
    batch_size: int = 250,
    output: Output = None,
) -> RobustnessReport:
    """Measure the accuracy of a classifier on images as they are, and after each transformation.

    A soft network may have learned which way up its images are, and then fails on others. Its accuracy on images like
    those of the training does not show that. Take images that were not trained on, whose classes a transformation does
    not change.

    The classifier runs in eval mode without gradients, and is left as it was. Interpolated transformations fade images
    to 0 outside of their inscribed circle, before and after, as in :func:`~escnn_relaxed.equivariance_error`:
    ``resampling`` of a row is the accuracy that interpolation alone leaves.

    Args:
        classifier: a network with an output (batch, classes); its forward takes a GeometricTensor, or a plain tensor.
        data: images (batch, C, H, W) or volumes (batch, C, D, H, W), as a tensor or GeometricTensor; or a tuple of all
            inputs, images first, of which tensors with as many entries go with the images.
        labels: the class of each image, (batch,).
        in_type: fields of the input. By default those of the classifier, or of the first module inside that has some.
        elements: of the fiber group; all but the identity by default, of a continuous group 16 rotations, ``()`` for
            none.
        angles: further rotations, in radians.
        shifts: rows down and columns to the right, in pixels; of volumes planes before them.
        batch_size: number of images that are looked at together.
        output: from what the classifier returns to the logits, where it returns a dict or a tuple.

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
    inputs = data if isinstance(data, tuple) else (data,)
    count = _check_labels(inputs[0] if inputs else None, labels)
    sums: list[_Sums] = []
    right = 0
    with in_eval_mode(classifier):
        for chunk, some in _chunks(inputs, labels, check_integer("batch_size", batch_size, 1)):
            network = MeasuredNetwork(classifier, None, chunk, in_type, None, ("",), output)
            isometries = network.isometries(elements, angles, shifts)
            if not isometries:
                raise ValueError(f"nothing to measure: {network.space.name} gives no elements; name angles or shifts")
            classes = _classes_of(network.outputs_as_they_are()[""])
            right += int((classes == some.to(classes.device)).sum())
            for number, passed in enumerate(map(network.transformed, isometries)):
                if number == len(sums):
                    sums.append(_Sums(passed.description("")))
                sums[number].add(passed, some)
    return RobustnessReport(right / count, count, tuple(one.row(count) for one in sums))


def _parts(row: RobustnessRow) -> tuple[float, float]:
    return row.accuracy, row.agreement


def _check_labels(images: Any, labels: Any) -> int:
    """Return the number of images, of which each must have a label."""
    tensor = images.tensor if isinstance(images, GeometricTensor) else images
    if not isinstance(tensor, Tensor) or not tensor.dim():
        raise TypeError(f"data must be images, a tensor or a GeometricTensor, got {images!r}")
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        raise TypeError(f"labels must be a tensor of integers, got {getattr(labels, 'dtype', type(labels).__name__)}")
    if tuple(labels.shape) != (len(tensor),) or not len(tensor):
        raise ValueError(
            f"data and labels must be as many, and some: got {len(tensor)} images and labels {tuple(labels.shape)}"
        )
    return len(tensor)


def _chunks(inputs: tuple[Any, ...], labels: Tensor, size: int) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Yield some of the inputs at a time with their labels; inputs that are not one for each image go along whole."""
    count = len(labels)

    def part(value: Any, chosen: slice) -> Any:
        tensor = value.tensor if isinstance(value, GeometricTensor) else value
        if not isinstance(tensor, Tensor) or not tensor.dim() or len(tensor) != count:
            return value
        return value.type(tensor[chosen]) if isinstance(value, GeometricTensor) else tensor[chosen]

    for start in range(0, count, size):
        chosen = slice(start, start + size)
        yield tuple(part(value, chosen) for value in inputs), labels[chosen]


def _classes_of(found: ModuleOutput) -> Tensor:
    """Return the class of each image, (batch,)."""
    tensor = found.tensor
    logits = tensor.flatten(1) if tensor.shape[2:].numel() == 1 else tensor
    if logits.dim() != 2:
        raise ValueError(f"classifier: the output must be (batch, classes), got {tuple(tensor.shape)}")
    return logits.argmax(dim=1)
