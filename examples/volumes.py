"""Which symmetry of the cube survives? A soft network learns it from volumes in which one axis is unlike the others.

    python examples/volumes.py    # simulates and trains, in about two minutes

It needs rich, of the extra ``examples``. A copy of this file runs anywhere.

A density in a box changes by a law with one special axis, another in each data set. Under *wind* it is carried along
the axis: the law keeps the turns about the axis. In a *tetragonal* crystal it spreads more along the axis than across:
the law keeps the half turns that reverse the axis, too. Two networks with the symmetry of the cube predict the next
moment: a strict one, and a soft one that is not told the axis. The profile of its symmetry says which it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from escnn_relaxed import RelaxedR3Conv, harden_network
from escnn_relaxed.measure import symmetry_profile

import torch
from escnn import gspaces, nn
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor

SIZE = 12  # voxels on each side of the box
SPREAD, WIND, LITTLE_SPREAD = 0.5, 1.0, 0.1
Law = Callable[[Tensor, str], Tensor]
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


def wind(density: Tensor, axis: str) -> Tensor:
    """The change in a moment of a density that spreads, and where it is higher is carried faster along an axis."""
    spread = sum(_second_difference(density, of) for of in DIMENSIONS)
    flow, dimension = density.square() / 2, DIMENSIONS[axis]
    carried = (flow.roll(-1, dimension) - flow.roll(1, dimension)) / 2
    return SPREAD / 6 * spread - WIND * carried


def tetragonal(density: Tensor, axis: str) -> Tensor:
    """The change in a moment of a density that spreads along an axis, little across, and faster where it is high."""
    flow = density + density.square() / 2
    rates = {of: SPREAD if of == axis else LITTLE_SPREAD for of in DIMENSIONS}
    return torch.stack([rate * _second_difference(flow, of) for of, rate in rates.items()]).sum(0)


def _second_difference(density: Tensor, axis: str) -> Tensor:
    return density.roll(1, DIMENSIONS[axis]) + density.roll(-1, DIMENSIONS[axis]) - 2 * density


LAWS = {"wind": wind, "tetragonal": tetragonal}


def network(layer: Callable[..., nn.EquivariantModule]) -> nn.SequentialModule:
    """Density → regular fields of the cube's rotations → density."""
    ends = pairwise([DENSITY, HIDDEN, DENSITY])
    first, second = (layer(*of, kernel_size=3, padding=1, padding_mode="circular") for of in ends)
    return nn.SequentialModule(first, nn.ELU(HIDDEN), second)


def train(model: nn.SequentialModule, law: Law, axis: str, steps: int) -> None:
    """From each density to its change."""
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        density = densities(4)
        change = law(density, axis)
        loss = (model(DENSITY(density)).tensor - change).square().mean() / change.square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def error(model: nn.SequentialModule, law: Law, axis: str) -> float:
    """‖predicted − true change‖ / ‖true change‖ on other densities, in %."""
    density = densities(16)
    change = law(density, axis)
    return 100 * float((model(DENSITY(density)).tensor - change).norm() / change.norm())


def moved_by_turns(model: nn.SequentialModule) -> list[float]:
    """How far quarter turns about x, y and z move the kernels, ‖hK − K‖ / ‖K‖; and the most that a half turn does."""
    errors = {row.name: row.error for row in symmetry_profile(model).largest_by_element}
    quarter, half = ([errors[f"rotation {angle}° about {axis}"] for axis in "xyz"] for angle in (90, 180))
    return [*quarter, max(half)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both networks on each data set, print a table."""
    parser = argparse.ArgumentParser(description="Learn which symmetry of the cube survives.")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that everything runs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    steps = 2 if options.smoke else 400
    head = "law", "axis", "strict", "soft", "hardened", *(f"90°, {axis}" for axis in "xyz"), "180°"
    table = Table(*head, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for name, law in LAWS.items():
        for axis in "xyz":
            errors = []
            for layer in (nn.R3Conv, partial(RelaxedR3Conv, initial_softness=0.01)):
                torch.manual_seed(options.seed)
                model = network(layer)
                train(model, law, axis, steps)
                errors.append(error(model, law, axis))
            distances = moved_by_turns(model)
            errors.append(error(harden_network(model), law, axis))
            table.add_row(name, axis, *(f"{value:.1f}" for value in errors), *(f"{d:.2g}" for d in distances))
    table.caption = (
        "Errors of the strict and the soft network, and of the soft one hardened, in %. 90°: how far the quarter turn "
        "about each axis moves the kernels of the soft one; the least names the law's axis. 180°: the same of the half "
        "turns, the largest, which a wind breaks and a tetragonal law keeps."
    )
    Console().print(table)


if __name__ == "__main__":
    main()
