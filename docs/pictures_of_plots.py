"""Pictures for the reference of ``escnn_relaxed.plots``, of networks that are trained for some seconds."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import NamedTuple

from escnn_relaxed import (
    RelaxedR2Conv,
    SoftnessEvidence,
    relaxation_scalars,
    robustness_report,
)
from escnn_relaxed.measure import softness_sweep as sweep_of
from escnn_relaxed.measure import symmetry_profile as profile_of
from escnn_relaxed.plots import (
    plot_robustness,
    plot_softness,
    plot_softness_sweep,
    plot_symmetry_profile,
)

import torch
from escnn import gspaces, nn
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy

sys.path.append(str(Path(__file__).parents[1]))
from examples import which_symmetry

from benchmarks.shared.training import take_steps

GSPACE = gspaces.flipRot2dOnR2(4)
TRAINING, EPOCHS, BATCH, RATE = 1000, 8, 32, 0.01


class Classifier(torch.nn.Module):
    """Digits of 8×8 pixels, by two layers of D4 and the largest value of each field."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.in_type = nn.FieldType(GSPACE, [GSPACE.trivial_repr])
        hidden = nn.FieldType(GSPACE, [GSPACE.regular_repr] * 8)
        self.first = RelaxedR2Conv(self.in_type, hidden, 5, padding=2, **options)
        self.activation = nn.ReLU(hidden)
        self.second = RelaxedR2Conv(hidden, hidden, 5, padding=2, **options)
        self.pool = nn.GroupPooling(hidden)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        features = self.activation(self.first(self.in_type(images)))
        return self.head(self.pool(self.second(features)).tensor.amax((2, 3)))


class Trained(NamedTuple):
    """A network, digits that it has not seen, and its numbers after each epoch."""

    network: Classifier
    images: Tensor
    labels: Tensor
    history: list[dict[str, float]]


@functools.cache
def trained(is_soft: bool) -> Trained:
    """A network that is soft in rotation and reflection, or a strict one, trained on upright digits."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images).float().unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    network = Classifier() if is_soft else Classifier(relax=None)
    evidence = SoftnessEvidence(network, TRAINING) if is_soft else None
    optimiser = torch.optim.Adam(network.parameters(), RATE)
    penalties = () if evidence is None else (evidence.penalty,)
    history = []
    for epoch in range(EPOCHS):
        order = torch.randperm(TRAINING).split(BATCH)
        batches = ((images[batch], labels[batch]) for batch in order)
        take_steps(network, batches, cross_entropy, optimiser, penalties=penalties)
        if evidence is not None and epoch >= 2:
            evidence.update(images[:128])
        history.append(relaxation_scalars(network))
    return Trained(network.eval(), images[TRAINING:], labels[TRAINING:], history)


def symmetry_profile() -> Figure:
    """How far each element moves the kernels of a network that has learned to tell L from J."""
    torch.manual_seed(0)
    images, labels = which_symmetry.letters(which_symmetry.LETTERS)
    network = which_symmetry.Classifier()
    evidence = SoftnessEvidence(network, observations=len(images))
    which_symmetry.train(network, images, labels, 12, evidence)
    return plot_symmetry_profile(profile_of(network)).figure


def robustness() -> Figure:
    """The accuracy of the strict and of the soft network on digits that are turned or mirrored."""
    reports = {}
    for name in ("strict", "soft"):
        network, images, labels, _ = trained(is_soft=name == "soft")
        reports[name] = robustness_report(network, images, labels)
    axes = plot_robustness(reports)
    axes.legend(
        frameon=False, fontsize=7, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1)
    )
    return axes.figure


def softness() -> Figure:
    """The softness of both layers of the soft network while it learns upright digits."""
    return plot_softness(trained(is_soft=True).history).figure


def softness_sweep() -> Figure:
    """The accuracy of the soft network under gates from 0 to 1, upright and turned or mirrored."""
    network, images, labels, _ = trained(is_soft=True)
    gates = [step / 5 for step in range(6)]
    return plot_softness_sweep(sweep_of(network, images, labels, gates=gates)).figure
