"""Measurements of trained networks: error against the angle, agreement of predictions, ω′ over training.

Two C8 networks of equal layers, one of ``R2Conv`` and one whose ω′ is learned, on digits turned by up to 60°.

    python -m benchmarks.accuracy.measuring --data ~/mnist --pictures docs/images
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib import pyplot
from torch import nn

from benchmarks.shared.networks import build_network
from benchmarks.shared.tasks import image_task
from benchmarks.shared.training import fit
from escnn_relaxed import equivariance_error, parameter_groups, prediction_agreement, relaxation_summary
from escnn_relaxed.measure import RelaxationMonitor
from escnn_relaxed.plots import (
    plot_domain_frequency,
    plot_equivariance_error,
    plot_filter_over_positions,
)

WIDTHS, KERNEL_SIZE, RATE = (4, 4, 4, 8), 5, 1e-2
LEARNED = {"relax": {"rotation": 0.25}, "learn_relaxation": True}
TASK = "within 60°"
ANGLES = [math.radians(degrees) for degrees in range(0, 360, 5)]


def train(options: dict[str, object] | None, images: int, epochs: int, root: Path | None) -> tuple[nn.Module, dict]:
    """A trained network and the history of its softness, empty for ``R2Conv``."""
    torch.manual_seed(0)
    network = build_network("C8 regular", WIDTHS, KERNEL_SIZE, options)
    data, _ = image_task(TASK, images, 0, root)
    optimiser = torch.optim.Adam(parameter_groups(network, RATE), lr=RATE)
    monitor = None if options is None else RelaxationMonitor(network)
    steps = iter(range(1, 1 + epochs * images))

    def record() -> None:
        step = next(steps)
        if monitor is not None and step % 5 == 1:
            monitor.record(step)

    fit(network, data, optimiser, epochs, after_step=record)
    return network.eval(), {} if monitor is None else monitor.history


def draw(reports: dict[str, object], history: dict, folder: Path) -> None:
    """The pictures of the documentation."""
    axes = plot_equivariance_error(reports)
    axes.figure.savefig(folder / "error_by_angle.png", dpi=150)
    frequencies = [pairs for tag, pairs in history.items() if tag.startswith("domain_frequency/")]
    axes = plot_domain_frequency(
        {f"domain_frequency/layer {number}/rotation": pairs for number, pairs in enumerate(frequencies, 1)}
    )
    axes.figure.savefig(folder / "frequency_over_training.png", dpi=150)
    torch.manual_seed(0)
    soft = build_network("plain CNN", (2,), 5, {"relax": {"translation": 0.3}, "initial_softness": 0.5}).body[0]
    plot_filter_over_positions(soft, 33).figure.savefig(folder / "filter_over_positions.png", dpi=150)
    pyplot.close("all")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure, print, draw."""
    parser = argparse.ArgumentParser(description="Measure the equivariance of trained networks.")
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--measured", type=int, default=200, help="test images to measure on")
    parser.add_argument("--pictures", type=Path, help="folder for the pictures")
    options = parser.parse_args(arguments)
    if options.pictures is not None:  # before minutes of training
        options.pictures.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    _, (images, labels) = image_task(TASK, options.images, 0, options.data)
    images, labels = images[: options.measured], labels[: options.measured]
    networks, history = {}, {}
    for name, layers in (("strict", None), ("soft", LEARNED)):
        networks[name], found = train(layers, options.images, options.epochs, options.data)
        history |= found
        with torch.no_grad():
            accuracy = (networks[name](images).argmax(1) == labels).double().mean().item()
        print(f"{name}: {100 * accuracy:.1f} % of {len(images)} test images")
        print(equivariance_error(networks[name], data=images))
        print(prediction_agreement(networks[name], images, angles=[math.radians(30)], shifts=[(2, 0), (8, 0)]))
    print(relaxation_summary(networks["soft"], data=images))
    if options.pictures is not None:
        reports = {
            name: equivariance_error(network, data=images[:64], elements=(), angles=ANGLES)
            for name, network in networks.items()
        }
        draw(reports, history, options.pictures)


if __name__ == "__main__":
    sys.exit(main())
