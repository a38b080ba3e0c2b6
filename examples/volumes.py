"""Which symmetry of the cube survives? A soft network learns it from volumes in which a wind blows along some axis.

    python examples/volumes.py    # simulates and trains, in about a minute

A density in a box spreads alike in all directions, and is carried along one axis, another in each data set. The law of
motion is then equivariant to the turns about this axis alone. Two networks with the symmetry of the cube predict the
next moment: a strict one, and a soft one. The softness of the latter by subgroup says which axis it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from escnn import gspaces, nn
from rich.console import Console
from rich.table import Table
from torch import Tensor

from escnn_relaxed import RelaxedR3Conv, harden_network

SIZE = 12  # voxels on each side of the box
SPREAD, WIND = 0.5, 1.0
CUBE = gspaces.octaOnR3()
DENSITY = nn.FieldType(CUBE, [CUBE.trivial_repr])
HIDDEN = nn.FieldType(CUBE, [CUBE.regular_repr] * 2)
# The dimension of a batch of volumes (batch, channel, D, H, W) that each axis runs along.
DIMENSIONS = {"x": 4, "y": 3, "z": 2}


def densities(count: int) -> Tensor:
    """Smooth noise of mean square 1 on the torus, (count, 1, D, H, W)."""
    waves = torch.fft.fftn(torch.randn(count, 1, *[SIZE] * 3), dim=(2, 3, 4))
    number = torch.fft.fftfreq(SIZE, 1 / SIZE).abs()
    low = (number[:, None, None] <= 2) & (number[:, None] <= 2) & (number <= 2)
    smooth = torch.fft.ifftn(waves * low, dim=(2, 3, 4)).real
    return smooth / smooth.square().mean((2, 3, 4), keepdim=True).sqrt()


def moved(density: Tensor, axis: str) -> Tensor:
    """The density a moment later: it spreads, and where it is higher it is carried faster along an axis."""
    spread = sum(density.roll(step, dim) - density for dim in (2, 3, 4) for step in (-1, 1)) / 6
    flow = density.square() / 2
    carried = (flow.roll(-1, DIMENSIONS[axis]) - flow.roll(1, DIMENSIONS[axis])) / 2
    return density + SPREAD * spread - WIND * carried


def network(layer: Callable[..., nn.EquivariantModule]) -> nn.SequentialModule:
    """Density → regular fields of the cube's rotations → density."""
    ends = pairwise([DENSITY, HIDDEN, DENSITY])
    first, second = (layer(*of, kernel_size=3, padding=1, padding_mode="circular") for of in ends)
    return nn.SequentialModule(first, nn.ELU(HIDDEN), second)


def train(model: nn.SequentialModule, axis: str, steps: int) -> None:
    """From each density to its change."""
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        density = densities(4)
        change = moved(density, axis) - density
        loss = (model(DENSITY(density)).tensor - change).square().mean() / change.square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def error(model: nn.SequentialModule, axis: str) -> float:
    """‖predicted − true change‖ / ‖true change‖ on other densities, in %."""
    density = densities(16)
    change = moved(density, axis) - density
    return 100 * float((model(DENSITY(density)).tensor - change).norm() / change.norm())


def quarter_turns() -> dict[str, list[Any]]:
    """The quarter turns about each axis."""
    found: dict[str, list[Any]] = {}
    for element in CUBE.fibergroup.elements:
        matrix = np.asarray(CUBE.basespace_action(element)).round()
        for number, axis in enumerate("xyz"):
            if matrix[number, number] == 1 and matrix.trace() == 1:
                found[axis] = [element]
    return found


def softness_about(model: nn.SequentialModule) -> dict[str, float]:
    """The softness in the quarter turns about each axis, of the softest layer."""
    layers = [module for module in model if isinstance(module, RelaxedR3Conv)]
    turns = quarter_turns().items()
    return {axis: max(layer.softness_in(turn).item() for layer in layers) for axis, turn in turns}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both networks on each data set, print a table."""
    parser = argparse.ArgumentParser(description="Learn which symmetry of the cube survives.")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that everything runs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    steps = 2 if options.smoke else 400
    table = Table("wind along", "strict, error in %", "soft", "soft, hardened", *(f"s about {axis}" for axis in "xyz"))
    for wind in "xyz":
        errors = {}
        for name, layer in {"strict": nn.R3Conv, "soft": partial(RelaxedR3Conv, initial_softness=0.01)}.items():
            torch.manual_seed(0)
            model = network(layer)
            train(model, wind, steps)
            errors[name] = error(model, wind)
        softness = softness_about(model)
        errors["soft, hardened"] = error(harden_network(model), wind)
        table.add_row(wind, *(f"{value:.1f}" for value in errors.values()), *(f"{s:.2g}" for s in softness.values()))
    table.caption = "s: softness of the soft network in the quarter turns about each axis. The least names the wind's."
    Console().print(table)


if __name__ == "__main__":
    main()
