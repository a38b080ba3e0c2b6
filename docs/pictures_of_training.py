"""Draw the pictures of two trained networks of C8, of R2Conv and soft by default:

python docs/pictures_of_training.py --data DIRECTORY [--output docs/images]

Digits are turned by up to 60°. Training takes minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from escnn import gspaces
from escnn.nn import FieldType, R2Conv
from matplotlib import pyplot
from torch import nn
from torch.nn import functional

sys.path.append(str(Path(__file__).parents[1]))
from escnn_relaxed import RelaxedR2Conv, equivariance_error, parameter_groups
from escnn_relaxed.plots import plot_equivariance_error, plot_filter_over_positions

from benchmarks.shared.training import Split, take_steps
from benchmarks.symmetry.digits import load_digits
from benchmarks.symmetry.networks import Frame
from benchmarks.symmetry.ways import Setting, Way

__all__ = ["main"]

FRAME, RATE, BATCH = Frame(10, widths=(4, 4, 4, 8)), 0.01, 64
ANGLES = range(0, 360, 5)
NETWORKS = {"strict": (Way(R2Conv), Setting()), "soft": (Way(RelaxedR2Conv), Setting())}


def train(name: str, data: Split, epochs: int) -> nn.Module:
    """A trained network."""
    torch.manual_seed(0)
    network = FRAME.build("C8", *NETWORKS[name], FRAME.widths)
    images, labels = data
    steps = epochs * (len(images) // BATCH)
    optimiser = torch.optim.Adam(parameter_groups(network, RATE), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)

    def batches() -> Iterator[Split]:
        for _ in range(steps):
            chosen = torch.randint(len(images), (BATCH,))
            yield images[chosen], labels[chosen]

    take_steps(
        network,
        batches(),
        functional.cross_entropy,
        optimiser,
        after_step=schedule.step,
    )
    return network.eval()


def main() -> None:
    """Train them, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="MNIST; by default bundled digits")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "images")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    data = load_digits("within 60°", arguments.images, 0, arguments.data)
    reports = {}
    for name in NETWORKS:
        network = train(name, data.train, arguments.epochs)
        reports[name] = equivariance_error(
            network, data=data.test[0][:64], elements=(), angles=ANGLES
        )
    plane = gspaces.trivialOnR2()
    torch.manual_seed(0)
    layer = RelaxedR2Conv(
        FieldType(plane, [plane.trivial_repr]),
        FieldType(plane, [plane.trivial_repr] * 4),
        7,
        padding=3,
        relax={"translation": 0.3},
        initial_softness=0.5,
    )
    pictures = {
        "error_by_angle": plot_equivariance_error(reports),
        "filter_over_positions": plot_filter_over_positions(layer, 33),
    }
    for name, axes in pictures.items():
        axes.figure.savefig(arguments.output / f"{name}.png", dpi=150)
    pyplot.close("all")


if __name__ == "__main__":
    main()
