"""Layers of volumes: their filters as taps in space, and the axes of rotations in which they are soft."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from escnn.gspaces import GSpace
from escnn.nn import EquivariantModule
from matplotlib import pyplot
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
from .charts import DIVERGING, FONT, WIDTH, by_label, new_axes, without_frame
from .filters import filters_over_group

Array = NDArray[np.float64]

# Seen from in front, x, a little from the right, and from above.
_SIDE, _UP = math.radians(20), math.radians(25)
_TO_VIEWER = np.array([math.cos(_UP) * math.cos(_SIDE), math.cos(_UP) * math.sin(_SIDE), math.sin(_UP)])
_RIGHT = np.array([-math.sin(_SIDE), math.cos(_SIDE), 0.0])
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

    The filter of g is that of :func:`plot_filters_over_rotations`. Turned back, all filters of a strict layer are
    alike, and those of a soft one differ. Columns are the identity and the least turns about up to four axes. Each ball
    is a tap. Its colour is the value, its area the size of the value. Each row has a colour scale of its own.

    Args:
        layers: ``RelaxedR3Conv`` or ``R3Conv``, on trivial or regular fields of one finite group; by label if there are
            several.
        out_field: number of the output field, a regular one.
        in_field: number of the input field, trivial or regular.
        axes: where to draw, a new figure by default.

    Example:
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR3(4)
        >>> density = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> regular = nn.FieldType(gspace, [gspace.regular_repr])
        >>> axes = plot_filters_in_space({"strict": nn.R3Conv(density, regular, 3)})
        >>> [label.get_text() for label in axes.get_xticklabels()]
        ['identity', '90° about z']
    """
    gspace, rows = filters_over_group(layers, 3, out_field, in_field)
    turns = rotation_axes(gspace)[:_TURNS]
    columns = len(turns) + 1
    axes = new_axes(axes, 0.5 + 0.9 * len(rows), 0.6 + 0.95 * columns)
    for number, filters in enumerate(rows.values()):
        taps = tap_grid(filters.shape[-1], dimension=3)
        _draw_filters(axes, _turned_back(filters, taps, gspace, turns), taps, -number * _BETWEEN_KERNELS)
    centres = np.arange(max(columns, len(rows))) * _BETWEEN_KERNELS
    axes.set_xticks(centres[:columns], ["identity", *map(_words, turns)], fontsize=FONT)
    axes.set_yticks(-centres[: len(rows)], list(rows), fontsize=FONT)
    axes.set(xlim=(-0.65, centres[columns - 1] + 0.65), ylim=(-centres[len(rows) - 1] - 0.65, 0.65), aspect="equal")
    axes.xaxis.tick_top()
    return without_frame(axes)


def plot_softness_by_axis(networks: nn.Module | Mapping[str, nn.Module], axes: Axes | None = None) -> Axes:
    """The softness in the rotations about each axis as a mark on a sphere, a sphere a network: a white axis is kept.

    Squares are axes of quarter turns, triangles of third turns, diamonds of half turns. Both ends of an axis have the
    same softness, so that the half of the sphere that is seen shows all axes. s is that of the softest layer, from
    :func:`~escnn_relaxed.measure.softness_by_axis`. All spheres have one colour scale, from 0.

    Args:
        networks: any module with layers ``RelaxedR3Conv``; by label if there are several.
        axes: where to draw, a new figure by default.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR3Conv
        >>> gspace = gspaces.rot3dOnR3()
        >>> fields = nn.FieldType(gspace, [gspace.irrep(0), gspace.irrep(1)])
        >>> layer = RelaxedR3Conv(fields, fields, 3, keep="SO(2)", initial_softness=0.1)
        >>> [len(marks.get_offsets()) for marks in plot_softness_by_axis(layer).collections[:3]]
        [3, 4, 6]
    """
    named = by_label("networks", networks)
    for network in named.values():
        if not any(isinstance(module, RelaxedR3Conv) for module in check_module("networks", network).modules()):
            raise ValueError(f"networks must have layers RelaxedR3Conv, got {network!r}")
    found = {label: softness_by_axis(network) for label, network in named.items()}
    axes = new_axes(axes, 2.2, max(WIDTH, 2.0 * len(found) + 0.6))
    norm = Normalize(0, max((row.softness for rows in found.values() for row in rows), default=0.0) or 1.0)
    for number, rows in enumerate(found.values()):
        _draw_sphere(axes, rows, number * _BETWEEN_SPHERES, norm)
    centres = np.arange(len(found)) * _BETWEEN_SPHERES
    axes.set(xlim=(-1.4, centres[-1] + 1.4), ylim=(-1.1, 1.45), aspect="equal", yticks=[])
    axes.set_xticks(centres, list(found), fontsize=FONT)
    without_frame(axes)
    bar = pyplot.colorbar(pyplot.cm.ScalarMappable(norm, _SEQUENTIAL), ax=axes, shrink=0.8, pad=0.02)
    bar.set_label("softness s", fontsize=FONT)
    bar.ax.tick_params(labelsize=FONT - 1)
    return axes


def _turned_back(filters: Array, taps: Array, gspace: GSpace, turns: list[RotationAxis]) -> Array:
    """Return K_g(g d) for the identity and each turn g, (turns + 1, taps), of filters (N, k, k, k)."""
    group, found = gspace.fibergroup, []
    for element in (group.identity, *(turn.element for turn in turns)):
        back = steered_taps(np.asarray(gspace.basespace_action(~element), dtype=np.float64), taps)
        found.append(filters[group.elements.index(element)].ravel()[back])
    return np.stack(found)


def _words(turn: RotationAxis) -> str:
    is_short = len(turn.name) == 1
    return f"{360 // turn.fold}° about" + (" " if is_short else "\n") + turn.name


def _draw_filters(axes: Axes, filters: Array, taps: Array, y: float) -> None:
    """Draw a row of filters in cubes of side 1, far taps first."""
    size = round(len(taps) ** (1 / 3))
    largest = float(np.abs(filters).max()) or 1.0
    look: dict[str, Any] = {"edgecolors": "0.4", "linewidths": 0.4, "zorder": 2}
    look |= {"cmap": DIVERGING, "norm": Normalize(-largest, largest)}
    order = np.argsort(taps @ _TO_VIEWER)
    points = (taps / size) @ _TO_PAGE
    corners = np.array(list(itertools.product((-0.5, 0.5), repeat=3))) * (size - 1) / size
    edges = [pair for pair in itertools.combinations(corners, 2) if (pair[0] != pair[1]).sum() == 1]
    for number, values in enumerate(filters):
        centre = np.array([number * _BETWEEN_KERNELS, y])
        lines = [np.stack(pair) @ _TO_PAGE + centre for pair in edges]
        axes.add_collection(LineCollection(lines, colors="0.8", lw=0.6))
        diameters = _LARGEST_TAP / size * np.sqrt(np.abs(values[order]) / largest)
        at: dict[str, Any] = {"offsets": (points + centre)[order], "offset_transform": axes.transData, "units": "xy"}
        balls = EllipseCollection(diameters, diameters, np.zeros(len(order)), array=values[order], **at, **look)
        axes.add_collection(balls)


def _draw_sphere(axes: Axes, rows: tuple[AxisSoftness, ...], x: float, norm: Normalize) -> None:
    """Draw a sphere of radius 1 with its marks, and the axes x, y and z out of it."""
    axes.add_patch(Circle((x, 0), 1, facecolor="0.96", edgecolor="0.6", linewidth=0.8))
    angles = np.linspace(0, 2 * math.pi, 181)
    for first, second in itertools.combinations(np.eye(3), 2):
        circle = np.outer(np.cos(angles), first) + np.outer(np.sin(angles), second)
        seen = np.where((circle @ _TO_VIEWER >= 0)[:, None], circle @ _TO_PAGE, np.nan)
        axes.plot(x + seen[:, 0], seen[:, 1], color="0.85", linewidth=0.7)
    line = {"arrowstyle": "-", "color": "0.3", "linewidth": 0.8, "shrinkA": 0}
    for name, (right, up) in zip("xyz", _TO_PAGE, strict=True):
        far = 1 + 0.34 / math.hypot(right, up)
        end = (x + far * right, far * up)
        axes.annotate(name, (x + right, up), end, ha="center", va="center", fontsize=FONT, arrowprops=line)
    look: dict[str, Any] = {"s": 70, "edgecolors": "0.2", "linewidths": 0.7, "zorder": 3}
    for fold in sorted({row.fold for row in rows}, reverse=True):
        some = [row for row in rows if row.fold == fold]
        ends = np.array([row.axis for row in some])
        right, up = (ends * np.where(ends @ _TO_VIEWER < 0, -1, 1)[:, None] @ _TO_PAGE).T
        softness, marker = [row.softness for row in some], _MARKERS.get(fold, "o")
        axes.scatter(x + right, up, c=softness, marker=marker, cmap=_SEQUENTIAL, norm=norm, **look)
