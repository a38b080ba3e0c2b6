"""Filters: how they change over the rotations of a group, and over the positions of an image."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from escnn.nn import EquivariantModule, FieldType, R2Conv
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from numpy.typing import NDArray

from ..checks import check_integer, check_size
from ..integral.geometry import TransposedGeometry
from ..layer.convolution import RelaxedConvolution
from .charts import DIVERGING, FONT, WIDTH, by_label, labelled, new_axes

# The distance of two filters, in sides of one.
_STEP = 1.12


def plot_filters_over_rotations(
    layers: EquivariantModule | Mapping[str, EquivariantModule],
    out_field: int = 0,
    in_field: int = 0,
    axes: Axes | None = None,
) -> Axes:
    """Plot the filters of one field over the group, a row per layer, with the group elements below (paper, figure 3).

    The filter of element g is K from the input to channel g of a regular field; where the input is regular too, from
    its channel g. In a strict layer it is one filter that turns with g, in a soft one it changes as it turns. Each row
    has a colour scale of its own. Below, an arrow points where g turns the x axis to; reflections have a dashed circle.

    Args:
        layers: ``RelaxedR2Conv`` or ``R2Conv``, on trivial or regular fields of one finite group, stationary; by label
            if there are several.
        out_field: number of the output field, a regular one.
        in_field: number of the input field, trivial or regular.
        axes: where to draw, a new figure by default.

    Example:
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> image = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> regular = nn.FieldType(gspace, [gspace.regular_repr])
        >>> len(plot_filters_over_rotations({"strict": nn.R2Conv(image, regular, 5)}).images)
        4
    """
    named = by_label("layers", layers)
    for layer in named.values():
        _check_layer("layers", layer)
    gspaces = {layer.out_type.gspace for layer in named.values()}
    if len(gspaces) > 1:
        raise ValueError(f"layers must be of one group, got {sorted(map(str, gspaces))}")
    gspace = gspaces.pop()
    rows = {label: _over_group(layer, out_field, in_field) for label, layer in named.items()}
    columns = gspace.fibergroup.order()
    axes = new_axes(axes, 0.1 + 0.86 * WIDTH / columns * (len(rows) + 1))
    for row, filters in enumerate(rows.values()):
        largest = float(np.abs(filters).max())
        for column, kernel in enumerate(filters):
            _draw(axes, kernel, column, row, largest)
    for column, element in enumerate(gspace.fibergroup.elements):
        action = gspace.basespace_action(element)
        x, y, style = column * _STEP, -len(rows) * _STEP, "--" if np.linalg.det(action) < 0 else "-"
        axes.add_patch(Circle((x, y), 0.4, fill=False, color="0.6", linewidth=0.8, linestyle=style))
        arrow = {"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0, "linewidth": 1}
        axes.annotate("", (x + 0.38 * action[0, 0], y + 0.38 * action[1, 0]), (x, y), arrowprops=arrow)
    axes.set(xlim=(-0.55, columns * _STEP - 0.57), ylim=(-len(rows) * _STEP - 0.45, 0.55), aspect="equal", xticks=[])
    axes.set_yticks([-row * _STEP for row in range(len(rows) + 1)], [*rows, "g"], fontsize=FONT)
    return _without_frame(axes)


def plot_filter_over_positions(
    layer: EquivariantModule,
    size: int | tuple[int, int],
    out_channel: int = 0,
    in_channel: int = 0,
    positions: int = 5,
    axes: Axes | None = None,
) -> Axes:
    """Plot one filter at positions over an image; where it varies, the layer is soft.

    The filter at x is what the layer multiplies the image with around x, K(d; x) over the taps d.

    Args:
        layer: ``RelaxedR2Conv``, soft in translation for instance, or ``R2Conv``.
        size: height and width of the image in pixels.
        out_channel: channel of the output.
        in_channel: channel of the input.
        positions: how many along each axis, evenly from one border to the other, where all taps are in the image.
        axes: where to draw, a new figure by default.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.trivialOnR2()
        >>> image = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> layer = RelaxedR2Conv(image, image, 5, relax={"translation": 0.5}, initial_softness=0.5)
        >>> len(plot_filter_over_positions(layer, 24, positions=3).images)
        9
    """
    _check_layer("layer", layer)
    _check_below("out_channel", out_channel, layer.out_type.size, "channels")
    _check_below("in_channel", in_channel, layer.in_type.size, "channels")
    check_integer("positions", positions, 1)
    sides = check_size("size", size)
    rows, columns = (_taps(layer, side, positions, axis) for axis, side in enumerate(sides))
    # The filter is read off from the gradient of an output pixel, so that it is what the layer does.
    outputs = list(itertools.product(rows, columns))
    images = next(layer.parameters()).new_zeros(len(outputs), layer.in_type.size, *sides).requires_grad_()
    response = layer(layer.in_type(images)).tensor[:, out_channel]
    pixels = torch.stack([response[number, row, column] for number, (row, column) in enumerate(outputs)])
    gradients = torch.autograd.grad(pixels.sum(), images)[0][:, in_channel].double().cpu().numpy()
    filters = [each[rows[row], columns[column]] for each, (row, column) in zip(gradients, outputs, strict=True)]
    axes, largest = new_axes(axes, WIDTH * 0.95), float(np.abs(filters).max())
    for number, kernel in enumerate(filters):
        row, column = divmod(number, len(columns))
        _draw(axes, kernel, column, row, largest)
    axes.set(xlim=(-0.55, len(columns) * _STEP - 0.57), ylim=(0.57 - len(rows) * _STEP, 0.55), aspect="equal")
    across, down = ([f"{(taps.start + taps.stop - 1) / 2:g}" for taps in each.values()] for each in (columns, rows))
    axes.set_xticks(np.arange(len(columns)) * _STEP, across)
    axes.set_yticks(-np.arange(len(rows)) * _STEP, down)
    return _without_frame(labelled(axes, "column of the image, pixels", "row of the image, pixels"))


def _over_group(layer: EquivariantModule, out_field: int, in_field: int) -> NDArray[np.float64]:
    """Return the filter of each element, from the input to its channel of a regular field, (N, k, k)."""
    if not getattr(layer, "is_stationary", True):
        raise ValueError("layers: one is soft in translation and has a filter per position: plot_filter_over_positions")
    outputs = _channels("out_field", layer.out_type, out_field, "a regular field of a finite group")
    inputs = _channels("in_field", layer.in_type, in_field, "a trivial or regular field")
    with torch.no_grad():
        bank = layer.expand_parameters()[0].double().cpu().numpy()
    # A bank of groups has the input channels of a group.
    group = outputs[0] // (len(bank) // (layer.in_type.size // bank.shape[1]))
    inputs = inputs - group * bank.shape[1]
    if inputs[0] < 0 or inputs[-1] >= bank.shape[1]:
        raise ValueError(f"in_field must be in the group of out_field {out_field}, got {in_field} of another group")
    return bank[outputs, np.broadcast_to(inputs, len(outputs))]


def _channels(name: str, field_type: FieldType, number: Any, kind: str) -> NDArray[np.int64]:
    """Return the channels of a regular field, one for each group element, or that of a trivial field of the input."""
    _check_below(name, number, len(field_type), "fields")
    field, group = field_type.representations[number], field_type.fibergroup
    is_regular = not group.continuous and field == group.regular_representation
    if not is_regular and not (name == "in_field" and field.is_trivial()):
        raise ValueError(f"{name} must be {kind}, got {number} of {field_type}")
    return sum(before.size for before in field_type.representations[:number]) + np.arange(field.size)


def _check_layer(name: str, layer: Any) -> None:
    is_one = isinstance(layer, (RelaxedConvolution, R2Conv))
    is_one = is_one and not isinstance(getattr(layer, "geometry", None), TransposedGeometry)
    if not is_one or layer.in_type.gspace.dimensionality != 2:
        raise TypeError(f"{name} must be RelaxedR2Conv, another relaxed layer of the plane, or R2Conv, got {layer!r}")


def _check_below(name: str, number: Any, count: int, things: str) -> None:
    if check_integer(name, number, 0) >= count:
        raise ValueError(f"{name} must be below {count}, the {things} of the layer, got {number}")


def _taps(layer: Any, side: int, count: int, axis: int) -> dict[int, slice]:
    """Return evenly spaced output pixels along an axis, and their taps in an image of a given side."""
    geometry = getattr(layer, "geometry", layer)
    padding = geometry.padding[axis] if isinstance(geometry.padding, (tuple, list)) else geometry.padding
    stride = geometry.stride[axis] if isinstance(geometry.stride, (tuple, list)) else geometry.stride
    extent = geometry.dilation * (geometry.kernel_size - 1) + 1
    first, last = math.ceil(padding / stride), (side - extent + padding) // stride
    if last < first:
        raise ValueError(f"size must be at least {extent}, the extent of the kernel, got {side}")
    starts = {output: output * stride - padding for output in sorted(set(np.linspace(first, last, count).round()))}
    return {int(output): slice(int(start), int(start) + extent, geometry.dilation) for output, start in starts.items()}


def _without_frame(axes: Axes) -> Axes:
    """Return the axes with labels, but without lines and ticks."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return axes


def _draw(axes: Axes, kernel: NDArray[np.float64], column: int, row: int, largest: float) -> None:
    """Draw a filter of side 1 with a thin frame; the largest value has the full colour."""
    x, y, largest = column * _STEP, -row * _STEP, largest or 1.0
    extent = left, right, bottom, top = (x - 0.5, x + 0.5, y - 0.5, y + 0.5)
    axes.imshow(kernel, cmap=DIVERGING, vmin=-largest, vmax=largest, extent=extent, interpolation="nearest")
    axes.plot([left, right, right, left, left], [bottom, bottom, top, top, bottom], color="0.8", linewidth=0.5)
