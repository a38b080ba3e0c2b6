"""The domain of a kernel: coordinates of absolute group elements and positions (docs/concepts/mathematics.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .elements import steer
from .exact_constants import ExactConstants
from .frame import FIBER_SUBGROUPS, GroupFrame
from .points import pixel_positions

__all__ = ["DomainPoints"]

# The sets of subgroups of the fiber group over which a mean may be taken.
_GROUP_MEANS = ((), ("rotation",), ("reflection",), FIBER_SUBGROUPS)


class DomainPoints(ExactConstants):
    """Coordinates a(g, x) of the domain, indexed by (g, position), and of the points over which means are taken.

    Args:
        domain_subgroups: subgroups that may be soft.
        position_frame: ``"group"``, positions are g⁻¹x; ``"image"``, positions are x.
        cells: number of positions along each axis of the image over which the kernel varies.
        frame: the sampled group elements.

    Attributes:
        domain_columns: the subgroup that scales each domain coordinate.
        image_positions: centres x of the cells in the order of a flattened image, (cellsᵈ, d).
    """

    action: Tensor
    image_positions: Tensor
    turned_positions: Tensor

    def __init__(self, domain_subgroups: tuple[str, ...], position_frame: str, cells: int, frame: GroupFrame) -> None:
        super().__init__()
        self._position_frame = position_frame
        self._domain_subgroups = domain_subgroups
        sizes = frame.domain_sizes()
        self.domain_columns = [name for name in domain_subgroups for _ in range(sizes[name])]
        self.set_constant("image_positions", pixel_positions(*[cells] * frame.dimension))
        self._set_translates(frame)

    def set_frame(self, frame: GroupFrame) -> None:
        """Take the elements of another frame, a turned grid of a continuous group."""
        self._set_translates(frame)

    def _set_translates(self, frame: GroupFrame) -> None:
        """Set the points over which means are taken: hg for each h of a subgroup, and positions that all g share."""
        self.set_constant("action", frame.sample.action)
        for subgroups in _GROUP_MEANS:
            translates = frame.translates(subgroups)
            points, action = self._soft_coordinates(translates.coordinates), translates.action
            if action.shape[0] == action.shape[1]:
                # The subgroup is the whole group: the elements hg are the same for every g.
                points, action = points[:1], action[:1]
            self.set_constant(_name("points", subgroups), points)
            self.set_constant(_name("action", subgroups), action)
        # All g⁻¹x are needed: elements that are off the pixel grid do not map the cells to themselves.
        known: dict[bytes, NDArray[np.float64]] = {}
        for turned in steer(frame.sample, self._masters["image_positions"].numpy()):
            ordered = turned[np.lexsort(turned.round(6).T)]
            known.setdefault((ordered.round(6) + 0.0).tobytes(), turned)
        self.set_constant("turned_positions", np.concatenate(list(known.values())))

    def _soft_coordinates(self, coordinates: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the coordinates of the fiber group's soft subgroups side by side, (…, D). κ sees nothing else of g."""
        soft = [coordinates[name] for name in self._domain_subgroups if name != "translation"]
        nothing = coordinates["reflection"][..., :0]
        return np.concatenate([nothing, *soft], axis=-1)

    def domain_points(self, averaged: Sequence[str] = (), positions: Tensor | None = None) -> Tensor:
        """Return a(hg, hx) for every h of the averaged subgroup: (M, P, L, D), with M or P 1 where all agree.

        The mean of the kernel over L is its projection on the kernels that are equivariant to that subgroup.

        Args:
            averaged: any of rotation, reflection, translation. The kept group is averaged over in any case.
            positions: x over half of the image along each axis, (P, d).
        """
        subgroups = tuple(name for name in FIBER_SUBGROUPS if name in averaged)
        points, action = getattr(self, _name("points", subgroups)), getattr(self, _name("action", subgroups))
        points = points[:, None]
        if points.shape[-1] == 0 and self._position_frame == "group":
            # The kernel sees no difference between the elements hg.
            points = points[:1, :, :1]
        if "translation" in self._domain_subgroups:
            # The position in the frame of g is also that in the frame of hg: the mean over h does not change it.
            if "translation" in averaged:
                own = self.turned_positions[None, None]
            else:
                positions = self.action.new_zeros(1, self.action.shape[-1]) if positions is None else positions
                own = torch.einsum("mji,pj->mpi", self.action, positions).unsqueeze(2)
            moved = own.unsqueeze(2)
            if self._position_frame == "image":
                moved = (action[:, None, :, None] @ moved.unsqueeze(-1)).squeeze(-1)
            points = points.unsqueeze(3)
            shape = torch.broadcast_shapes(points.shape[:-1], moved.shape[:-1])
            points = torch.cat([moved.expand(*shape, -1), points.expand(*shape, -1)], dim=-1).flatten(2, 3)
        return points

    def scale(self, frequency: Mapping[str, Tensor]) -> Tensor:
        """Return ω′ of each domain coordinate, (D,), or (1,) for all. A subgroup's values serve its columns in turn."""
        names = dict.fromkeys(self.domain_columns)
        if len(names) == 1 and len(only := frequency[next(iter(names))]) == 1:
            return only.to(self.action)
        scales = [frequency[name].to(self.action).expand(self.domain_columns.count(name)) for name in names]
        if not scales:
            return self.action.new_zeros(0)
        return scales[0] if len(scales) == 1 else torch.cat(scales)

    def pixel_grid(self, *size: int) -> Tensor:
        """Position x of each pixel of an output, (pixels, d)."""
        return torch.from_numpy(pixel_positions(*size)).to(self.action)


def _name(kind: str, subgroups: Sequence[str]) -> str:
    return "_".join(["orbit", kind, *subgroups])
