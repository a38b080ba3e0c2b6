"""Smoke in a box, simulated by PhiFlow: films that are kept, and what both boxes share of the solver."""

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


def kept(name: str, settings: Mapping[str, Any], simulate: Callable[[], Array], folder: Path) -> Tensor:
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


def films(
    smoke: Array,
    force: Array,
    velocity: Array | None = None,
    *,
    frames: int,
    walls: tuple[Any, Any] | None = None,
    time_step: float = 1.0,
) -> Array:
    """Return velocity and smoke (film, frame, channel, …, y, x) at the centres of cells of side 1, rows going down.

    Args:
        smoke: density at the start (film, x, y) or (film, x, y, z).
        force: on smoke of density 1, one vector, or one for each film and cell (film, x, y, component).
        velocity: at the start, whose frame is the first; None for rest, which is no frame.
        frames: number of frames.
        walls: PhiFlow's extrapolation of the velocity, and of smoke; by default opposite sides are one.
        time_step: of the solver.
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
