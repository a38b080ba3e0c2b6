"""The modulation f of a tied kernel by the position: factors at the pixels of an image (equation (3))."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from escnn.group import Representation
from torch import Tensor

from ..group.domain import Domain
from ..group.points import Array, as_factors, position_functions
from .domain_frequency import DEFAULT_FREQUENCY, DomainFrequency
from .modulation import SCALE, FieldKind, Maps, Modulation, directions, independent


class PositionModulation(Modulation):
    r"""f of each output channel, tap and position, with a mean of 0 over the pixels of an image of any size.

    .. math::
        f(c, d; x) = \sum_j \alpha_j \operatorname{mean}_{g \in c} h_j(\omega' \odot g^{-1}x)
            + \sum_{jk} \mu_{jk} \operatorname{mean}_g h_j(\omega' \odot g^{-1}x)\, \langle g e_k, d/|d| \rangle
            = a(c; x) + \langle v(c; x), d/|d| \rangle

    The functions h are tanh(2π ω′ a) of each coordinate of the position in the frame of g, and their squares, which
    tell the centre from the border. The *gains* a need one filter bank, the *directions* v one more for each axis. So
    only fields without elements of the group of their own have directions, whose gains are radial, unless all shall
    (``all_directions``). The weights of a field are its α, then its μ.
    """

    action: Tensor
    tap_directions: Tensor
    gains: dict[int, Tensor]
    directions: dict[int, Tensor]

    def __init__(
        self, fields: Sequence[Representation], domain: Domain, taps: Array, all_directions: bool = False
    ) -> None:
        sample = domain.sample
        super().__init__(fields, sample)
        self._columns = ("translation",) * domain.dimension
        self.set_constant("action", sample.action)
        # 1 and d/|d| of each tap.
        self.set_constant("tap_directions", np.concatenate([np.ones((1, len(taps))), directions(taps)]))
        reference = torch.full((domain.dimension,), DEFAULT_FREQUENCY, dtype=torch.float64)
        values = position_functions(self.exact.action, reference, domain.reference_size).numpy()
        gains, ways = {}, {}
        for number, kind in enumerate(self.kinds):
            gains[number] = _scaled(*_gains(values, kind))
            has_elements = len(kind.elements) > 1 or len(sample) == 1
            has_directions = (all_directions or not has_elements) and np.abs(directions(taps)).max() > 0
            along = directions(taps) if has_directions else None
            ways[number] = _scaled(*_directions(values, sample.action, along))
        self.set_constant("gains", gains)
        self.set_constant("directions", ways)
        self._numbers = [len(gains[number]) for number in gains]  # of gains of a field
        self.has_directions = any(map(len, ways.values()))
        self._start([len(gains[number]) + len(ways[number]) for number in gains])

    def factors(self, frequency: DomainFrequency, size: tuple[int, ...]) -> Tensor:
        """Return factors at the pixels, (1, C_out, pixels along each axis): 1 + a. With directions (1 + d, …): v."""
        return as_factors(self(frequency, size), size)

    def coefficients(self) -> Tensor:
        """Return the map from the functions of the position for all elements to the factors, (R, C_out, J·M)."""
        maps = [(self.gains[n].flatten(1), self.directions[n].flatten(1)) for n in range(len(self.kinds))]
        return self.channels(self._weighted_sums(maps, self.by_kind()))

    def _weighted_sums(self, maps: Sequence[Maps], weights: Sequence[Tensor]) -> list[Tensor]:
        # Maps are of gains (n, rows·columns) and of directions (n, d·columns).
        parts = []
        for kind_weights, kind, number, kind_maps in zip(weights, self.kinds, self._numbers, maps, strict=True):
            gain_map, way_map = kind_maps
            part = (kind_weights[:, :number] @ gain_map).unflatten(1, (len(kind.elements), -1)).unsqueeze(0)
            if self.has_directions:
                ways = (kind_weights[:, number:] @ way_map).unflatten(1, (len(self._columns), 1, -1)).transpose(0, 1)
                part = torch.cat([each.expand(-1, -1, kind.size, -1) for each in (part, ways)])
            parts.append(part)
        return parts

    def _function_maps(self, scale: Tensor, setting: tuple[Any, ...], constants: Any) -> list[Maps]:
        # At the pixels of an image: gains (n, rows·P), directions (n, d·P).
        values = position_functions(constants.action, scale, setting).flatten(0, 1)
        maps: list[Maps] = []
        for number in range(len(self.kinds)):
            parts = constants.gains[number], constants.directions[number]
            gains, ways = ((part.flatten(0, 1) @ values).unflatten(0, part.shape[:2]).flatten(1) for part in parts)
            maps.append((gains, ways))
        return maps

    def second_moments(self, frequency: DomainFrequency, size: tuple[int, ...]) -> Tensor:
        """Return the mean over the pixels of f², (C_out, T)."""
        f = self(frequency, size)
        moments = torch.einsum("rcp,scp->crs", f, f) / f.shape[-1]
        taps = self.tap_directions[: len(f)]
        return torch.einsum("crs,rt,st->ct", moments, taps, taps)

    def weight_subgroups(self) -> list[tuple[str, ...]]:
        """Return the subgroups that each weight belongs to."""
        return [("translation",)] * len(self.weights)


def _gains(values: Array, kind: FieldKind) -> tuple[Array, Array]:
    """Return independent gains of a kind as maps of h (J, M, P) to rows, (n, rows, J, M), and their values."""
    maps = np.einsum("jn,rm->jrnm", np.eye(len(values)), kind.elements)
    sampled = np.einsum("jmp,rm->jrp", values, kind.elements)
    kept = independent(sampled)
    return maps[kept], sampled[kept]


def _directions(values: Array, action: Array, along: Array | None) -> tuple[Array, Array]:
    """Return independent directions as maps of h (J, M, P) to vectors, (n, d, J, M), and their values at taps."""
    count, (elements, axes, _) = len(values), action.shape
    if along is None:
        return np.zeros((0, axes, count, elements)), np.zeros((0, 1))
    # mean_g h(g⁻¹x) g e for each function and axis e.
    maps = np.einsum("jn,mik->jkinm", np.eye(count), action / elements).reshape(-1, axes, count, elements)
    sampled = np.einsum("ainm,nmp,it->atp", maps, values, along, optimize=True)
    kept = independent(sampled)
    return maps[kept], sampled[kept]


def _scaled(maps: Array, values: Array) -> Array:
    """Return maps (n, rows, J, M) as (n, rows, J·M), so that a weight of 1 makes a root mean square of SCALE."""
    scales = [SCALE / np.sqrt(np.square(value).mean()) for value in values]
    return (maps * np.array(scales).reshape(-1, 1, 1, 1)).reshape(*maps.shape[:2], math.prod(maps.shape[2:]))
