"""Charged particles in space, simulated: EGNN's system of five, also under gravity, or above a wall."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

FIELDS = ("none", "gravity", "wall")
PARTICLES, STEP, STEPS = 5, 1e-3, 1000
# Of the first positions (EGNN's) and of each first velocity; of Coulomb's law; of gravity, downwards along z.
SPREAD, SPEED, SOFTENING, GRAVITY = 1.0, 0.5, 0.5, 1.0
TIME = STEP * STEPS
# Scenes that are simulated together, so that they fit into a cache of the processor.
_TOGETHER = 250
_FIRST, _SECOND = np.array(list(combinations(range(PARTICLES), 2))).T
# Pairs → particles: the force of a pair acts on its two particles in opposite directions.
_TO_PARTICLES = np.eye(PARTICLES)[:, _FIRST] - np.eye(PARTICLES)[:, _SECOND]


@dataclass(frozen=True)
class Scenes:
    """Particles at the start, (scenes, particles, …), and what each has moved by but for its first velocity."""

    positions: Tensor
    velocities: Tensor
    charges: Tensor
    moved: Tensor
    # The scenes of which these are some, themselves where None, and their numbers.
    whole: Scenes | None = None
    rows: Tensor | None = None
    # What is known at all edges of these scenes, by name.
    known: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, chosen: Any) -> Scenes:
        rows = torch.arange(len(self)) if self.rows is None else self.rows
        parts = (part[chosen] for part in (self.positions, self.velocities, self.charges, self.moved))
        return Scenes(*parts, whole=self.whole or self, rows=rows[chosen])

    def turned(self, rotations: Tensor) -> Scenes:
        """Return scenes turned about the origin, inputs and targets together, each by a rotation of its own."""
        positions, velocities, moved = (part @ rotations.mT for part in (self.positions, self.velocities, self.moved))
        return Scenes(positions, velocities, self.charges, moved)


def forces(positions: Array, charges: Array, field: str) -> Array:
    """Return the forces on particles of mass 1, (scenes, particles, 3)."""
    apart = positions[:, _FIRST] - positions[:, _SECOND]
    squares = np.einsum("npi,npi->np", apart, apart) + SOFTENING**2
    strengths = charges[:, _FIRST] * charges[:, _SECOND] * squares**-1.5
    found: Array = _TO_PARTICLES @ (strengths[..., None] * apart)
    if field == "gravity":
        found[..., 2] -= GRAVITY
    return found


def energies(positions: Array, velocities: Array, charges: Array, field: str) -> Array:
    """Return the energy of each scene."""
    apart = positions[:, _FIRST] - positions[:, _SECOND]
    distances = np.sqrt((apart**2).sum(-1) + SOFTENING**2)
    total: Array = (velocities**2).sum((1, 2)) / 2
    total = total + (charges[:, _FIRST] * charges[:, _SECOND] / distances).sum(1)
    return total + GRAVITY * positions[..., 2].sum(1) * (field == "gravity")


def simulate(
    positions: Array, velocities: Array, charges: Array, field: str, steps: int = STEPS
) -> tuple[Array, Array]:
    """Return positions and velocities after so many steps of leapfrog; a wall at z = 0 reflects what comes below."""
    if field not in FIELDS:
        raise ValueError(f"field must be one of {FIELDS}, got {field!r}")
    positions = positions.copy()
    velocities = velocities + STEP / 2 * forces(positions, charges, field)
    for step in range(steps):
        positions += STEP * velocities
        if field == "wall":
            below = positions[..., 2] < 0
            positions[..., 2][below] *= -1
            velocities[..., 2][below] *= -1
        velocities += STEP * (1 if step < steps - 1 else 0.5) * forces(positions, charges, field)
    return positions, velocities


@functools.lru_cache(maxsize=8)
def scenes(field: str, split: str, count: int, seed: int) -> Scenes:
    """Draw scenes of a split ("train", "validation", "test") and simulate them. Above a wall all begin with z > 0."""
    drawn = np.random.default_rng([FIELDS.index(field), ("train", "validation", "test").index(split), seed])
    shape = count, PARTICLES, 3
    positions, velocities = SPREAD * drawn.standard_normal(shape), drawn.standard_normal(shape)
    velocities *= SPEED / np.linalg.norm(velocities, axis=2, keepdims=True)
    charges = drawn.choice([-1.0, 1.0], shape[:2])
    if field == "wall":
        positions[..., 2] = np.abs(positions[..., 2])
    last = np.concatenate(
        [
            simulate(positions[part], velocities[part], charges[part], field)[0]
            for part in (slice(start, start + _TOGETHER) for start in range(0, count, _TOGETHER))
        ]
    )
    parts = positions, velocities, charges, last - positions - TIME * velocities
    return Scenes(*(torch.from_numpy(part).float() for part in parts))


def random_rotations(count: int, seed: int = 0) -> Tensor:
    """Return rotations, uniform over SO(3), (count, 3, 3)."""
    quaternions = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x, y, z, w = torch.nn.functional.normalize(quaternions, dim=1).unbind(1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)], 1),
        torch.stack([2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)], 1),
        torch.stack([2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)], 1),
    ]
    return torch.stack(rows, 1).float()
