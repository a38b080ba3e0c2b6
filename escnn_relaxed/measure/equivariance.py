"""Measured equivariance for each element, angle and shift: relative errors (docs/how-to/train.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from escnn.group import GroupElement
from escnn.nn import FieldType
from torch import Tensor, nn

from ..network.relaxed_layers import in_eval_mode
from .clouds import measured_network
from .forward_probe import OutputSelector
from .isometry import Isometry, PixelGrid, moved, on_fibers
from .measured_network import Data, MeasuredNetwork, Pass, Shifts
from .reports import EquivarianceReport, ErrorRow


@torch.no_grad()
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
    output: OutputSelector = None,
) -> EquivarianceReport:
    """Measure the relative error ‖f(gx) − g f(x)‖ / ‖f(x)‖ of a layer or a network, a row per transformation g.

    ``module`` runs in eval mode without gradients, and is left as it was. Fields of the plane are measured on images
    (batch, C, H, W), those of space on volumes (batch, C, D, H, W), those of ``no_base_space`` on vectors (batch, C),
    which elements change by ρ alone. An output without pixels, the logits of a
    classifier, should not change at all: its error is ‖f(gx) − f(x)‖ / ‖f(x)‖.

    Exact rows compare all pixels. Where all padding is circular, a shift wraps around. Elsewhere the pixels that it
    pushes out are 0 before, and those that it brings in are not compared. For interpolated rows the input fades to 0
    outside of its inscribed circle or ball (cos² over the outer quarter), and the output is compared inside.
    ``resampling``, the mean of ‖f(g⁻¹gx) − f(x)‖ / ‖f(x)‖ and ‖g⁻¹g f(x) − f(x)‖ / ‖f(x)‖, is the error that
    interpolation alone would give a module that is exactly equivariant between pixels. Rows are *strided* where a
    stride does not fit the size: choose sides with (side + 2 padding − kernel size) a multiple of the stride.

    Clouds are measured on ``data=(cloud, edge_index)``, a GeometricTensor with coordinates first: the coordinates turn
    with the fields, and all rows are exact. Shifts are then in the units of the coordinates, (x, y, …).

    Args:
        module: a layer or network, of ``RelaxedR2Conv``, ``R3Conv`` or anything; its forward takes a GeometricTensor,
            or a plain tensor that it wraps.
        input_size: sides in pixels of noise to measure on, or one number for all: 16 images, the same in every call,
            white for exact transformations, smooth (a Gaussian of 2 pixels) for interpolated ones. Vectors have none.
        data: a batch to measure on in its place, or a tuple of all inputs, images first. GeometricTensors among the
            others turn as their type says, an action (batch, C, 1, 1) for instance; plain tensors of the images' height
            and width turn as scalar fields; all else is passed on. Beside ``edge_index`` of a cloud, vectors (edges, d)
            of its edges turn, too.
        layer: name of a module inside whose output is compared, as in ``named_modules()``; the whole by default.
        in_type: fields of the input. By default those of the module, or of the first module inside that has some.
        out_type: fields of an output that is a plain tensor with pixels.
        elements: of the fiber group; all by default (of a continuous group 16 rotations, of SO(3) and O(3) the 24 of
            the cube), ``()`` for none.
        angles: further rotations, in degrees, in space about z. At angles that are not in the group fields have to be
            trivial.
        shifts: in pixels, (rows down, columns to the right), of volumes (planes, rows, columns).
        output: from what the module (or the layer named) returns to the tensor that is compared, where it returns a
            dict or a tuple: ``lambda returned: returned["logits"]``.

    Returns:
        An :class:`~escnn_relaxed.measure.EquivarianceReport`, a row for each transformation.

    Raises:
        TypeError: for an argument of another type, or an output that is no tensor.
        ValueError: for neither or both of ``input_size`` and ``data``, an unknown layer, nothing to measure, fields
            that are not known, or that a rotation does not act on, and an angle that is not finite, or 90° in radians.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, padding=1, relax=None).double()
        >>> report = equivariance_error(layer, 9, shifts=[(0, 2)])
        >>> [(row.name, row.kind, row.error < 1e-12) for row in report.rows[:3]]
        [('rotation 90°', 'exact', True), ('rotation 180°', 'exact', True), ('rotation 270°', 'exact', True)]
    """
    network = measured_network(module, input_size, data, in_type, out_type, (layer,), output)
    with in_eval_mode(module):
        return error_report(network, layer, network.passes(elements, angles, shifts))


def error_report(network: MeasuredNetwork, layer: str, passes: Iterable[Pass]) -> EquivarianceReport:
    """Return a row for the output of one module under each transformation; in eval mode, without gradients."""
    return EquivarianceReport(layer, tuple(_row(passed, layer, network) for passed in passes))


@torch.no_grad()
def largest_exact_errors(
    module: nn.Module, data: Data, layers: Sequence[str], in_type: FieldType | None = None, shifts: Shifts = ()
) -> dict[str, float]:
    """Return the largest exact error of the outputs of modules inside by name, where one is exact and fields known."""
    network = measured_network(module, None, data, in_type, None, layers)
    largest: dict[str, float] = {}
    with in_eval_mode(module):
        isometries = [isometry for isometry in network.isometries(None, (), shifts) if network.is_exact(isometry)]
        for passed in map(network.transformed, isometries):
            for name, output in passed.before.items():
                if passed.kind(name) == "exact" and (output.grid is None or output.field_type):
                    largest[name] = max(_row(passed, name, network).error, largest.get(name, 0.0))
    return largest


def _row(passed: Pass, name: str, network: MeasuredNetwork) -> ErrorRow:
    """Return the report's row for the output of one module under one transformation g: f(gx) beside g f(x)."""
    before, after, isometry = passed.before[name], passed.after[name], passed.isometry
    fields, kind = network.fields_of(before), passed.kind(name)
    # f(x) on the pixels of f(gx) before ρ(g) acts on its channels: what the error is relative to.
    carried, mask = _carried(passed, before.tensor, before.grid, after.grid, isometry)
    expected = carried if fields is None else on_fibers(carried, fields, isometry, "output", network.space)
    difference, reference, resampling = (after.tensor - expected) * mask, carried * mask, 0.0
    if kind == "strided" and before.grid is None:
        resampling = math.nan
    elif kind != "exact":
        again, mask = _carried(passed, carried, after.grid, before.grid, isometry.inverse())
        changes = (passed.returned[name].tensor, again)
        resampling = sum(_ratio((each - before.tensor) * mask, before.tensor * mask) for each in changes) / 2
    is_empty = not (reference.any() or difference.any())
    return ErrorRow(*passed.description(name), _ratio(difference, reference), resampling, is_empty)


def _carried(
    passed: Pass, features: Tensor, source: PixelGrid | None, target: PixelGrid | None, isometry: Isometry
) -> tuple[Tensor, Tensor]:
    """Return features (batch, C, …) after an isometry from grid to grid, and the mask of compared pixels."""
    if source is None or target is None:
        return features, torch.ones((), device=features.device)
    on_torus = passed.on_torus and source.covers(passed.image)
    result, mask = moved(features, source, target, isometry, on_torus)
    if passed.isometry.keeps_axes:
        return result, mask
    distance = torch.from_numpy((target.positions() ** 2).sum(-1) ** 0.5).to(features.device)
    return result, mask & (distance <= min(passed.image.size) / 2)


def _ratio(difference: Tensor, reference: Tensor) -> float:
    """Return ‖difference‖ / ‖reference‖; 0 where both are 0."""
    distance, norm = float(difference.norm()), float(reference.norm())
    return distance / norm if norm > 0 else (0.0 if distance == 0 else math.inf)
