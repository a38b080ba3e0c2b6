"""Filters: how they change over the rotations of a group, and over the positions of an image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from escnn.group import Representation
from escnn.nn import EquivariantModule, FieldType, R2Conv
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from numpy.typing import NDArray

from ..checks import check_integer, check_size
from ..layer.convolution import RelaxedConvolution
from ..layer.relaxed_r2conv_transposed import RelaxedR2ConvTransposed
from ..measure.isometry import turn_or_flip
from .style import DIVERGING, FONT, WIDTH, labelled, new_axes

__all__ = ["channels_over_group", "plot_filter_over_positions", "plot_filters_over_rotations"]

# The space between two filters, as a part of the side of one.
_GAP = 0.12


def plot_filters_over_rotations(
    layers: EquivariantModule | Mapping[str, EquivariantModule],
    out_field: int = 0,
    in_field: int = 0,
    axes: Axes | None = None,
) -> Axes:
    """The filters of one field over the group, a row a layer; the group elements below (paper, figure 3).

    The filter of element g is K from the input to channel g of a regular field; where the input is regular too, from
    its channel g. In a strict layer it is one filter that turns with g, in a soft one it changes as it turns. Each row
    has a colour scale of its own, symmetric about 0 (white). Below, an arrow points where g turns the x axis to;
    elements that reflect have a dashed circle.

    Args:
        layers: ``RelaxedR2Conv`` or ``R2Conv``, on trivial or regular fields of one finite group, stationary; by label
            if there are several.
        out_field: number of the output field, a regular one.
        in_field: number of the input field, trivial or regular.
        axes: where to draw, a new figure by default.

    Raises:
        TypeError: for a layer of another class, or numbers that are no integers.
        ValueError: for a layer that is soft in translation, or fields of another kind.

    Example:
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> image, regular = (
        ...     nn.FieldType(gspace, [gspace.trivial_repr]),
        ...     nn.FieldType(gspace, [gspace.regular_repr]),
        ... )
        >>> axes = plot_filters_over_rotations({"strict": nn.R2Conv(image, regular, 5)})
        >>> len(axes.images)
        4
    """
    named = dict(layers) if isinstance(layers, Mapping) else {"": layers}
    if not named:
        raise ValueError("layers must have a layer, got none")
    for layer in named.values():
        _check_layer("layers", layer)
    rows = {label: channels_over_group(layer, out_field, in_field) for label, layer in named.items()}
    gspace = next(iter(named.values())).out_type.gspace
    isometries = [turn_or_flip(gspace, element) for element in gspace.fibergroup.elements]
    columns, step = len(isometries), 1 + _GAP
    if any(len(filters) != columns for filters in rows.values()):
        raise ValueError(f"layers must be of one group, got {[layer.out_type.gspace for layer in named.values()]}")
    axes = new_axes(axes, 0.1 + 0.86 * WIDTH / columns * (len(rows) + 1))
    for line, filters in enumerate(rows.values()):
        _draw_row(axes, filters, -line * step)
    for column, isometry in enumerate(isometries):
        centre = column * step, -len(rows) * step
        style = "--" if isometry.subgroup == "reflection" else "-"
        axes.add_patch(Circle(centre, 0.4, fill=False, color="0.6", linewidth=0.8, linestyle=style))
        tip = (centre[0] + 0.38 * math.cos(isometry.angle), centre[1] + 0.38 * math.sin(isometry.angle))
        axes.annotate("", tip, centre, arrowprops={"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0, "linewidth": 1})
    axes.set(xlim=(-0.55, columns * step - 0.57), ylim=(-len(rows) * step - 0.45, 0.55), aspect="equal", xticks=[])
    axes.set_yticks([-line * step for line in range(len(rows) + 1)], [*rows, "g"], fontsize=FONT)
    _without_frame(axes)
    return axes


def plot_filter_over_positions(
    layer: EquivariantModule,
    size: int | tuple[int, int],
    out_channel: int = 0,
    in_channel: int = 0,
    positions: int = 5,
    axes: Axes | None = None,
) -> Axes:
    """One filter at positions over an image, in their arrangement: where it is not the same, the layer is soft.

    The filter at x is what the layer multiplies the image with around x, K(d; x + d) over the taps d; read off from
    the gradient of an output pixel, so that it is what the layer does. One colour scale, symmetric about 0 (white).

    Args:
        layer: ``RelaxedR2Conv``, soft in translation for instance, or ``R2Conv``.
        size: height and width of the image in pixels.
        out_channel: channel of the output.
        in_channel: channel of the input.
        positions: how many along each axis, evenly from one border to the other, where all taps are in the image.
        axes: where to draw, a new figure by default.

    Raises:
        TypeError: for a layer of another class, or numbers that are no integers.
        ValueError: for channels that the layer does not have, or an image smaller than the kernel.

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
    height, width = check_size("size", size)
    _check_channel("out_channel", out_channel, layer.out_type)
    _check_channel("in_channel", in_channel, layer.in_type)
    window = _Taps(layer)
    rows = window.evenly(height, check_integer("positions", positions, 1), axis=0)
    columns = window.evenly(width, positions, axis=1)
    filters = window.filters((height, width), [(r, c) for r in rows for c in columns], out_channel, in_channel)
    axes = new_axes(axes, WIDTH * 0.95)
    step, largest = 1 + _GAP, float(np.abs(filters).max()) or 1.0
    for number, kernel in enumerate(filters):
        row, column = divmod(number, len(columns))
        _draw(axes, kernel, column * step, -row * step, largest)
    axes.set(xlim=(-0.55, len(columns) * step - 0.57), ylim=(0.57 - len(rows) * step, 0.55), aspect="equal")
    axes.set_xticks([c * step for c in range(len(columns))], [f"{window.centre(c, 1):g}" for c in columns])
    axes.set_yticks([-r * step for r in range(len(rows))], [f"{window.centre(r, 0):g}" for r in rows])
    labelled(axes, "column of the image, pixels", "row of the image, pixels")
    _without_frame(axes)
    return axes


def channels_over_group(layer: EquivariantModule, out_field: int, in_field: int) -> NDArray[np.float64]:
    """Return the filter of each element: from the input to its channel of a regular field, (N, k, …)."""
    group = layer.out_type.gspace.fibergroup
    if not getattr(layer, "is_stationary", True):
        raise ValueError("layers: one is soft in translation and has a filter per position: plot_filter_over_positions")
    if group.continuous or not _is_regular(_field(layer.out_type, "out_field", out_field)):
        raise ValueError(f"out_field must be a regular field of a finite group, got {out_field} of {layer.out_type}")
    source = _field(layer.in_type, "in_field", in_field)
    if not source.is_trivial() and not _is_regular(source):
        raise ValueError(f"in_field must be a trivial or regular field, got {in_field} of {layer.in_type}")
    order = group.order()
    outputs = sum(field.size for field in layer.out_type.representations[:out_field]) + np.arange(order)
    inputs = sum(field.size for field in layer.in_type.representations[:in_field]) + np.arange(source.size)
    with torch.no_grad():
        bank = layer.expand_parameters()[0].double().cpu().numpy()
    filters: NDArray[np.float64] = bank[outputs, np.broadcast_to(inputs, order)]
    return filters


def _check_layer(name: str, layer: Any) -> None:
    if not isinstance(layer, (RelaxedConvolution, R2Conv)) or isinstance(layer, RelaxedR2ConvTransposed):
        raise TypeError(f"{name} must be RelaxedR2Conv, another relaxed layer, or R2Conv, got {layer!r}")
    if layer.in_type.gspace.dimensionality != 2:
        raise TypeError(f"{name} must be of the plane, got {layer!r}: plot_filters_in_space draws layers of volumes")


def _check_channel(name: str, number: Any, field_type: FieldType) -> None:
    if check_integer(name, number, 0) >= field_type.size:
        raise ValueError(f"{name} must be below {field_type.size}, the channels of the layer, got {number}")


def _field(field_type: FieldType, name: str, number: Any) -> Representation:
    if check_integer(name, number, 0) >= len(field_type):
        raise ValueError(f"{name} must be below {len(field_type)}, the fields of the layer, got {number}")
    return field_type.representations[number]


def _is_regular(field: Representation) -> bool:
    return not field.group.continuous and field == field.group.regular_representation


class _Taps:
    """The place of a layer's taps on the image."""

    def __init__(self, layer: EquivariantModule) -> None:
        self._layer = layer
        place = getattr(layer, "geometry", layer)
        self._size = int(place.kernel_size)
        self._stride, self._dilation = int(place.stride), int(place.dilation)
        padding = place.padding
        self._padding = tuple(padding) if isinstance(padding, (tuple, list)) else (padding, padding)
        self._extent = self._dilation * (self._size - 1) + 1

    def evenly(self, side: int, count: int, axis: int) -> list[int]:
        """Output pixels along an axis, evenly spaced, whose taps are all in an image of a side in pixels."""
        first = math.ceil(self._padding[axis] / self._stride)
        last = (side - self._extent + self._padding[axis]) // self._stride
        if last < first:
            raise ValueError(f"size must be at least {self._extent}, the extent of the kernel, got {side}")
        return sorted({round(value) for value in np.linspace(first, last, count)})

    def centre(self, output: int, axis: int) -> float:
        """Row or column of the image in the middle of the taps."""
        return output * self._stride - self._padding[axis] + (self._extent - 1) / 2

    def filters(
        self, size: tuple[int, int], outputs: list[tuple[int, int]], out_channel: int, in_channel: int
    ) -> NDArray[np.float64]:
        """The filter of each output pixel, (P, k, k): the gradient of that pixel by the image."""
        like = next(self._layer.parameters())
        image = like.new_zeros(len(outputs), self._layer.in_type.size, *size).requires_grad_()
        found = self._layer(self._layer.in_type(image)).tensor
        rows, columns = (list(index) for index in zip(*outputs, strict=True))
        (gradient,) = torch.autograd.grad(found[range(len(outputs)), out_channel, rows, columns].sum(), image)
        found = []
        for part, row, column in zip(gradient[:, in_channel].double().cpu().numpy(), rows, columns, strict=True):
            top, left = row * self._stride - self._padding[0], column * self._stride - self._padding[1]
            window = part[top : top + self._extent : self._dilation, left : left + self._extent : self._dilation]
            found.append(window)
        return np.stack(found)


def _draw_row(axes: Axes, filters: NDArray[np.float64], y: float) -> None:
    largest = float(np.abs(filters).max()) or 1.0
    for column, kernel in enumerate(filters):
        _draw(axes, kernel, column * (1 + _GAP), y, largest)


def _draw(axes: Axes, kernel: NDArray[np.float64], x: float, y: float, largest: float) -> None:
    """A filter of side 1 about (x, y), with a thin frame."""
    extent = (x - 0.5, x + 0.5, y - 0.5, y + 0.5)
    axes.imshow(kernel, cmap=DIVERGING, vmin=-largest, vmax=largest, extent=extent, interpolation="nearest")
    axes.plot(
        [extent[0], extent[1], extent[1], extent[0], extent[0]],
        [extent[2], extent[2], extent[3], extent[3], extent[2]],
        color="0.8",
        linewidth=0.5,
    )


def _without_frame(axes: Axes) -> None:
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
