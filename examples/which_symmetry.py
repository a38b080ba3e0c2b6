"""Which symmetry is broken? A network that may be soft in both finds that letters break reflection and keep rotation.

    python examples/which_symmetry.py    # half a minute

A copy of this file runs anywhere.

The letters L and J are mirror images, and each is turned by quarter turns. To tell them apart a network must break
reflection and need not break rotation. The one here has the group of both, D4, and is not told which.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence, pose_test, which_softness_helps
from escnn_relaxed.learning import TrainingTrials
from escnn_relaxed.measure import PoseReport

import torch
from escnn import gspaces, nn
from torch import Tensor
from torch.nn.functional import cross_entropy

LETTER = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
SIDE, NOISE, LETTERS, RATE = 11, 0.1, 500, 2e-2


def letters(count: int) -> tuple[Tensor, Tensor]:
    """Return images (count, 1, 11, 11) of L and J anywhere and any way up, and which it is."""
    images, labels = torch.zeros(count, 1, SIDE, SIDE), torch.randint(2, (count,))
    for image, label in zip(images, labels, strict=True):
        letter = LETTER.flip(1) if label else LETTER
        row, column = torch.randint(1, SIDE - 3, (2,))
        image[0, row : row + 3, column : column + 3] = letter.rot90(int(torch.randint(4, ())))
    return images + NOISE * torch.randn(images.shape), labels


class Classifier(torch.nn.Module):
    """Two convolutions that may be soft in rotation and reflection."""

    def __init__(self) -> None:
        super().__init__()
        gspace = gspaces.flipRot2dOnR2(4)
        self.image = nn.FieldType(gspace, [gspace.trivial_repr])
        hidden = nn.FieldType(gspace, [gspace.regular_repr] * 3)
        self.body = nn.SequentialModule(
            RelaxedR2Conv(self.image, hidden, 5, padding=2),
            nn.InnerBatchNorm(hidden),
            nn.ReLU(hidden),
            RelaxedR2Conv(hidden, hidden, 3, padding=1),
            nn.InnerBatchNorm(hidden),
            nn.ReLU(hidden),
            nn.GroupPooling(hidden),
        )
        self.head = torch.nn.Linear(3, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of L and J, (count, 2)."""
        scores: Tensor = self.head(self.body(self.image(images)).tensor.mean(dim=(2, 3)))
        return scores


def train(
    network: torch.nn.Module, images: Tensor, labels: Tensor, epochs: int, evidence: SoftnessEvidence | None = None
) -> None:
    """Train with the evidence, which makes small the softness that the data do not need.

    Without it, as when a network is trained on, the rate falls to 0, so that losses settle.
    """
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    for epoch in range(epochs):
        if evidence is None:
            optimiser.param_groups[0]["lr"] = RATE * (1 - epoch / epochs)
        for batch in torch.randperm(len(images)).split(50):
            loss = cross_entropy(network(images[batch]), labels[batch])
            if evidence is not None:
                loss = loss + evidence.penalty()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if evidence is not None and epoch >= 2:
            evidence.update(images[:128])


def ask(seed: int, epochs: int) -> tuple[TrainingTrials, PoseReport]:
    """Return which softness helps, on held-out letters, and whether poses are equal."""
    torch.manual_seed(seed)
    images, labels = letters(LETTERS)
    others, truth = letters(LETTERS)
    network = Classifier()
    evidence = SoftnessEvidence(network, observations=len(images))
    train(network, images, labels, epochs, evidence)
    trials = which_softness_helps(
        network,
        lambda copy: train(copy, images, labels, epochs=3),
        lambda copy: cross_entropy(copy(others), truth, reduction="none"),
    )
    return trials, pose_test(images, network.image.gspace)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what helps, what the poses are, and what follows."""
    parser = argparse.ArgumentParser(description="Ask which symmetry letters break.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    trials, poses = ask(seed=options.seed, epochs=12)
    print(f"{trials}\n\n{poses}\n")
    for subgroup, verdict in poses.verdicts(trials.helps).items():
        print(f"{subgroup}: {verdict}")


if __name__ == "__main__":
    main()
