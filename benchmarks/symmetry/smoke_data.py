"""Puffs of smoke that rise in a box, simulated by PhiFlow: their symmetry is broken as much as is asked for.

After the data of Wang, Walters and Yu, "Approximately Equivariant Networks for Imperfectly Symmetric Dynamics" (ICML
2022), whose plumes differ by side in their buoyancy. A puff is simulated several times, its copies, at places that are
moved by a symmetry, with the buoyancy scaled by a factor of the copy. Copies differ by the symmetry alone at level 0,
and more from level to level.

- ``"rotation"``: four copies in a closed box, from each side inwards.
- ``"translation"``: two copies, half of a box apart whose left and right side are one; buoyancy is weaker in its left
  half and stronger in its right.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from benchmarks.shared.flow import SOLVER, STEPS_OF_A_FRAME, Array, films, kept

LEVELS = 10
COPIES = {"rotation": 4, "translation": 2}
BUOYANCY = 0.2
# Buoyancies are as 1 : 4 : 7 : 10, or 1 : 4, at the highest level, and their mean is the same at all.
STEEPNESS = 3.0


@dataclass(frozen=True)
class Puffs:
    """The settings of a simulation: puffs with all their copies, frames of each, the side of the box in cells."""

    # "rotation" or "translation", and 0 to 9.
    symmetry: str
    level: int
    count: int = 12
    frames: int = 14
    size: int = 32
    # Of where puffs start, how wide and how dense.
    seed: int = 1


def simulated(puffs: Puffs, cache: Path) -> Tensor:
    """Return films (puff, copy, frame, channel, row, column), from the cache where they are.

    Channels are the velocity to the right, the velocity up, and the density of smoke, at the centres of cells. Rows go
    down as in an image; so the first two are what escnn's irrep 1 of rotations acts on.
    """
    constants = {"buoyancy": BUOYANCY, "steepness": STEEPNESS, "steps": STEPS_OF_A_FRAME, "solver": SOLVER}
    return kept(f"{puffs.symmetry}-{puffs.level}", {**asdict(puffs), **constants}, lambda: _simulate(puffs), cache)


def buoyancies(puffs: Puffs) -> Array:
    """Return the factor of each copy."""
    factors = 1 + STEEPNESS * puffs.level / (LEVELS - 1) * np.arange(COPIES[puffs.symmetry])
    return np.asarray(factors / factors.mean())


def _simulate(puffs: Puffs) -> Array:
    from phi.flow import PERIODIC, ZERO_GRADIENT

    walls = 0, ZERO_GRADIENT
    if puffs.symmetry == "translation":
        walls = {"x": PERIODIC, "y": 0}, {"x": PERIODIC, "y": ZERO_GRADIENT}
    found = films(*_starts_and_force(puffs), frames=puffs.frames, walls=walls)
    return found.reshape(puffs.count, COPIES[puffs.symmetry], *found.shape[1:])


def _starts_and_force(puffs: Puffs) -> tuple[Array, Array]:
    """Smoke at the start (run, x, y), and the force on smoke (run, x, y, component), y upwards."""
    generator = np.random.default_rng(puffs.seed)
    size, half, factors = puffs.size, puffs.size / 2, buoyancies(puffs)
    centres = np.arange(size) + 0.5 - half
    starts, forces = [], []
    for _ in range(puffs.count):
        place = generator.uniform(-0.2, 0.2) * size, generator.uniform(0.15, 0.3) * size - half
        radius, density = generator.uniform(0.08, 0.12) * size, generator.uniform(0.5, 1.5)
        for copy, factor in enumerate(factors):
            position, up = np.array(place), np.array([0.0, 1.0])
            if puffs.symmetry == "rotation":
                strength = np.full(size, factor)
                for _ in range(copy):
                    position, up = np.array([-position[1], position[0]]), np.array([-up[1], up[0]])
                right = centres - position[0]
            else:
                strength = np.where(centres < 0, *factors)
                right = (centres - position[0] - (copy - 0.5) * half + half) % size - half
            distance = right[:, None] ** 2 + (centres - position[1])[None, :] ** 2
            starts.append(density * np.exp(-distance / (2 * radius**2)))
            forces.append(BUOYANCY * strength[:, None, None] * np.broadcast_to(up, (size, size, 2)))
    return np.stack(starts), np.stack(forces)
