"""Does softness help on my data? Train three strict networks and two soft ones, five seeds each.

    python examples/does_softness_help.py                 # scikit-learn's digits, upright
    python examples/does_softness_help.py --turned 180    # the same digits, each turned by up to 180°

Strict layers end in group pooling, which is blind to the pose, or in a free head, a linear map of all channels, which
sees it; or they have free biases, one for each channel, and group pooling. The soft ones end in group pooling.

It needs scikit-learn. For your own data copy this file and change the part between the lines.
docs/how-to/choose.md says how to read the table.
"""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence, pose_test, robustness_report, which_softness_helps
from escnn_relaxed.learning import TrainingTrials

import torch
from escnn import gspaces, nn
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, interpolate, pad

Split = tuple[Tensor, Tensor]
Layer = Callable[..., nn.EquivariantModule]

# ---------------------------------- put your own here ----------------------------------
# The largest group that may be right; with reflections gspaces.flipRot2dOnR2(8).
GSPACE = gspaces.rot2dOnR2(8)
# The elements that map pixels to pixels, here the quarter turns. With C4 or D4 write
# elements[1:].
TURNS = GSPACE.fibergroup.elements[2::2]
CHANNELS, CLASSES, TRAINING_IMAGES, EPOCHS, RATE, SEEDS = 1, 10, 300, 40, 1e-2, 5
# Of hidden layers, and of the last one: group pooling leaves one number of each field,
# so it needs more than there are classes.
FIELDS = 6, 16


def load(seed: int, turned: float) -> tuple[Split, Split]:
    """Return images (n, channels, H, W) and classes (n,), to train and to test."""
    data = load_digits()
    images = torch.from_numpy(data.images / 16).float()[:, None]
    images = interpolate(images, size=13, mode="bilinear", align_corners=True)
    # 17 × 17 pixels, which pool to 9 × 9 and 5 × 5: odd sides stay symmetric.
    images = turned_at_random(pad(images, [2] * 4), turned)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, test = order[:TRAINING_IMAGES], order[TRAINING_IMAGES:]
    labels = torch.from_numpy(data.target)
    return (images[train], labels[train]), (images[test], labels[test])


class Network(torch.nn.Module):
    """Three convolutions, strict or soft, and group pooling or a free head."""

    def __init__(self, convolution: Layer, is_free: bool = False) -> None:
        super().__init__()
        self.image = nn.FieldType(GSPACE, [GSPACE.trivial_repr] * CHANNELS)
        regular = [GSPACE.regular_repr]
        hidden, last = (nn.FieldType(GSPACE, regular * count) for count in FIELDS)
        layers: list[nn.EquivariantModule] = []
        for before, after in pairwise([self.image, hidden, hidden, last]):
            if layers:
                layers.append(nn.PointwiseAvgPoolAntialiased(before, 0.66, stride=2))
            layers.append(convolution(before, after, 5, padding=2, bias=False))
            layers += [nn.InnerBatchNorm(after), nn.ReLU(after)]
        if not is_free:
            layers.append(nn.GroupPooling(last))
        self.features = nn.SequentialModule(*layers)
        self.classifier = torch.nn.Linear(self.features.out_type.size, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes, (n, classes)."""
        features = self.features(self.image(images)).tensor
        scores: Tensor = self.classifier(features.mean(dim=(2, 3)))
        return scores


# ---------------------------------------------------------------------------------------


class FreeBias(nn.EquivariantModule):
    """A bias for each channel and not for each field, so that each rotation may have its own."""

    def __init__(self, fields: nn.FieldType) -> None:
        super().__init__()
        self.in_type = self.out_type = fields
        self.bias = torch.nn.Parameter(torch.zeros(fields.size, 1, 1))

    def forward(self, input: nn.GeometricTensor) -> nn.GeometricTensor:
        """(batch, channels, H, W) → the same shape."""
        return self.out_type(input.tensor + self.bias)

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the input."""
        return input_shape


def with_free_biases(before: nn.FieldType, after: nn.FieldType, size: int, **options: Any) -> nn.SequentialModule:
    """Return a strict convolution with free biases."""
    return nn.SequentialModule(nn.R2Conv(before, after, size, **options), FreeBias(after))


# The layer of each network, whether its head is free, whether it learns with the evidence.
NETWORKS = {
    "strict": (nn.R2Conv, False, False),
    "strict, free head": (nn.R2Conv, True, False),
    "strict, free biases": (with_free_biases, False, False),
    "soft": (RelaxedR2Conv, False, False),
    "soft, with evidence": (RelaxedR2Conv, False, True),
}


def turned_at_random(images: Tensor, most: float) -> Tensor:
    """Return the images, each turned by an angle of up to ``most`` degrees, the same one in every call."""
    angles = (2 * torch.rand(len(images), generator=torch.Generator().manual_seed(0)) - 1) * math.radians(most)
    rows = angles.cos(), -angles.sin(), 0 * angles, angles.sin(), angles.cos(), 0 * angles
    grid = affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(images.shape), align_corners=True)
    return grid_sample(images, grid, align_corners=True)


def train(network: torch.nn.Module, data: Split, epochs: int, evidence: SoftnessEvidence | None = None) -> None:
    """Train with Adam, whose rate falls to 0, and with the evidence where there is one."""
    images, labels = data
    optimiser = torch.optim.Adam(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for epoch in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            loss = cross_entropy(network(images[batch]), labels[batch])
            loss = loss if evidence is None else loss + evidence.penalty()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()
        if evidence is not None and epoch >= 2:
            evidence.update(images[:128])


def accuracies(network: Network, test: Split, few: int) -> tuple[float, float]:
    """Return the percentage of test images whose class is right, and that of a few of them after each turn."""
    network.eval()
    images, labels = test
    with torch.no_grad():
        classes = torch.cat([network(some).argmax(1) for some in images.split(256)])
    turned = robustness_report(network, images[:few], labels[:few], in_type=network.image, elements=TURNS)
    return 100 * float((classes == labels).float().mean()), 100 * fmean(row.accuracy for row in turned.rows)


def trained(kind: str, seed: int, data: Split, epochs: int) -> Network:
    """Return a network of one kind after its training."""
    layer, is_free, learns = NETWORKS[kind]
    torch.manual_seed(seed)
    network = Network(layer, is_free)
    train(network, data, epochs, SoftnessEvidence(network, observations=len(data[0])) if learns else None)
    return network


def ask_soft_network(network: Network, data: Split, test: Split, epochs: int) -> TrainingTrials:
    """Return which softness a network needs, by training further with it and without it."""
    return which_softness_helps(
        network,
        lambda copy: train(copy, data, epochs),
        lambda copy: cross_entropy(copy(test[0]), test[1], reduction="none"),
    )


def mean_and_error(values: Sequence[float], sign: str = "") -> str:
    """Return the mean of several seeds and its standard error as text."""
    return f"{fmean(values):{sign}.1f} ± {stdev(values) / len(values) ** 0.5:.1f}"


def gain(found: dict[str, list[float]], kind: str, other: str) -> str:
    """Return by how much one network is above another one that saw the same images."""
    return mean_and_error([own - its for own, its in zip(found[kind], found[other], strict=True)], "+")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all networks, print their accuracies, then what the images and the first soft network say."""
    parser = argparse.ArgumentParser(description="Train three strict and two soft networks on the same data.")
    parser.add_argument("--turned", type=float, default=0, help="turn each digit by up to this angle in degrees")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that everything runs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    count, epochs, few = (128, 4, 20) if options.smoke else (TRAINING_IMAGES, EPOCHS, 400)
    splits = [
        ((images[:count], labels[:count]), test)
        for (images, labels), test in (load(seed, options.turned) for seed in range(SEEDS))
    ]
    found: dict[str, list[float]] = {}
    turned: dict[str, list[float]] = {}
    print(f"{'network':<21}{'accuracy, %':<13}{'over strict':<13}{'over free head':<16}turned copies, %")
    for kind in NETWORKS:
        found[kind], turned[kind] = [], []
        for seed, (data, test) in enumerate(splits):
            as_they_are, after = accuracies(trained(kind, seed, data, epochs), test, few)
            found[kind].append(as_they_are)
            turned[kind].append(after)
        over = "" if kind == "strict" else gain(found, kind, "strict")
        over_free = "" if kind in ("strict", "strict, free head") else gain(found, kind, "strict, free head")
        print(f"{kind:<21}{mean_and_error(found[kind]):<13}{over:<13}{over_free:<16}{mean_and_error(turned[kind])}")
    data, test = splits[0]
    trials = ask_soft_network(trained("soft", 0, data, epochs), data, test, epochs)
    poses = pose_test(data[0], GSPACE)
    print(f"\n{poses}\n\n{trials}\n")
    for subgroup, verdict in poses.verdicts(trials.helps).items():
        print(textwrap.fill(f"{subgroup}: {verdict}", 88, subsequent_indent="  "))


if __name__ == "__main__":
    main()
