"""Smoke in a box, simulated by PhiFlow: puffs that rise in the plane, and flow in space that gravity drives.

After the data of Wang, Walters and Yu, "Approximately Equivariant Networks for Imperfectly Symmetric Dynamics" (ICML
2022), whose plumes differ by side in their buoyancy. A puff is simulated several times, its copies, at places that are
moved by a symmetry, with the buoyancy scaled by a factor of the copy. Copies differ by the symmetry alone at level 0,
and more from level to level.

- ``"rotation"``: four copies in a closed box, from each side inwards.
- ``"translation"``: two copies, half of a box apart whose left and right side are one; buoyancy is weaker in its left
  half and stronger in its right.

In space opposite sides are one. Without buoyancy the law of motion is equivariant to the rotations of the cube, with it
to those about the vertical axis. Films are kept in a file whose name has a hash of their settings.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
# Steps of the solver between two frames.
STEPS_OF_A_FRAME = 2
SOLVER = "scipy-direct"
# Puffs with all their copies, frames of each, the side of the box in cells, the seed of places, widths and densities.
OF_PUFFS = {"count": 12, "frames": 14, "size": 32, "seed": 1}
COPIES = {"rotation": 4, "translation": 2}
LEVELS, BUOYANCY = 10, 0.2
# Buoyancies are as 1 : 4 : 7 : 10, or 1 : 4, at the highest level, and their mean is the same at all.
STEEPNESS = 3.0
# The same of films in space, whose velocities start near 1, and the highest wave number at the start.
OF_SPACE = {"count": 48, "frames": 6, "size": 8, "seed": 1}
TIME_STEP, WAVES = 0.5, 2


def puffs_of_smoke(symmetry: str, level: int, folder: Path, count: int = OF_PUFFS["count"]) -> Tensor:
    """Return films (puff, copy, frame, channel, row, column), from the folder where they are.

    The first puffs of a larger count are those of a smaller one.

    Channels are the velocity to the right, the velocity up, and the density of smoke, at the centres of cells. Rows go
    down as in an image; so the first two are what escnn's irrep 1 of rotations acts on.
    """
    constants = {"buoyancy": BUOYANCY, "steepness": STEEPNESS, "steps": STEPS_OF_A_FRAME, "solver": SOLVER}
    settings = {"symmetry": symmetry, "level": level, **OF_PUFFS, "count": count, **constants}
    return _kept(f"{symmetry}-{level}", settings, lambda: _simulated_puffs(symmetry, level, count), folder)


def flow_in_space(buoyancy: float, folder: Path) -> Tensor:
    """Return films (film, frame, channel, D, H, W), from the folder where they are.

    Channels are the velocity along escnn's three axes, of which z and y point against planes and rows, and the density
    of smoke, at the centres of cells. Buoyancy is the acceleration along z of smoke of density 1.
    """
    settings = {"buoyancy": buoyancy, **OF_SPACE, "steps": STEPS_OF_A_FRAME, "time": TIME_STEP, "waves": WAVES}
    return _kept(f"flow-{buoyancy:g}", settings, lambda: _simulated_flow(buoyancy), folder)


def _kept(name: str, settings: Mapping[str, Any], simulate: Callable[[], Array], folder: Path) -> Tensor:
    """Return films in float32, from the folder where they are, else simulated."""
    described = json.dumps(settings, sort_keys=True)
    file = folder / f"{name}-{sha256(described.encode()).hexdigest()[:12]}.npz"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished.npz")
        np.savez_compressed(unfinished, films=simulate().astype(np.float32), settings=described)
        unfinished.rename(file)
    with np.load(file) as stored:
        return torch.from_numpy(stored["films"])


def _simulated_puffs(symmetry: str, level: int, count: int) -> Array:
    from phi.flow import PERIODIC, ZERO_GRADIENT

    walls = 0, ZERO_GRADIENT
    if symmetry == "translation":
        walls = {"x": PERIODIC, "y": 0}, {"x": PERIODIC, "y": ZERO_GRADIENT}
    factors = 1 + STEEPNESS * level / (LEVELS - 1) * np.arange(COPIES[symmetry])
    smoke, force = _starts_and_force(symmetry, factors / factors.mean(), count)
    found = _films(smoke, force, frames=OF_PUFFS["frames"], walls=walls)
    return found.reshape(count, len(factors), *found.shape[1:])


def _starts_and_force(symmetry: str, factors: Array, count: int) -> tuple[Array, Array]:
    """Smoke at the start (run, x, y), and the force on smoke (run, x, y, component), y upwards."""
    generator = np.random.default_rng(OF_PUFFS["seed"])
    size, half = OF_PUFFS["size"], OF_PUFFS["size"] / 2
    centres = np.arange(size) + 0.5 - half
    starts, forces = [], []
    for _ in range(count):
        place = generator.uniform(-0.2, 0.2) * size, generator.uniform(0.15, 0.3) * size - half
        radius, density = generator.uniform(0.08, 0.12) * size, generator.uniform(0.5, 1.5)
        for copy, factor in enumerate(factors):
            position, up = np.array(place), np.array([0.0, 1.0])
            if symmetry == "rotation":
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


def _simulated_flow(buoyancy: float) -> Array:
    generator = np.random.default_rng(OF_SPACE["seed"])
    *velocity, smoke = (_waves(generator) for _ in range(4))
    up = np.array([0.0, 0.0, buoyancy])
    return _films(smoke, up, np.stack(velocity, axis=-1), frames=OF_SPACE["frames"], time_step=TIME_STEP)


def _waves(generator: np.random.Generator) -> Array:
    """Return smooth noise of mean square 1 on the torus, (film, x, y, z)."""
    count, size = OF_SPACE["count"], OF_SPACE["size"]
    noise = np.fft.fftn(generator.standard_normal((count, size, size, size)), axes=(1, 2, 3))
    number = np.abs(np.fft.fftfreq(size, 1 / size))
    is_low = (number[:, None, None] <= WAVES) & (number[:, None] <= WAVES) & (number <= WAVES)
    is_low[0, 0, 0] = False
    field = np.fft.ifftn(noise * is_low, axes=(1, 2, 3)).real
    return np.asarray(field / np.sqrt(np.square(field).mean(axis=(1, 2, 3), keepdims=True)))


def _films(
    smoke: Array,
    force: Array,
    velocity: Array | None = None,
    *,
    frames: int,
    walls: tuple[Any, Any] | None = None,
    time_step: float = 1.0,
) -> Array:
    """Return velocity and smoke (film, frame, channel, …, y, x) at the centres of cells of side 1, rows going down.

    Smoke is the density at the start (film, x, y) or (film, x, y, z), and the force on a density of 1 is one vector, or
    one for each film and cell. A velocity at the start makes the first frame, rest makes none. Walls are PhiFlow's
    extrapolations of the velocity and of smoke; without them opposite sides are one.
    """
    from phi import flow

    axes = "x,y,z"[: 2 * smoke.ndim - 3]
    sizes = dict(zip(axes.split(","), smoke.shape[1:], strict=True))
    cells, parts, box = (flow.batch("film"), flow.spatial(axes)), flow.channel(vector=axes), flow.Box(**sizes)
    at_walls, of_smoke = walls or (flow.PERIODIC, flow.PERIODIC)
    found, is_at_rest = [], velocity is None
    with warnings.catch_warnings(), flow.math.precision(64):
        # PhiFlow calls what it has deprecated itself, and tells of a pressure that is known up to a constant.
        warnings.simplefilter("ignore")

        def grid(vectors: Array) -> Any:
            return flow.CenteredGrid(flow.tensor(vectors, *cells, parts), of_smoke, box)

        density = flow.CenteredGrid(flow.tensor(smoke, *cells), of_smoke, box)
        push = flow.tensor(force, parts) if force.ndim == 1 else grid(force)
        current = flow.StaggeredGrid(0.0 if velocity is None else grid(velocity), at_walls, box, **sizes)
        for step in range(is_at_rest, STEPS_OF_A_FRAME * (frames + is_at_rest) - 1):
            if step:
                density = flow.advect.mac_cormack(density, current, time_step)
                lift = flow.resample(density * push, to=current) * time_step
                current = flow.advect.semi_lagrangian(current, current, time_step) + lift
            current, _ = flow.fluid.make_incompressible(current, (), flow.Solve(SOLVER, rank_deficiency=1))
            if step % STEPS_OF_A_FRAME == 0:
                moving = current.at_centers().values.numpy(f"film,vector,{axes[::-1]}")
                found.append(np.concatenate([moving, density.values.numpy(f"film,{axes[::-1]}")[:, None]], axis=1))
    result = np.stack(found, axis=1)
    return np.flip(result, tuple(range(3, result.ndim - 1)))
