"""Layers of volumes: their filters as taps in space, and the axes of rotations in which they are soft."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
from escnn.nn import EquivariantModule, R3Conv
from matplotlib import colormaps, pyplot
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection, LineCollection
from matplotlib.colors import Normalize
from matplotlib.patches import Circle
from numpy.typing import NDArray
from torch import nn

from ..checks import check_module
from ..group.elements import steered_taps
from ..group.points import tap_grid
from ..group.rotation_axes import RotationAxis, rotation_axes
from ..layer.relaxed_r3conv import RelaxedR3Conv
from ..measure.summary import AxisSoftness, softness_by_axis
from .filters import channels_over_group
from .style import DIVERGING, FONT, WIDTH, new_axes

__all__ = ["plot_filters_in_space", "plot_softness_by_axis"]

Array = NDArray[np.float64]

# Seen from in front, x, a little from the right, and from above.
_AZIMUTH, _ELEVATION = math.radians(20), math.radians(25)
_TO_VIEWER = np.array(
    [
        math.cos(_ELEVATION) * math.cos(_AZIMUTH),
        math.cos(_ELEVATION) * math.sin(_AZIMUTH),
        math.sin(_ELEVATION),
    ]
)
_RIGHT = np.array([-math.sin(_AZIMUTH), math.cos(_AZIMUTH), 0.0])
# Points in space times this are where they are on the page.
_TO_PAGE = np.stack([_RIGHT, np.cross(_TO_VIEWER, _RIGHT)], axis=1)

# Columns of filters: the identity, and turns about so many axes.
_TURNS = 4
# The distance between two kernels, or two spheres, in units of the side of a kernel or the radius of a sphere.
_BETWEEN_KERNELS, _BETWEEN_SPHERES = 1.3, 2.9
# The diameter of the largest tap, as a part of the distance of taps.
_LARGEST_TAP = 0.85
_MARKERS = {2: "D", 3: "^", 4: "s"}
_SEQUENTIAL = "Oranges"


def plot_filters_in_space(
    layers: EquivariantModule | Mapping[str, EquivariantModule],
    out_field: int = 0,
    in_field: int = 0,
    axes: Axes | None = None,
) -> Axes:
    """The filters of one field for a few rotations g, each turned back by g⁻¹, a row a layer.

    The filter of g is K from the input to channel g of a regular field; where the input is regular too, from its
    channel g. In a strict layer it is the filter of the identity, turned by g. Turned back, all of its filters are
    therefore alike, and those of a soft layer differ. Columns are the identity and the least turns about up to four
    axes. Each ball is a tap. Its colour is the value, its area the size of the value. Each row has a colour scale of
    its own, symmetric about 0 (white).

    Args:
        layers: ``RelaxedR3Conv`` or ``R3Conv``, on trivial or regular fields of one finite group; by label if there are
            several.
        out_field: number of the output field, a regular one.
        in_field: number of the input field, trivial or regular.
        axes: where to draw, a new figure by default.

    Raises:
        TypeError: for a layer of another class, or numbers that are no integers.
        ValueError: for fields of another kind, or layers of several groups.

    Example:
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR3(4)
        >>> density, regular = (
        ...     nn.FieldType(gspace, [gspace.trivial_repr]),
        ...     nn.FieldType(gspace, [gspace.regular_repr]),
        ... )
        >>> axes = plot_filters_in_space({"strict": nn.R3Conv(density, regular, 3)})
        >>> [label.get_text() for label in axes.get_xticklabels()]
        ['identity', '90° about z']
    """
    named = dict(layers) if isinstance(layers, Mapping) else {"": layers}
    if not named:
        raise ValueError("layers must have a layer, got none")
    for layer in named.values():
        if not isinstance(layer, (RelaxedR3Conv, R3Conv)):
            raise TypeError(f"layers must be RelaxedR3Conv or R3Conv, got {layer!r}")
    gspaces = {layer.out_type.gspace for layer in named.values()}
    if len(gspaces) > 1:
        raise ValueError(f"layers must be of one group, got {sorted(map(str, gspaces))}")
    turns = rotation_axes(gspaces.pop())[:_TURNS]
    rows = {label: _turned_back(layer, turns, out_field, in_field) for label, layer in named.items()}
    columns = len(turns) + 1
    axes = new_axes(axes, 0.5 + 0.9 * len(rows), 0.6 + 0.95 * columns)
    for number, (layer, filters) in enumerate(zip(named.values(), rows.values(), strict=True)):
        _draw_filters(axes, filters, _taps(layer), -number * _BETWEEN_KERNELS)
    axes.set_xticks(
        np.arange(columns) * _BETWEEN_KERNELS,
        ["identity", *map(_words, turns)],
        fontsize=FONT,
    )
    axes.set_yticks(-np.arange(len(rows)) * _BETWEEN_KERNELS, list(rows), fontsize=FONT)
    axes.set(
        xlim=(-0.65, (columns - 1) * _BETWEEN_KERNELS + 0.65),
        ylim=(-(len(rows) - 1) * _BETWEEN_KERNELS - 0.65, 0.65),
        aspect="equal",
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return axes


def plot_softness_by_axis(networks: nn.Module | Mapping[str, nn.Module], axes: Axes | None = None) -> Axes:
    """The softness in the rotations about each axis as a mark on a sphere, a sphere a network: a white axis is kept.

    Squares are axes of quarter turns, triangles of third turns, diamonds of half turns. Both ends of an axis have the
    same softness, so that the half of the sphere that is seen shows all axes. s is that of the softest layer, from
    :func:`~escnn_relaxed.measure.softness_by_axis`. All spheres have one colour scale, from 0.

    Args:
        networks: any module with layers ``RelaxedR3Conv``; by label if there are several.
        axes: where to draw, a new figure by default.

    Raises:
        TypeError: for networks that are no modules, or axes that are none.
        ValueError: for a network without such a layer.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR3Conv
        >>> gspace = gspaces.rot3dOnR3()
        >>> fields = nn.FieldType(gspace, [gspace.irrep(0), gspace.irrep(1)])
        >>> axes = plot_softness_by_axis(
        ...     RelaxedR3Conv(fields, fields, 3, keep="SO(2)", initial_softness=0.1)
        ... )
        >>> [
        ...     len(marks.get_offsets())
        ...     for marks in axes.collections
        ...     if marks.get_array() is not None
        ... ]
        [3, 4, 6]
    """
    named = dict(networks) if isinstance(networks, Mapping) else {"": networks}
    if not named:
        raise ValueError("networks must have a network, got none")
    for network in named.values():
        if not any(isinstance(module, RelaxedR3Conv) for module in check_module("networks", network).modules()):
            raise ValueError(f"networks must have layers RelaxedR3Conv, got {network!r}")
    found = {label: softness_by_axis(network) for label, network in named.items()}
    axes = new_axes(axes, 2.2, max(WIDTH, 2.0 * len(found) + 0.6))
    norm = Normalize(0, max((row.softness for rows in found.values() for row in rows), default=0.0) or 1.0)
    for number, rows in enumerate(found.values()):
        _draw_sphere(axes, rows, number * _BETWEEN_SPHERES, norm)
    axes.set(xlim=(-1.4, (len(found) - 1) * _BETWEEN_SPHERES + 1.4), ylim=(-1.1, 1.45), aspect="equal", yticks=[])
    axes.set_xticks(np.arange(len(found)) * _BETWEEN_SPHERES, list(found), fontsize=FONT)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = pyplot.colorbar(pyplot.cm.ScalarMappable(norm, _SEQUENTIAL), ax=axes, shrink=0.8, pad=0.02)
    bar.set_label("softness s", fontsize=FONT)
    bar.ax.tick_params(labelsize=FONT - 1)
    return axes


def _turned_back(layer: EquivariantModule, turns: list[RotationAxis], out_field: int, in_field: int) -> Array:
    """K_g(g d) for the identity and each turn g, (filters, taps)."""
    gspace = layer.out_type.gspace
    over_group = channels_over_group(layer, out_field, in_field)
    found = [over_group[gspace.fibergroup.elements.index(gspace.fibergroup.identity)].ravel()]
    for turn in turns:
        back = steered_taps(np.asarray(gspace.basespace_action(~turn.element), dtype=np.float64), _taps(layer))
        found.append(over_group[gspace.fibergroup.elements.index(turn.element)].ravel()[back])
    return np.stack(found)


def _words(turn: RotationAxis) -> str:
    is_short = len(turn.name) == 1
    return f"{360 // turn.fold}° about" + (" " if is_short else "\n") + turn.name


def _taps(layer: EquivariantModule) -> Array:
    return tap_grid(int(layer.kernel_size), dimension=3)


def _draw_filters(axes: Axes, filters: Array, taps: Array, y: float) -> None:
    """A row of filters in cubes of side 1, far taps first."""
    size = round(len(taps) ** (1 / 3))
    largest = float(np.abs(filters).max()) or 1.0
    order = np.argsort(taps @ _TO_VIEWER)
    places = (taps / size) @ _TO_PAGE
    corners = np.array(list(itertools.product((-0.5, 0.5), repeat=3))) * (size - 1) / size
    edges = [pair for pair in itertools.combinations(corners, 2) if (pair[0] != pair[1]).sum() == 1]
    for number, values in enumerate(filters):
        centre = np.array([number * _BETWEEN_KERNELS, y])
        axes.add_collection(
            LineCollection([np.stack(pair) @ _TO_PAGE + centre for pair in edges], colors="0.8", lw=0.6)
        )
        diameters = _LARGEST_TAP / size * np.sqrt(np.abs(values[order]) / largest)
        balls = EllipseCollection(
            diameters,
            diameters,
            np.zeros(len(order)),
            units="xy",
            offsets=(places + centre)[order],
            offset_transform=axes.transData,
            array=values[order],
            cmap=DIVERGING,
            norm=Normalize(-largest, largest),
            edgecolors="0.4",
            linewidths=0.4,
            zorder=2,
        )
        axes.add_collection(balls)


def _draw_sphere(axes: Axes, rows: tuple[AxisSoftness, ...], x: float, norm: Normalize) -> None:
    """A sphere of radius 1 with its marks, and the axes x, y and z out of it."""
    axes.add_patch(Circle((x, 0), 1, facecolor="0.96", edgecolor="0.6", linewidth=0.8))
    angles = np.linspace(0, 2 * math.pi, 181)
    for first, second in itertools.combinations(np.eye(3), 2):
        circle = np.outer(np.cos(angles), first) + np.outer(np.sin(angles), second)
        seen = np.where((circle @ _TO_VIEWER >= 0)[:, None], circle @ _TO_PAGE, np.nan)
        axes.plot(x + seen[:, 0], seen[:, 1], color="0.85", linewidth=0.7)
    for name, tip in zip("xyz", _TO_PAGE, strict=True):
        end = tip * (1 + 0.34 / np.linalg.norm(tip))
        line = {"arrowstyle": "-", "color": "0.3", "linewidth": 0.8, "shrinkA": 0}
        axes.annotate(
            name, (x + tip[0], tip[1]), (x + end[0], end[1]), ha="center", va="center", fontsize=FONT, arrowprops=line
        )
    for fold in sorted({row.fold for row in rows}, reverse=True):
        some = [row for row in rows if row.fold == fold]
        ends = np.array([row.axis for row in some])
        ends *= np.where(ends @ _TO_VIEWER < 0, -1, 1)[:, None]
        places = ends @ _TO_PAGE
        axes.scatter(
            x + places[:, 0],
            places[:, 1],
            s=70,
            marker=_MARKERS.get(fold, "o"),
            c=[row.softness for row in some],
            cmap=colormaps[_SEQUENTIAL],
            norm=norm,
            edgecolors="0.2",
            linewidths=0.7,
            zorder=3,
        )
