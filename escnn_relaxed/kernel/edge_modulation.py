"""The modulations of a kernel of clouds: f_G at any edge, f_T at any node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from escnn.group import Representation
from numpy.typing import NDArray
from torch import Tensor

from ..group.domain import Domain
from ..group.edges import edge_directions, monomials, node_functions, turned_to_axis, unit_directions
from ..group.elements import CUBE
from ..group.points import Array
from .domain_frequency import DomainFrequency
from .modulation import ElementModulation, Maps
from .position_modulation import PositionModulation

# The radii, in parts of that of the domain, at which means over positions are taken: each shell has the same area in
# the plane, the same volume in space.
_SHELLS = 6
_SAME = 1e-6


class EdgeModulation(ElementModulation):
    """f_G of each output channel and direction: a polynomial of d/|d|, which is also known at a kernel's sample points.

    The functions are those of :class:`ElementModulation` at the sample points. The coefficients of their polynomials
    are constants, so that an edge costs as many products as these have monomials: d for most groups.
    """

    along: Tensor
    sampled: Tensor

    def __init__(
        self, fields: Sequence[Representation], domain: Domain, subgroups: Sequence[str], points: Array
    ) -> None:
        super().__init__(fields, domain, subgroups, points)
        at_points = monomials(edge_directions(torch.from_numpy(points)), self.degrees).numpy()
        values = self.exact.along.numpy()
        # 1 is left to the gains: what has a direction has none at the origin.
        with_one = np.zeros((*values.shape[:2], at_points.shape[1]))
        if self.degrees:
            flat = values.reshape(-1, values.shape[-1]).T
            coefficients = np.linalg.lstsq(at_points[:, 1:], flat, rcond=None)[0].T
            with_one[..., 1:] = coefficients.reshape(*values.shape[:2], -1)
        self.set_constant("along", with_one)
        self.set_constant("sampled", at_points.T)
        self._taps = len(at_points.T)

    def _maps_of(self, values: Tensor, constants: Any) -> list[Maps]:
        sides = (values.index_select(0, constants.side_functions).unsqueeze(1) @ constants.along).squeeze(1)
        made: list[Maps] = []
        for number, kind in enumerate(self.kinds):
            of_kind = values.index_select(0, constants.functions[number])
            gains = (of_kind.unsqueeze(1) @ constants.rows[number]).squeeze(1).unsqueeze(-1)
            gains = torch.cat([gains, gains.new_zeros(*gains.shape[:-1], self._taps - 1)], -1)
            of_sides = sides.unsqueeze(1).expand(-1, len(kind.elements), -1)
            made.append((torch.cat([gains, of_sides]).flatten(1),))
        return made

    def forward(self, frequency: DomainFrequency, setting: tuple[Any, ...] = ()) -> Tensor:
        """Return f at the sample points, (C_out, T), or (C_out, 1) where it has no direction."""
        return self._at_points(super().forward(frequency, setting))

    def moved(self, frequency: DomainFrequency, averaged: Sequence[str], numbers: NDArray[np.int64]) -> Tensor:
        """Return f at the sample points as an element moves it, given the numbers of the elements."""
        return self._at_points(super().moved(frequency, averaged, numbers))

    def _at_points(self, coefficients: Tensor) -> Tensor:
        return coefficients @ self.sampled if self.degrees else coefficients

    def at_edges(self, frequency: DomainFrequency, averaged: Sequence[str], powers: Tensor | None) -> Tensor:
        """Return f at edges with these monomials of their directions, (E, C_out); (1, C_out) without direction."""
        coefficients = self.edge_coefficients(frequency, averaged).T
        return coefficients if powers is None else powers @ coefficients

    def edge_coefficients(self, frequency: DomainFrequency, averaged: Sequence[str]) -> Tensor:
        """Return the coefficients of the monomials in each channel, (C_out, n), or (C_out, 1) without direction."""
        return super().forward(frequency, tuple(averaged))


class NodeModulation(PositionModulation):
    """f_T of each output channel at a node, a function of its position over the radius of the domain.

    The functions are those of the gains of :class:`PositionModulation`, of mean 0 over a disk or a ball. A continuous
    group is sampled, so here a position is first turned to a fixed place of its orbit: that makes them exactly
    invariant.
    """

    places: Tensor

    def __init__(self, fields: Sequence[Representation], domain: Domain, radius: float) -> None:
        self.radius = radius
        self.orbit = _orbit_axes(domain)
        super().__init__(fields, domain, np.zeros((1, domain.dimension)))
        self.set_constant("places", _places(domain))

    def _function_maps(self, scale: Tensor, setting: tuple[Any, ...], constants: Any) -> list[Maps]:
        # At the places that stand for the domain: gains (n, rows·P).
        made: list[Maps] = []
        values = self._functions(scale, constants.places, constants).flatten(0, 1)
        for number in range(len(self.kinds)):
            gains = constants.gains[number]
            at_places = (gains.flatten(0, 1) @ values).unflatten(0, gains.shape[:2]).flatten(1)
            made.append((at_places, at_places[:0]))
        return made

    def _functions(self, scale: Tensor, positions: Tensor, constants: Any) -> Tensor:
        """Return h at positions in units of the radius, (2d, M, P), less their means over the places."""
        return node_functions(scale, turned_to_axis(positions, self.orbit), constants.action) - self.means(
            scale, constants
        )

    def means(self, scale: Tensor, constants: Any) -> Tensor:
        """Return the means of h over the places, (2d, 1, 1), which are the same for each element."""
        # Elements map the places to each other, but for those turned to one place of each orbit.
        action = constants.action if self.orbit else constants.action[:1]
        return node_functions(scale, turned_to_axis(constants.places, self.orbit), action).mean((1, 2), keepdim=True)

    def at_nodes(self, frequency: DomainFrequency, coordinates: Tensor) -> Tensor:
        """Return f at nodes, (n, C_out)."""
        return (self.node_coefficients() @ self.node_values(frequency, coordinates)).T

    def node_values(self, frequency: DomainFrequency, coordinates: Tensor) -> Tensor:
        """Return the functions of the position of nodes for all elements, (J·M, n)."""
        scale = frequency.scale(self._columns, self.like)
        return self._functions(scale, coordinates / self.radius, self).flatten(0, 1)

    def node_coefficients(self) -> Tensor:
        """Return the coefficients of the functions in each channel, (C_out, J·M)."""
        return self.channels([part[0] for part in self._gain_coefficients()])

    def _gain_coefficients(self) -> list[Tensor]:
        """Return the coefficients of the functions in each kind of fields, (1, fields, rows, J·M)."""
        maps = [(self.gains[n].flatten(1), self.directions[n].flatten(1)) for n in range(len(self.kinds))]
        return self._weighted_sums(maps, self.by_kind())

    def second_moments(self, frequency: DomainFrequency, size: tuple[int, ...]) -> Tensor:
        """Return the mean of f² over the disk or ball, (C_out, 1)."""
        return self(frequency)[0].square().mean(-1, keepdim=True)


def _places(domain: Domain) -> Array:
    """Return places that stand for a disk or a ball of radius 1, which the sampled elements map to each other."""
    axes, action = domain.dimension, domain.sample.action
    # The images of one direction are enough where there are many.
    around = unit_directions(axes)[: 1 if axes == 3 and len(action) >= CUBE else None]
    directions = np.einsum("mij,pj->mpi", action, around).reshape(-1, axes)
    _, first = np.unique(directions.round(6), axis=0, return_index=True)
    radii = ((np.arange(_SHELLS) + 0.5) / _SHELLS) ** (1 / axes)
    return np.concatenate([directions[np.sort(first)] * radius for radius in radii])


def _orbit_axes(domain: Domain) -> int:
    """Return how many of the first coordinates the continuous rotations of a group mix: 0 of a finite group."""
    group = domain.gspace.fibergroup
    if not group.continuous:
        return 0
    # Rotations about an axis of space are about the third coordinate.
    has_axis = bool((np.abs(np.abs(domain.sample.rotations[:, -1, -1]) - 1) < _SAME).all())
    return 2 if domain.dimension == 2 or has_axis else 3
