"""The points at which κ is evaluated: steered taps of the filter space, elements and positions of the domain.

All of them are constants. What they mean is in docs/concepts/mathematics.md, "Coordinates".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checks import FIBER_SUBGROUPS
from ..group.domain import AVERAGES, of_fiber_group
from ..group.elements import rotation_matrix
from ..group.exact_constants import ExactConstants
from ..group.points import Array, positions_in_frames, support_window
from ..kernel.config import KernelConfig
from ..kernel.domain_frequency import DomainFrequency
from .domain import ContinuousDomain

# Coordinates that differ by less are the same.
_SAME = 1e-9


class FilterPoints(ExactConstants):
    """Coordinates ω ⊙ α of the taps as each element steers them, and the weight of each tap."""

    # ω ⊙ α, (M, R, T, F): R is M where κ sees g′⁻¹g, for all elements g beside each g′; else 1.
    taps: Tensor
    window: Tensor

    def __init__(
        self,
        config: KernelConfig,
        domain: ContinuousDomain,
        frequency: Mapping[str, float],
        sees_relative: bool,
        support: str,
    ) -> None:
        super().__init__()
        # k/2 taps: the ball that touches the outer side of the outermost pixels. The paper's hard disk is 7 pixels
        # wide for k = 7 from centre to centre; for even k that would be empty at k = 2.
        radius = config.dilation * config.kernel_size / 2
        grid = config.taps
        if support == "smooth":
            window = support_window(grid, radius, config.dilation)
        else:
            window = support_window(grid, radius - (config.dilation / 2 if config.kernel_size % 2 else 0), 0)
        self.set_constant("window", window)
        sample = domain.sample
        names = sample.subgroups if sees_relative else ()
        relative = [values[:, :, None] for values in domain.relative_coordinates(names)]
        coordinates = {
            "position": np.einsum("mji,pj->mpi", sample.action, grid / radius)[:, None],
            **dict(zip(names, relative, strict=True)),
        }
        self.columns = [name for name, part in coordinates.items() for _ in range(part.shape[-1])]
        shape = np.broadcast_shapes(*(part.shape[:-1] for part in coordinates.values()))
        taps = np.concatenate(
            [np.broadcast_to(part, (*shape, part.shape[-1])) for part in coordinates.values()], axis=-1
        )
        self._taps = taps * [frequency[name] for name in self.columns]
        self.set_constant("taps", self._taps)

    def turn(self, angle: float) -> None:
        """Set the taps to those in the frames of the elements g r, r the rotation by an angle."""
        is_position = np.array(self.columns) == "position"
        taps = self._taps.copy()
        taps[..., is_position] = taps[..., is_position] @ rotation_matrix(angle)
        self.set_constant("taps", taps)


class DomainPoints(ExactConstants):
    """Coordinates a(g, x) of the domain, and of the points over which means are taken."""

    action: Tensor
    origin: Tensor
    everywhere: Tensor
    elements: dict[tuple[str, ...], Tensor]

    def __init__(self, domain: ContinuousDomain, subgroups: Sequence[str]) -> None:
        super().__init__()
        # The position of hx in the frame of hg is that of x in the frame of g, so a mean over h changes the elements
        # alone. A mean over positions is over all x of the reference image as any element sees them: the same for every
        # g, and more than its pixels where elements do not map these to each other.
        self._has_positions = "translation" in subgroups
        names = [name for name in ("translation", *FIBER_SUBGROUPS) if name in subgroups]
        self.columns = domain.columns(names)
        self._action, self._seen = domain.sample.action, np.zeros((0, domain.dimension))
        self.set_constant("action", self._action)
        self.set_constant("origin", np.zeros((1, 1, domain.dimension)))
        self._seen = _seen_by_any(self.pixels(domain.reference_size, exact=True).numpy())
        self.set_constant("everywhere", self._seen[None, None])
        elements, reflected = domain.elements(names), domain.sample.reflected
        self._translates: dict[tuple[str, ...], tuple[Array, NDArray[np.int64]]] = {}
        for averaged in AVERAGES:
            numbers = domain.translates(averaged)
            # Of the whole group, the elements hg are the same for every g.
            first = numbers[:1] if numbers.shape[1] == len(numbers) else numbers
            self._translates[averaged] = elements[first], reflected[first]
        self._turned_coordinates = domain.turned_coordinates
        self.turn(0.0)

    def turn(self, angle: float) -> None:
        """Set the coordinates to those of the elements g r, r the rotation by an angle."""
        # Only elements of the plane are turned.
        rotation = rotation_matrix(angle) if angle else np.eye(self._seen.shape[-1])
        self.set_constant("action", self._action @ rotation)
        self.set_constant("everywhere", (self._seen @ rotation)[None, None])
        is_rotation = np.array([name == "rotation" for name in self.columns if name != "translation"], dtype=bool)
        seen = {}
        for averaged, (coordinates, reflected) in self._translates.items():
            turned = coordinates.copy()
            if angle and is_rotation.any():
                turned[..., is_rotation] = self._turned_coordinates(turned[..., is_rotation], reflected, angle)
            seen[averaged] = _one_of_equal(_one_of_equal(turned, 0), 1)
        self.set_constant("elements", seen)

    def pixels(self, size: Sequence[int], exact: bool = False) -> Tensor:
        """Return the positions of the pixels of an image in the frame of each element, (M, P, d)."""
        action = self.exact.action if exact else self.action
        return positions_in_frames(action, size).flatten(2).movedim(0, -1)

    def forward(
        self, frequency: DomainFrequency, averaged: Sequence[str] = (), positions: Tensor | None = None
    ) -> Tensor:
        """Return ω′ ⊙ a(hg, hx) for every h averaged over, (M, P, L, D), M or P 1 where all agree; x = 0 by default."""
        points = self.elements[of_fiber_group(averaged)].unsqueeze(1)
        if self._has_positions:
            if "translation" in averaged:
                places = self.everywhere
            else:
                places = (self.origin if positions is None else positions).unsqueeze(2)
            pair = places.unsqueeze(3), points.unsqueeze(2)
            shape = np.broadcast_shapes(*(part.shape[:-1] for part in pair))  # torch's imports sympy
            points = torch.cat([part.expand(*shape, -1) for part in pair], -1).flatten(2, 3)
        return points * frequency.scale(self.columns, points) if self.columns else points


def _seen_by_any(positions: Array) -> Array:
    """Return the distinct positions (points, d) of the positions (M, P, d) in the frames of all elements."""
    known: dict[bytes, Array] = {}
    for seen in positions:
        ordered = seen[np.lexsort(seen.round(6).T)]
        known.setdefault((ordered.round(6) + 0.0).tobytes(), seen)
    return np.concatenate(list(known.values()))


def _one_of_equal(points: Array, axis: int) -> Array:
    """Return the points with an axis of length 1 where all along it are equal."""
    first = points.take([0], axis)
    return first if np.abs(points - first).max(initial=0) < _SAME else points
