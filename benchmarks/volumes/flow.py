"""Buoyant flow in a box whose opposite sides are one, simulated by PhiFlow: gravity breaks its symmetry.

Without buoyancy the law of motion is equivariant to the rotations of the cube, with it to those about the vertical
axis.
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

__all__ = ["Flow", "simulated", "solve", "starts"]

# Steps of the solver between two frames, and the time of each.
STEPS_OF_A_FRAME, TIME_STEP = 2, 0.5
# The highest wave number of the velocity and the density at the start.
WAVES = 2


@dataclass(frozen=True)
class Flow:
    """The settings of a simulation.

    Attributes:
        buoyancy: acceleration along z of smoke of density 1, in cells and units of time. Velocities start near 1.
        count: number of films.
        frames: of each.
        size: of the box in cells.
        seed: of the states at the start.
    """

    buoyancy: float
    count: int = 48
    frames: int = 6
    size: int = 8
    seed: int = 1


def simulated(flow: Flow, cache: Path) -> Tensor:
    """Return films (film, frame, channel, D, H, W), from the cache where they are.

    Channels are the velocity along escnn's three axes and the density of smoke, at the centres of cells.
    """
    settings = json.dumps(
        {**asdict(flow), "steps": STEPS_OF_A_FRAME, "time": TIME_STEP, "waves": WAVES}, sort_keys=True
    )
    file = cache / f"flow-{flow.buoyancy:g}-{sha256(settings.encode()).hexdigest()[:12]}.npz"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished.npz")
        films = solve(starts(flow), flow)
        np.savez_compressed(unfinished, films=films.astype(np.float32), settings=settings)
        unfinished.rename(file)
    with np.load(file) as stored:
        return torch.from_numpy(stored["films"])


def starts(flow: Flow) -> NDArray[np.float64]:
    """Return velocity and smoke at the start (film, channel, x, y, z), of wide waves."""
    generator = np.random.default_rng(flow.seed)
    return np.stack([_waves(flow, generator) for _ in range(4)], axis=1)


def _waves(flow: Flow, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return smooth noise of mean square 1 on the torus, (film, x, y, z)."""
    noise = np.fft.fftn(generator.standard_normal((flow.count, *[flow.size] * 3)), axes=(1, 2, 3))
    number = np.abs(np.fft.fftfreq(flow.size, 1 / flow.size))
    is_low = (number[:, None, None] <= WAVES) & (number[:, None] <= WAVES) & (number <= WAVES)
    is_low[0, 0, 0] = False
    field = np.fft.ifftn(noise * is_low, axes=(1, 2, 3)).real
    return np.asarray(field / np.sqrt(np.square(field).mean(axis=(1, 2, 3), keepdims=True)))


def solve(first: NDArray[np.float64], flow: Flow) -> NDArray[np.float64]:
    """Return velocities and smoke (film, frame, channel, D, H, W) from those at the start."""
    with warnings.catch_warnings():
        # PhiFlow calls what it has deprecated itself, and tells of a pressure that is known up to a constant.
        warnings.simplefilter("ignore")
        return _solve(first, flow)


def _solve(first: NDArray[np.float64], flow: Flow) -> NDArray[np.float64]:
    from phi.flow import (
        PERIODIC,
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

    box = Box(x=flow.size, y=flow.size, z=flow.size)
    grid = {"x": flow.size, "y": flow.size, "z": flow.size}
    frames = []
    with math.precision(64):
        names = batch("film"), spatial("x,y,z")
        smoke = CenteredGrid(tensor(first[:, 3], *names), PERIODIC, box)
        moving = tensor(np.moveaxis(first[:, :3], 1, -1), *names, channel(vector="x,y,z"))
        velocity = StaggeredGrid(CenteredGrid(moving, PERIODIC, box), PERIODIC, box, **grid)
        up = tensor([0.0, 0.0, flow.buoyancy], channel(vector="x,y,z"))
        for step in range(1 + STEPS_OF_A_FRAME * (flow.frames - 1)):
            if step:
                smoke = advect.mac_cormack(smoke, velocity, TIME_STEP)
                lift = resample(smoke * up, to=velocity) * TIME_STEP
                velocity = advect.semi_lagrangian(velocity, velocity, TIME_STEP) + lift
            velocity, _ = fluid.make_incompressible(velocity, (), Solve("scipy-direct", rank_deficiency=1))
            if step % STEPS_OF_A_FRAME == 0:
                moving_now = velocity.at_centers().values.numpy("film,vector,z,y,x")
                frames.append(np.concatenate([moving_now, smoke.values.numpy("film,z,y,x")[:, None]], axis=1))
    # escnn's axes z and y point against planes and rows.
    return np.stack(frames, axis=1)[..., ::-1, ::-1, :]
