"""Measured errors of equivariance: on data or on noise, for each element, angle and shift.

A turn by 45° has to be interpolated between pixels, and a layer that is perfect on the plane would be charged for it.
Elements that map pixels to pixels are therefore kept apart, and beside the error of the others stands what
interpolation alone costs. Volumes are measured by the same code. Definitions: docs/how-to/measure-and-log.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from escnn.group import GroupElement
from escnn.nn import FieldType
from torch import Tensor, nn

from .field_action import on_fibers
from .forward_probe import ModuleOutput, Output, evaluated
from .isometry import Isometry
from .measured_network import Data, MeasuredNetwork, Pass, Shifts
from .pixel_grid import PixelGrid, moved
from .tables import plain_table

__all__ = ["EquivarianceReport", "ErrorRow", "equivariance_error", "largest_exact_errors"]


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
        resampling: what interpolation alone costs, in the same unit: 0 for exact rows, NaN for strided ones whose
            output has no pixels.

    Example:
        >>> row = ErrorRow(
        ...     "rotation 45°",
        ...     "rotation",
        ...     math.pi / 4,
        ...     "interpolated",
        ...     error=0.15,
        ...     resampling=0.014,
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
        >>> turn = ErrorRow("rotation 90°", "rotation", math.pi / 2, "exact", 5e-7, 0.0)
        >>> between = ErrorRow("rotation 45°", "rotation", math.pi / 4, "interpolated", 0.15, 0.014)
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
        header = ["transformation", "kind", "error", "resampling alone"]
        lines = [
            [row.name, row.kind, f"{row.error:.2g}", f"{row.resampling:.2g}" if row.resampling > 0 else ""]
            for row in self.rows
        ]
        return plain_table(header, lines)


def equivariance_error(
    module: nn.Module,
    input_size: int | tuple[int, ...] | None = None,
    *,
    data: Data = None,
    layer: str = "",
    in_type: FieldType | None = None,
    out_type: FieldType | None = None,
    elements: Sequence[GroupElement] | None = None,
    angles: Sequence[float] = (),
    shifts: Shifts = (),
    output: Output = None,
) -> EquivarianceReport:
    """Measure the relative error ‖f(gx) − g f(x)‖ / ‖f(x)‖ of a layer or a network, a row per transformation g.

    Fields of the plane are measured on images (batch, C, H, W), those of space on volumes (batch, C, D, H, W), whose
    voxels, planes and inscribed ball take the place of pixels, rows and inscribed circle below.

    ``module`` is run in eval mode without gradients, and left as it was. An output without the dimensions of the input,
    the logits of a classifier, should not change at all: its error is ‖f(gx) − f(x)‖ / ‖f(x)‖.

    Exact rows compare all pixels. What a shift pushes out comes in again on the other side where all padding is
    circular; elsewhere it is set to 0 before, and what has come in is not compared. For interpolated rows the input is
    faded to 0 outside of the image's inscribed circle (cos² over its outer quarter), and the output is compared within
    it. ``resampling`` is half of ‖f(g⁻¹gx) − f(x)‖ / ‖f(x)‖ plus half of ‖g⁻¹g f(x) − f(x)‖ / ‖f(x)‖, x and f(x)
    turned there and back: what a module would be charged that is exactly equivariant on the plane or in space, once
    for its input and once for its output.

    Args:
        module: a layer or network, of ``RelaxedR2Conv``, ``R3Conv`` or anything; its forward takes a GeometricTensor,
            or a plain tensor that it wraps.
        input_size: (height, width) or (depth, height, width) in pixels of noise to measure on, or one number for all:
            white for exact transformations, smooth (a Gaussian of 2 pixels) for interpolated ones, 16 images, the same
            in every call.
        data: a batch to measure on in its place. Of a module with several inputs a tuple of them, with which it is
            called: images first. GeometricTensors among the others turn as their type says, an action (batch, C, 1, 1)
            for instance; plain tensors of the images' height and width turn as scalar fields; all else is passed on as
            it is.
        layer: name of a module inside whose output is compared, as in ``named_modules()``; the whole by default.
        in_type: fields of the input. By default those of the module, or of the first module inside that has some.
        out_type: fields of an output that is a plain tensor with the dimensions of the input.
        elements: of the fiber group; all of them by default (of a continuous group 16 rotations, of SO(3) and O(3) the
            24 of the cube), ``()`` for none.
        angles: further rotations, in radians, in space about z: a sweep. At angles that are not in the group fields
            have to be trivial.
        shifts: rows down and columns to the right, in pixels; of volumes planes before them.
        output: from what the module (or the layer named) returns to the tensor that is compared, where it returns a
            dict or a tuple: ``lambda returned: returned["logits"]``.

    Raises:
        TypeError: for an argument of another type, or an output that is no tensor.
        ValueError: for neither or both of ``input_size`` and ``data``, an unknown layer, nothing to measure, fields
            that are not known, or that a rotation does not act on.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, padding=1, relax=None).double()
        >>> report = equivariance_error(layer, 9, shifts=[(0, 2)])
        >>> [(row.name, row.kind, row.error < 1e-12) for row in report.rows[:3]]
        [('rotation 90°', 'exact', True), ('rotation 180°', 'exact', True), ('rotation 270°', 'exact', True)]

        Of volumes:

        >>> from escnn_relaxed import RelaxedR3Conv
        >>> space = gspaces.rot3dOnR3()
        >>> vectors = nn.FieldType(space, [space.irrep(1)])
        >>> upright = RelaxedR3Conv(
        ...     vectors, vectors, 3, padding=1, keep="SO(2)", initial_softness=0.1
        ... )
        >>> [row.name for row in equivariance_error(upright, 5).exact if row.error < 1e-5]
        ['rotation 180° about z', 'rotation 90° about z', 'rotation 270° about z']

        Of a module with two inputs, an image and an action that turns as a vector:

        >>> class Step(torch.nn.Module):
        ...     def forward(self, images, action):
        ...         rows, columns = torch.meshgrid(*2 * [torch.linspace(-1, 1, 9)], indexing="ij")
        ...         ahead = action.tensor[:, :1] * columns - action.tensor[:, 1:] * rows
        ...         return (images * ahead).sum(dim=(1, 2, 3), keepdim=True).flatten(1)
        >>> scalar = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> vector = nn.FieldType(gspace, [gspace.irrep(1)])
        >>> data = torch.randn(4, 1, 9, 9), vector(torch.randn(4, 2, 1, 1))
        >>> report = equivariance_error(Step(), data=data, in_type=scalar)
        >>> max(row.error for row in report.exact) < 1e-5
        True
    """
    network = MeasuredNetwork(module, input_size, data, in_type, out_type, (layer,), output)
    isometries = network.required_isometries(elements, angles, shifts)
    with evaluated(module):
        passes = (network.transformed(isometry) for isometry in isometries)
        return EquivarianceReport(layer, tuple(_row(passed, layer, network) for passed in passes))


def largest_exact_errors(
    module: nn.Module, data: Data, layers: Sequence[str], in_type: FieldType | None = None, shifts: Shifts = ()
) -> dict[str, float]:
    """Return the largest exact error of the outputs of several modules inside, over elements and shifts, by name.

    Modules for which nothing is exact, or whose output is a map of unknown fields, are left out.
    """
    network = MeasuredNetwork(module, None, data, in_type, None, layers)
    largest: dict[str, float] = {}
    with evaluated(module):
        for isometry in network.isometries(None, (), shifts):
            if isometry.keeps_axes:
                passed = network.transformed(isometry)
                known = [name for name, found in passed.before.items() if network.knows_fields_of(found)]
                for row, name in ((_row(passed, name, network), name) for name in known):
                    if row.kind == "exact":
                        largest[name] = max(row.error, largest.get(name, 0.0))
    return largest


def _row(passed: Pass, name: str, network: MeasuredNetwork) -> ErrorRow:
    """Return the report's row for the output of one module under one transformation."""
    before, isometry = passed.before[name], passed.isometry
    pair = _Comparison(before, passed.after[name], network.fields_of(before), passed)
    kind = passed.kind(name)
    resampling = 0.0 if kind == "exact" else pair.resampling(passed.returned[name])
    if kind == "strided" and before.grid is None:
        resampling = math.nan
    return ErrorRow(isometry.name, isometry.subgroup, isometry.angle, kind, pair.error(), resampling)


class _Comparison:
    """f(gx) beside g f(x), for one transformation g and the output of one module."""

    def __init__(
        self,
        before: ModuleOutput,
        after: ModuleOutput,
        field_type: FieldType | None,
        passed: Pass,
    ) -> None:
        self._before, self._after, self._field_type = before, after, field_type
        self._motion, image = passed.isometry, passed.image
        self._on_torus = passed.on_torus and before.grid is not None and before.grid.covers(image)
        self._radius = math.inf if passed.is_exact else min(image.size) / 2
        # f(x) on the pixels of f(gx) before ρ(g) acts on its channels: what the error is relative to.
        self._carried, self._mask = self._moved(before.tensor, before.grid, after.grid, self._motion)

    def error(self) -> float:
        """Return ‖f(gx) − g f(x)‖ / ‖f(x)‖ over the pixels that are compared."""
        is_invariant = self._field_type is None
        expected = self._carried if is_invariant else on_fibers(self._carried, self._field_type, self._motion, "output")
        return _ratio((self._after.tensor - expected) * self._mask, self._carried * self._mask)

    def resampling(self, returned: ModuleOutput) -> float:
        """Return half of the changes by turning there and back: of the input, by ``returned``, and of the output."""
        back = self._motion.inverse()
        again, mask = self._moved(self._carried, self._after.grid, self._before.grid, back)
        norm = self._before.tensor * mask
        by_input = _ratio((returned.tensor - self._before.tensor) * mask, norm)
        return (by_input + _ratio((again - self._before.tensor) * mask, norm)) / 2

    def _moved(
        self, tensor: Tensor, source: PixelGrid | None, target: PixelGrid | None, isometry: Isometry
    ) -> tuple[Tensor, Tensor]:
        if source is None or target is None:
            return tensor, torch.ones((), device=tensor.device)
        result, mask = moved(tensor, source, target, isometry, self._on_torus)
        distance = torch.from_numpy((target.positions() ** 2).sum(-1) ** 0.5).to(tensor.device)
        return result, mask & (distance <= self._radius)


def _ratio(difference: Tensor, reference: Tensor) -> float:
    """Return ‖difference‖ / ‖reference‖; 0 where both are 0."""
    distance, norm = float(difference.norm()), float(reference.norm())
    return distance / norm if norm > 0 else (0.0 if distance == 0 else math.inf)
