"""The points at which a layer evaluates its kernel, as tensors of scaled coordinates (docs/concepts/mathematics.md).

Filter points are indexed by (sampled element g, relative element, tap), domain points by (g, position).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from .domain_points import DomainPoints
from .elements import steer
from .frame import GroupFrame
from .points import support_window, tap_grid

__all__ = ["CoordinateGrid"]


class CoordinateGrid(DomainPoints):
    """Coordinates of the steered taps beside those of the domain.

    Args:
        frame: the sampled group elements.
        kernel_size: k.
        dilation: spacing of the taps in pixels.
        edge: width of the smooth edge of the support in taps.
        relative_subgroups: subgroups whose relative element the kernel sees (rotation, reflection).
        filter_frequency: ω of the position and of the relative subgroups.
        domain_subgroups: subgroups that may be soft.
        position_frame: ``"group"``, positions are g⁻¹x; ``"image"``, positions are x.
        cells: number of positions along each axis of the image over which the kernel varies.

    Attributes:
        taps: ω ⊙ α of every steered tap, (M, R, T, F), with T = kᵈ. R is M where the coordinates have those of g′⁻¹g,
            for all elements g beside each g′; else it is 1.
        window: weight of each tap, 0 off the support, (T,).
        support: numbers of the taps on the support.
        filter_columns: the name of each filter coordinate: position, rotation or reflection.
    """

    taps: Tensor
    window: Tensor

    def __init__(
        self,
        frame: GroupFrame,
        kernel_size: int,
        dilation: int,
        edge: float,
        relative_subgroups: tuple[str, ...],
        filter_frequency: Mapping[str, float],
        domain_subgroups: tuple[str, ...],
        position_frame: str,
        cells: int,
    ) -> None:
        super().__init__(domain_subgroups, position_frame, cells, frame)
        # k/2 taps: the ball that touches the outer side of the outermost pixels. The paper's hard disk is 7 pixels
        # wide for k = 7 from centre to centre; for even k that would be empty at k = 2.
        self._radius = dilation * kernel_size / 2
        self._grid = tap_grid(kernel_size, dilation, frame.dimension)
        is_centred_on_a_tap = kernel_size % 2 == 1
        inset = dilation / 2 if edge == 0 and is_centred_on_a_tap else 0
        window = support_window(self._grid, self._radius - inset, edge * dilation)
        self.support: list[int] = np.flatnonzero(window > 0).tolist()
        self.set_constant("window", window)
        sizes = frame.coordinate_sizes()
        self._relative_subgroups = relative_subgroups
        self.filter_columns = [name for name in ("position", *relative_subgroups) for _ in range(sizes[name])]
        self._filter_scale = np.array([filter_frequency[name] for name in self.filter_columns])
        self._set_taps(frame)

    def set_frame(self, frame: GroupFrame) -> None:
        """Steer the taps by the elements of another frame, too."""
        super().set_frame(frame)
        self._set_taps(frame)

    def _set_taps(self, frame: GroupFrame) -> None:
        """Set the taps, steered by each element."""
        position = steer(frame.sample, self._grid / self._radius)[:, None]
        relative = [values[:, :, None] for values in frame.relative_coordinates(self._relative_subgroups)]
        shape = (len(frame.sample), len(frame.sample) if relative else 1, len(self._grid))
        columns = [np.broadcast_to(c, (*shape, c.shape[-1])) for c in (position, *relative)]
        self.set_constant("taps", np.concatenate(columns, axis=-1) * self._filter_scale)
