"""The points at which a layer evaluates its kernel, as tensors of scaled coordinates (docs/concepts/mathematics.md).

Filter points are indexed by (sampled element g, relative element, tap), domain points by (g, position).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .elements import NOTHING_KEPT, GroupSample, KeptGroup, group_coordinates, relative_elements, steer, translates
from .exact_constants import ExactConstants
from .points import pixel_positions, support_window, tap_grid

__all__ = ["CoordinateGrid"]

# What may be averaged over of the fiber group.
_GROUP_MEANS = ((), ("rotation",), ("reflection",), ("rotation", "reflection"))


class CoordinateGrid(ExactConstants):
    """Coordinates of the steered taps and of the domain.

    Args:
        sample: the sampled group elements.
        kernel_size: k.
        dilation: spacing of the taps in pixels.
        edge: width of the smooth edge of the support in taps.
        relative_subgroups: subgroups whose relative element the kernel sees (rotation, reflection).
        filter_frequency: ω of the position and of the relative subgroups.
        domain_subgroups: subgroups that may be soft.
        rotation_coordinates: ``"circle"`` or ``"log"``.
        frame: ``"group"``, positions are g⁻¹x; ``"image"``, positions are x.
        cells: number of positions along each axis of the image over which the kernel varies.
        kept: subgroup of the fiber group over which the mean is taken in any case.

    Attributes:
        taps: ω ⊙ α for every steered tap, (M, R, T, F), T = k²; R = M elements g beside each g′, in coordinates of
            g′⁻¹g, or 1 without relative coordinates.
        window: weight of each tap, 0 off the support, (T,).
        support: numbers of the taps on the support.
        filter_columns: what each filter coordinate is of: position, rotation or reflection.
        domain_columns: the subgroup that scales each domain coordinate.
        image_positions: centres x of the cells, row after row, (cells², 2).
    """

    taps: Tensor
    window: Tensor
    action: Tensor
    orbit_points: Tensor
    image_positions: Tensor
    turned_positions: Tensor

    def __init__(
        self,
        sample: GroupSample,
        kernel_size: int,
        dilation: int,
        edge: float,
        relative_subgroups: tuple[str, ...],
        filter_frequency: Mapping[str, float],
        domain_subgroups: tuple[str, ...],
        rotation_coordinates: str,
        frame: str,
        cells: int,
        kept: KeptGroup = NOTHING_KEPT,
    ) -> None:
        super().__init__()
        self._form = rotation_coordinates
        self._frame = frame
        self._kept = kept
        # k/2 taps: the disk that touches the outer side of the outermost pixels. The paper's hard disk is 7 pixels
        # wide for k = 7 from centre to centre; for even k that would be empty at k = 2.
        self._radius = dilation * kernel_size / 2
        self._grid = tap_grid(kernel_size, dilation)
        is_centred_on_a_tap = kernel_size % 2 == 1
        inset = dilation / 2 if edge == 0 and is_centred_on_a_tap else 0
        window = support_window(self._grid, self._radius - inset, edge * dilation)
        self.support: list[int] = np.flatnonzero(window > 0).tolist()
        self.set_constant("window", window)
        self.set_constant("image_positions", pixel_positions(cells, cells).reshape(-1, 2))
        sizes = {
            "position": 2,
            "translation": 2,
            "rotation": 2 if rotation_coordinates == "circle" else 1,
            "reflection": 1,
        }
        self._relative_subgroups = relative_subgroups
        self.filter_columns = [name for name in ("position", *relative_subgroups) for _ in range(sizes[name])]
        self._filter_scale = np.array([filter_frequency[name] for name in self.filter_columns])
        self.domain_columns = [name for name in domain_subgroups for _ in range(sizes[name])]
        self._domain_subgroups = domain_subgroups
        self.set_sample(sample)

    def set_sample(self, sample: GroupSample) -> None:
        """Steer the taps by other elements (a turned grid of a continuous group)."""
        coordinates = group_coordinates(sample.angle, sample.reflected, self._form)
        position = steer(sample, self._grid / self._radius)[:, None]
        numbers = relative_elements(sample) if self._relative_subgroups else None
        relative = [coordinates[name][numbers][:, :, None] for name in self._relative_subgroups]
        shape = (len(sample), len(sample) if relative else 1, len(self._grid))
        columns = [np.broadcast_to(c, (*shape, c.shape[-1])) for c in (position, *relative)]
        self.set_constant("taps", np.concatenate(columns, axis=-1) * self._filter_scale)
        self.set_constant("action", sample.action)
        self._set_translates(sample)

    def _set_translates(self, sample: GroupSample) -> None:
        """Points over which means are taken: hg for each h of a subgroup, and positions that all g share."""
        for subgroups in _GROUP_MEANS:
            angle, reflected, action = translates(sample, subgroups, self._kept)
            if len(angle) == angle.shape[1]:
                # All of the group: the same elements for every g.
                angle, reflected, action = angle[:1], reflected[:1], action[:1]
            coordinates = group_coordinates(angle, reflected, self._form)
            self.set_constant(_name("points", subgroups), self._soft_coordinates(coordinates, angle.shape))
            self.set_constant(_name("action", subgroups), action)
        # Every g⁻¹x: off the pixel grid the cells alone are not mapped to themselves.
        known: dict[bytes, NDArray[np.float64]] = {}
        for turned in steer(sample, self._masters["image_positions"].numpy()):
            ordered = turned[np.lexsort(turned.round(6).T)]
            known.setdefault((ordered.round(6) + 0.0).tobytes(), turned)
        self.set_constant("turned_positions", np.concatenate(list(known.values())))

    def _soft_coordinates(
        self, coordinates: Mapping[str, NDArray[np.float64]], shape: tuple[int, ...]
    ) -> NDArray[np.float64]:
        """The coordinates of the fiber group's soft subgroups side by side, (…, D): all of g that the kernel sees."""
        soft = [coordinates[name] for name in self._domain_subgroups if name != "translation"]
        return np.concatenate([np.zeros((*shape, 0)), *soft], axis=-1)

    def domain_points(self, averaged: Sequence[str] = (), positions: Tensor | None = None) -> Tensor:
        """a(hg, hx) for every h of the subgroup that is averaged over: (M, P, L, D), M or P 1 where all agree.

        The mean of the kernel over L is its projection on the kernels that are equivariant to that subgroup.

        Args:
            averaged: any of rotation, reflection, translation; what is kept is averaged over without being named.
            positions: x over half of the image along each axis, (P, 2).
        """
        subgroups = tuple(name for name in ("rotation", "reflection") if name in averaged)
        points, action = getattr(self, _name("points", subgroups)), getattr(self, _name("action", subgroups))
        points = points[:, None]
        if points.shape[-1] == 0 and self._frame == "group":
            # All hg are alike to the kernel.
            points = points[:1, :, :1]
        if "translation" in self._domain_subgroups:
            # p, the position in the frame of g, and of hg: the mean over h leaves it alone.
            if "translation" in averaged:
                own = self.turned_positions[None, None]
            else:
                positions = self.action.new_zeros(1, 2) if positions is None else positions
                own = torch.einsum("mji,pj->mpi", self.action, positions).unsqueeze(2)
            moved = own.unsqueeze(2)
            if self._frame == "image":
                moved = (action[:, None, :, None] @ moved.unsqueeze(-1)).squeeze(-1)
            points = points.unsqueeze(3)
            shape = torch.broadcast_shapes(points.shape[:-1], moved.shape[:-1])
            points = torch.cat([moved.expand(*shape, -1), points.expand(*shape, -1)], dim=-1).flatten(2, 3)
        return points

    def scale(self, frequency: Mapping[str, Tensor]) -> Tensor:
        """ω′ of each domain coordinate, (D,), or (1,) of all: a subgroup's values serve its columns in turn."""
        names = dict.fromkeys(self.domain_columns)
        if len(names) == 1 and len(only := frequency[next(iter(names))]) == 1:
            return only.to(self.action)
        scales = [frequency[name].to(self.action).expand(self.domain_columns.count(name)) for name in names]
        if not scales:
            return self.action.new_zeros(0)
        return scales[0] if len(scales) == 1 else torch.cat(scales)

    def pixel_grid(self, height: int, width: int) -> Tensor:
        """Position x of each pixel of an output, (H·W, 2)."""
        return torch.from_numpy(pixel_positions(height, width).reshape(-1, 2)).to(self.action)


def _name(kind: str, subgroups: Sequence[str]) -> str:
    return "_".join(["orbit", kind, *subgroups])
