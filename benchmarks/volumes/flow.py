"""Buoyant flow in a box whose opposite sides are one, simulated by PhiFlow: gravity breaks its symmetry.

Without buoyancy the law of motion is equivariant to the rotations of the cube, with it to those about the vertical
axis.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from benchmarks.shared.flow import STEPS_OF_A_FRAME, Array, films, kept

TIME_STEP = 0.5
# The highest wave number of the velocity and the density at the start.
WAVES = 2


@dataclass(frozen=True)
class Flow:
    """The settings of a simulation: the number of films and of frames of each, the side of the box in cells."""

    # The acceleration along z of smoke of density 1, in cells and units of time. Velocities start near 1.
    buoyancy: float
    count: int = 48
    frames: int = 6
    size: int = 8
    seed: int = 1


def simulated(flow: Flow, cache: Path) -> Tensor:
    """Return films (film, frame, channel, D, H, W), from the cache where they are.

    Channels are the velocity along escnn's three axes, of which z and y point against planes and rows, and the density
    of smoke, at the centres of cells.
    """
    settings = {**asdict(flow), "steps": STEPS_OF_A_FRAME, "time": TIME_STEP, "waves": WAVES}
    return kept(f"flow-{flow.buoyancy:g}", settings, lambda: solve(starts(flow), flow), cache)


def starts(flow: Flow) -> Array:
    """Return velocity and smoke at the start (film, channel, x, y, z), of wide waves."""
    generator = np.random.default_rng(flow.seed)
    return np.stack([_waves(flow, generator) for _ in range(4)], axis=1)


def _waves(flow: Flow, generator: np.random.Generator) -> Array:
    """Return smooth noise of mean square 1 on the torus, (film, x, y, z)."""
    noise = np.fft.fftn(generator.standard_normal((flow.count, *[flow.size] * 3)), axes=(1, 2, 3))
    number = np.abs(np.fft.fftfreq(flow.size, 1 / flow.size))
    is_low = (number[:, None, None] <= WAVES) & (number[:, None] <= WAVES) & (number <= WAVES)
    is_low[0, 0, 0] = False
    field = np.fft.ifftn(noise * is_low, axes=(1, 2, 3)).real
    return np.asarray(field / np.sqrt(np.square(field).mean(axis=(1, 2, 3), keepdims=True)))


def solve(first: Array, flow: Flow) -> Array:
    """Return velocities and smoke (film, frame, channel, D, H, W) from those at the start."""
    velocity, up = np.moveaxis(first[:, :3], 1, -1), np.array([0.0, 0.0, flow.buoyancy])
    return films(first[:, 3], up, velocity, frames=flow.frames, time_step=TIME_STEP)
