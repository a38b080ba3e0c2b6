"""Does softness help on my data? Train a strict network, a soft one and a soft one with the evidence, five seeds each.

    python examples/does_softness_help.py                 # scikit-learn's digits, upright
    python examples/does_softness_help.py --turned 180    # the same digits, each turned by up to 180°

It needs scikit-learn. For your own data copy this file and change the part between the lines.
docs/how-to/does-softness-help.md says how to read the table.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, stdev

import torch
from escnn import gspaces, nn
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, interpolate, pad

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence

Split = tuple[Tensor, Tensor]

# ------------------------------------------------- put your own here -------------------------------------------------
# The largest group that may be right: rotations by 45° here; with reflections gspaces.flipRot2dOnR2(8).
GSPACE = gspaces.rot2dOnR2(8)
CHANNELS, CLASSES, TRAINING_IMAGES, EPOCHS, RATE, SEEDS = 1, 10, 300, 40, 1e-2, 5


def load(seed: int, turned: float) -> tuple[Split, Split]:
    """Return images (n, channels, H, W) and classes (n,) for training and for the test, drawn with the seed."""
    data = load_digits()
    images = torch.from_numpy(data.images / 16).float()[:, None]
    # 17 × 17 pixels, which pool to 9 × 9 and 5 × 5: odd, so that quarter turns map pixels to pixels.
    images = turned_at_random(pad(interpolate(images, size=13, mode="bilinear", align_corners=True), [2] * 4), turned)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, test = order[:TRAINING_IMAGES], order[TRAINING_IMAGES:]
    labels = torch.from_numpy(data.target)
    return (images[train], labels[train]), (images[test], labels[test])


class Network(torch.nn.Module):
    """Three convolutions, ``R2Conv`` or ``RelaxedR2Conv``, group pooling, a linear layer."""

    def __init__(self, convolution: Callable[..., nn.EquivariantModule]) -> None:
        super().__init__()
        self.image = nn.FieldType(GSPACE, [GSPACE.trivial_repr] * CHANNELS)
        hidden = nn.FieldType(GSPACE, [GSPACE.regular_repr] * 6)
        layers: list[nn.EquivariantModule] = []
        for before, after in pairwise([self.image, hidden, hidden, hidden]):
            if layers:
                layers.append(nn.PointwiseAvgPoolAntialiased(hidden, sigma=0.66, stride=2))
            layers.append(convolution(before, after, kernel_size=5, padding=2, bias=False))
            layers += [nn.InnerBatchNorm(hidden), nn.ReLU(hidden)]
        self.features = nn.SequentialModule(*layers, nn.GroupPooling(hidden))
        self.classifier = torch.nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes, (n, classes)."""
        scores: Tensor = self.classifier(self.features(self.image(images)).tensor.mean(dim=(2, 3)))
        return scores


# ---------------------------------------------------------------------------------------------------------------------


def turned_at_random(images: Tensor, most: float) -> Tensor:
    """Return the images, each turned by an angle of up to ``most`` degrees, the same one in every call."""
    angles = (2 * torch.rand(len(images), generator=torch.Generator().manual_seed(0)) - 1) * math.radians(most)
    rows = angles.cos(), -angles.sin(), 0 * angles, angles.sin(), angles.cos(), 0 * angles
    grid = affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(images.shape), align_corners=True)
    return grid_sample(images, grid, align_corners=True)


def train(network: Network, data: Split, epochs: int, evidence: SoftnessEvidence | None) -> None:
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


@torch.no_grad()
def accuracy(network: Network, data: Split) -> float:
    """Return the percentage of images whose class is right."""
    network.eval()
    classes = torch.cat([network(images).argmax(1) for images in data[0].split(256)])
    return 100 * float((classes == data[1]).float().mean())


def mean_and_error(values: Sequence[float], sign: str = "") -> str:
    """Return the mean of several seeds and its standard error as text."""
    return f"{fmean(values):{sign}.1f} ± {stdev(values) / len(values) ** 0.5:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all networks and print how far the soft ones are from the strict one, seed by seed."""
    parser = argparse.ArgumentParser(description="Train a strict and two soft networks on the same data.")
    parser.add_argument("--turned", type=float, default=0, help="turn each digit by up to this angle in degrees")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that everything runs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    count, epochs = (128, 4) if options.smoke else (TRAINING_IMAGES, EPOCHS)
    found: dict[str, list[float]] = {}
    print(f"{'network':<21}{'test accuracy, %':<19}{'less that of strict':<22}seconds for one")
    for kind in ("strict", "soft", "soft, with evidence"):
        start, evidence = time.process_time(), None
        found[kind] = []
        for seed in range(SEEDS):
            (images, labels), test = load(seed, options.turned)
            torch.manual_seed(seed)
            network = Network(nn.R2Conv if kind == "strict" else RelaxedR2Conv)
            if "evidence" in kind:
                evidence = SoftnessEvidence(network, observations=count)
            train(network, (images[:count], labels[:count]), epochs, evidence)
            found[kind].append(accuracy(network, test))
        differences = [soft - strict for soft, strict in zip(found[kind], found["strict"], strict=True)]
        apart = "" if kind == "strict" else mean_and_error(differences, "+")
        print(f"{kind:<21}{mean_and_error(found[kind]):<19}{apart:<22}{(time.process_time() - start) / SEEDS:.0f}")
        if evidence is not None:
            print(f"\nWhat the evidence found, last seed:\n{evidence.table()}")


if __name__ == "__main__":
    main()
