"""Draw the pictures of two trained networks of C8, of R2Conv and soft by default:

python docs/pictures_of_training.py --data DIRECTORY [--output docs/images]

Digits are turned by up to 60°. Training takes minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from escnn import gspaces
from escnn.nn import FieldType
from matplotlib import pyplot

sys.path.append(str(Path(__file__).parents[1]))
from escnn_relaxed import RelaxedR2Conv, equivariance_error
from escnn_relaxed.plots import plot_equivariance_error, plot_filter_over_positions

from benchmarks.accuracy.data import load_digits
from benchmarks.accuracy.networks import digits_network
from benchmarks.accuracy.training import CLASSES, Trainer, train
from benchmarks.accuracy.ways import WAYS

__all__ = ["main"]

FIELDS, RATE = 4, 0.01
ANGLES = range(0, 360, 5)


def main() -> None:
    """Train them, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="MNIST; by default bundled digits")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "images")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=190)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    data = load_digits("within 60°", arguments.images, 0, arguments.data, True)
    reports = {}
    for name in ("strict", "soft"):
        torch.manual_seed(0)
        network = digits_network(WAYS[name], "C8", FIELDS)
        train(Trainer(network, WAYS[name], data, CLASSES, "C8", RATE), arguments.steps)
        reports[name] = equivariance_error(
            network.eval(), data=data.copied[0][:64], elements=(), angles=ANGLES
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
