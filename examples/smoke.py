"""Smoke that is driven into a box from four sides: how soft does a network become when the sides are not alike?

    python examples/smoke.py    # simulates with PhiFlow (the extra smoke) and trains, in about two minutes

It needs phiflow, matplotlib and rich, which are the extra ``smoke``. A copy of this file runs anywhere.

A puff of smoke starts at each side and is driven inwards. At level 0 all sides drive it alike, and the law of motion is
equivariant to quarter turns. At level 9 they do as 1 : 4 : 7 : 10. Three networks predict velocity and smoke of the
next frame: a plain one, a strictly equivariant one, and one whose layers learn how soft to be.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from escnn_relaxed import RelaxedR2Conv, harden_network, relaxation_summary

import numpy as np
import torch
from escnn import gspaces, nn
from matplotlib import pyplot
from phi.flow import (
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
from rich.console import Console
from rich.table import Table
from torch import Tensor

SIZE = 24  # cells on each side of the box
BUOYANCY = 0.2
FIELDS = 4  # of a hidden layer, each of four channels

C4 = gspaces.rot2dOnR2(4)
# What is known of a moment: the velocity, which turns as a vector does, and the density of smoke, a scalar.
STATE = nn.FieldType(C4, [C4.irrep(1), C4.trivial_repr])


# --- the data ---------------------------------------------------------------------------------------------------------


def simulate(level: int, puffs: int, frames: int) -> Tensor:
    """Films (puff, side, frame, channel, row, column); channels: velocity to the right and up, smoke.

    Sides are 0: bottom, 1: right, 2: top, 3: left, so that side k is side 0 turned by k · 90° counter-clockwise.
    """
    generator = np.random.default_rng(0)
    strength = 1 + level / 3 * np.arange(4)
    centres = np.arange(SIZE) + 0.5 - SIZE / 2
    starts, forces = [], []
    for _ in range(puffs):
        place = generator.uniform(-0.2, 0.2) * SIZE, generator.uniform(-0.35, -0.2) * SIZE
        radius, density = generator.uniform(0.08, 0.12) * SIZE, generator.uniform(0.5, 1.5)
        for side in range(4):
            position, inwards = turned_vector(place, side), turned_vector((0, 1), side)
            distance = (centres[:, None] - position[0]) ** 2 + (centres[None, :] - position[1]) ** 2
            starts.append(density * np.exp(-distance / (2 * radius**2)))
            forces.append(BUOYANCY * strength[side] / strength.mean() * inwards)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PhiFlow's own
        films = fluid_flow(np.stack(starts), np.stack(forces), frames)
    return films.unflatten(0, (puffs, 4))


def fluid_flow(starts: np.ndarray, forces: np.ndarray, frames: int) -> Tensor:
    """Incompressible flow with smoke (run, x, y) on which a force (run, 2) acts, all runs at once."""
    box = Box(x=SIZE, y=SIZE)
    pictures = []
    with math.precision(64):
        smoke = CenteredGrid(tensor(starts, batch("run"), spatial("x,y")), ZERO_GRADIENT, box)
        force = tensor(forces, batch("run"), channel(vector="x,y"))
        velocity = StaggeredGrid(0.0, 0, box, x=SIZE, y=SIZE)
        for step in range(2 * frames):
            smoke = advect.mac_cormack(smoke, velocity, 1.0)
            velocity = advect.semi_lagrangian(velocity, velocity, 1.0) + resample(smoke * force, to=velocity)
            velocity, _ = fluid.make_incompressible(velocity, (), Solve("scipy-direct", rank_deficiency=1))
            if step % 2:
                moving = velocity.at_centers().values.numpy("run,vector,y,x")
                picture = np.concatenate([moving, smoke.values.numpy("run,y,x")[:, None]], axis=1)
                pictures.append(picture[..., ::-1, :])  # rows of images go down, y goes up
    return torch.tensor(np.stack(pictures, axis=1), dtype=torch.float32)


def turned_vector(vector: Sequence[float], quarter_turns: int) -> np.ndarray:
    """Counter-clockwise."""
    x, y = vector
    for _ in range(quarter_turns):
        x, y = -y, x
    return np.array([x, y], dtype=float)


def data_error(films: Tensor) -> float:
    """How far the data are from equivariant: ‖film of a side − film of another turned onto it‖ / ‖film‖."""
    copies = []
    for side in range(4):
        states = STATE(films[:, side].flatten(0, 1)).transform_fibers(C4.fibergroup.element(-side % 4)).tensor
        copies.append(states.rot90(-side, (2, 3)))
    turned = torch.stack(copies)
    return float((2 * turned.var(dim=0).mean() / turned.square().mean()).sqrt())


# --- the networks -----------------------------------------------------------------------------------------------------


class Forecaster(torch.nn.Module):
    """The state now → the state at the next frame, by what is to change.

    Args:
        change: a network from states to changes, plain or of escnn.
        films: to take the sizes of states and changes from, (…, frame, 3, row, column).
    """

    def __init__(self, change: torch.nn.Module, films: Tensor) -> None:
        super().__init__()
        self.change = change
        self.size_of_state, self.size_of_change = sizes(films), sizes(films.diff(dim=-4))
        # Small at the start: at first nothing changes, whatever the draw of the weights.
        self.gain = torch.nn.Parameter(torch.tensor(0.1))

    def forward(self, state: Tensor) -> Tensor:
        """(batch, 3, row, column) → the same shape."""
        scaled = state / self.size_of_state
        is_plain = isinstance(self.change, torch.nn.Sequential)
        change = self.change(scaled) if is_plain else self.change(STATE(scaled)).tensor
        return state + self.gain * self.size_of_change * change


def sizes(films: Tensor) -> Tensor:
    """Root mean square of each channel, but the same for both components of the velocity: (3, 1, 1)."""
    right, up, smoke = films.square().movedim(-3, 0).flatten(1).mean(dim=1)
    return torch.stack([(right + up) / 2, (right + up) / 2, smoke]).sqrt()[:, None, None]


def equivariant(layer: Callable[..., nn.EquivariantModule]) -> nn.SequentialModule:
    """Three convolutions, with regular fields of C4 between them."""
    hidden = nn.FieldType(C4, [C4.regular_repr] * FIELDS)
    first, second, third = (layer(*ends, kernel_size=5, padding=2) for ends in pairwise([STATE, hidden, hidden, STATE]))
    return nn.SequentialModule(first, nn.ELU(hidden), second, nn.ELU(hidden), third)


def plain(channels: int) -> torch.nn.Sequential:
    """The same without symmetry."""
    first, second, third = (
        torch.nn.Conv2d(*ends, kernel_size=5, padding=2) for ends in pairwise([3, channels, channels, 3])
    )
    return torch.nn.Sequential(first, torch.nn.ELU(), second, torch.nn.ELU(), third)


# As many channels each; without symmetry, that takes far more weights.
NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {
    "plain": lambda: plain(4 * FIELDS),
    "strict": lambda: equivariant(nn.R2Conv),
    "soft": lambda: equivariant(RelaxedR2Conv),
}


def train(network: Forecaster, films: Tensor, steps: int) -> None:
    """From each frame to the next."""
    now, later = films[:, :, :-1].flatten(0, 2), films[:, :, 1:].flatten(0, 2)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        chosen = torch.randint(len(now), (8,))
        loss = ((network(now[chosen]) - later[chosen]) / network.size_of_change).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    network.eval()


@torch.no_grad()
def error(network: torch.nn.Module, films: Tensor) -> float:
    """‖predicted − true‖ / ‖true‖ of the velocities of the next frame, in %."""
    now, later = films[:, :, :-1].flatten(0, 2), films[:, :, 1:].flatten(0, 2)
    return 100 * float((network(now) - later)[:, :2].norm() / later[:, :2].norm())


# --- what comes out ---------------------------------------------------------------------------------------------------


def draw(films: Tensor, rows: list[dict[str, float]], output: Path) -> None:
    """Smoke and velocities of each side in the film of the highest level, and errors against the data's own."""
    figure, panels = pyplot.subplots(1, 5, figsize=(12, 2.6), layout="constrained", width_ratios=[1, 1, 1, 1, 1.6])
    places = np.arange(1, SIZE, 3)
    for axes, side, film in zip(panels, ("bottom", "right", "top", "left"), films[0, :, -1], strict=False):
        axes.imshow(film[2], cmap="Greys")
        axes.quiver(places, places, film[0, 1::3, 1::3], film[1, 1::3, 1::3], color="#d55e00")
        axes.set(title=side, xticks=[], yticks=[])
    for name in (*NETWORKS, "soft, hardened"):
        style = ":" if "hardened" in name else "-"
        panels[-1].plot([row["data"] for row in rows], [row[name] for row in rows], style, marker="o", label=name)
    panels[-1].set(xlabel="equivariance error of the data", ylabel="error, %")
    panels[-1].legend(fontsize=7)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=120)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, train, print the table, draw the picture."""
    parser = argparse.ArgumentParser(description="Predict smoke whose symmetry is broken more and more.")
    parser.add_argument("--levels", type=int, nargs="+", default=[0, 1, 9], help="of broken symmetry, 0 to 9")
    parser.add_argument("--output", type=Path, default=Path("runs/smoke.png"), help="where the picture goes")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that everything runs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    frames, steps = (3, 2) if options.smoke else (10, 200)
    table = Table("level", "error of the data", *NETWORKS, "soft, hardened", "largest softness s")
    rows = []
    for level in options.levels:
        films = simulate(level, puffs=2 if options.smoke else 8, frames=frames)
        known, test = films.tensor_split((1 if options.smoke else 5,))
        row = {"data": data_error(films)}
        for name, build in NETWORKS.items():
            torch.manual_seed(0)
            network = Forecaster(build(), known)
            train(network, known, steps)
            row[name] = error(network, test)
        # The last network is the soft one.
        row["soft, hardened"] = error(harden_network(network), test)
        softness = max(layer.softness["all"] for layer in relaxation_summary(network).rows)
        rows.append(row)
        table.add_row(str(level), *(f"{value:.2f}" for value in row.values()), f"{softness:.1e}")
    table.caption = "Errors of the velocities of the next frame in %; hardened: each layer by its strict part."
    Console().print(table)
    draw(films, rows, options.output)
    print(f"picture: {options.output}")


if __name__ == "__main__":
    main()
