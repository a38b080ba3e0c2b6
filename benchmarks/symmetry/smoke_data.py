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

import json
import warnings
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["LEVELS", "Puffs", "simulated"]

Array = NDArray[np.float64]

LEVELS = 10
COPIES = {"rotation": 4, "translation": 2}
BUOYANCY = 0.2
# Buoyancies are as 1 : 4 : 7 : 10, or 1 : 4, at the highest level, and their mean is the same at all.
STEEPNESS = 3.0
# Steps of the solver, each of time 1, in a box whose cells have side 1.
STEPS_OF_A_FRAME = 2
SOLVER = "scipy-direct"


@dataclass(frozen=True)
class Puffs:
    """The settings of a simulation.

    Attributes:
        symmetry: ``"rotation"`` or ``"translation"``.
        level: 0 to 9.
        count: of puffs, each with all its copies.
        frames: of each, the first soon after rest.
        size: of the box, in cells.
        seed: of where puffs start, how wide and how dense.
    """

    symmetry: str
    level: int
    count: int = 12
    frames: int = 14
    size: int = 32
    seed: int = 1


def simulated(puffs: Puffs, cache: Path) -> Tensor:
    """Films (puff, copy, frame, channel, row, column), from the cache where they are.

    Channels are the velocity to the right, the velocity up, and the density of smoke, at the centres of cells. Rows go
    down as in an image; so the first two are what escnn's irrep 1 of rotations acts on.
    """
    constants = {"buoyancy": BUOYANCY, "steepness": STEEPNESS, "steps": STEPS_OF_A_FRAME, "solver": SOLVER}
    settings = json.dumps({**asdict(puffs), **constants}, sort_keys=True)
    file = cache / f"{puffs.symmetry}-{puffs.level}-{sha256(settings.encode()).hexdigest()[:12]}.npz"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished.npz")
        np.savez_compressed(unfinished, films=_simulate(puffs).astype(np.float32), settings=settings)
        unfinished.rename(file)
    with np.load(file) as stored:
        return torch.from_numpy(stored["films"])


def buoyancies(puffs: Puffs) -> Array:
    """The factor of each copy."""
    factors = 1 + STEEPNESS * puffs.level / (LEVELS - 1) * np.arange(COPIES[puffs.symmetry])
    return np.asarray(factors / factors.mean())


def _simulate(puffs: Puffs) -> Array:
    starts, force = _starts_and_force(puffs)
    with warnings.catch_warnings():
        # PhiFlow calls what it has deprecated itself, and tells of a pressure that is known up to a constant.
        warnings.simplefilter("ignore")
        films = _solve(puffs, starts, force)
    return films.reshape(puffs.count, COPIES[puffs.symmetry], *films.shape[1:])


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


def _solve(puffs: Puffs, starts: Array, force: Array) -> Array:
    """Velocities and smoke (run, frame, channel, row, column)."""
    from phi.flow import (
        PERIODIC,
        ZERO_GRADIENT,
        Box,
        CenteredGrid,
        Solve,
        StaggeredGrid,
        advect,
        batch,
        channel,
        fluid,
        math,
        resample,
        spatial,
        tensor,
    )

    is_periodic = puffs.symmetry == "translation"
    walls = {"x": PERIODIC, "y": 0} if is_periodic else 0
    free = {"x": PERIODIC, "y": ZERO_GRADIENT} if is_periodic else ZERO_GRADIENT
    box = Box(x=puffs.size, y=puffs.size)
    frames = []
    with math.precision(64):
        smoke = CenteredGrid(tensor(starts, batch("run"), spatial("x,y")), free, box)
        lift = CenteredGrid(tensor(force, batch("run"), spatial("x,y"), channel(vector="x,y")), free, box)
        velocity = StaggeredGrid(0.0, walls, box, x=puffs.size, y=puffs.size)
        for step in range(STEPS_OF_A_FRAME * puffs.frames):
            smoke = advect.mac_cormack(smoke, velocity, 1.0)
            velocity = advect.semi_lagrangian(velocity, velocity, 1.0) + resample(smoke * lift, to=velocity)
            velocity, _ = fluid.make_incompressible(velocity, (), Solve(SOLVER, rank_deficiency=1))
            if step % STEPS_OF_A_FRAME == STEPS_OF_A_FRAME - 1:
                moving = velocity.at_centers().values.numpy("run,vector,y,x")
                frame = np.concatenate([moving, smoke.values.numpy("run,y,x")[:, None]], axis=1)
                frames.append(frame[..., ::-1, :])
    return np.stack(frames, axis=1)
