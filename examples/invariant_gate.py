"""A gate that keeps the symmetry: the image itself says whether it may be turned, and the network finds out where.

    python examples/invariant_gate.py    # a minute

A copy of this file runs anywhere.

An image has an L. If it is faint, it is any way up, and the class is 0. If it is bright, the class is 1 where it is
upright, and 2 where it is upside down. A strict network cannot tell these apart, and a soft one breaks the symmetry of
every image. Here a gate g on softness follows from invariant features of the image, and a cost of g makes it small
where softness helps nothing. The network is exactly equivariant for each image with g = 0, and the table says how many
of them there are after the training.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from escnn_relaxed import RelaxedR2Conv, equivariance_error, gate_softness

import torch
from escnn import gspaces, nn
from torch import Tensor
from torch.nn.functional import cross_entropy

LETTER = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
SIDE, NOISE, BATCH, RATE, COST = 11, 0.1, 64, 1e-2, 0.2


def letters(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images (count, 1, 11, 11), their classes, and whether the letters are bright."""
    images, turns, is_bright = torch.zeros(count, 1, SIDE, SIDE), torch.randint(4, (count,)), torch.rand(count) < 0.5
    turns = torch.where(is_bright, 2 * (turns % 2), turns)
    for image, turn, bright in zip(images, turns, is_bright, strict=True):
        row, column = torch.randint(2, SIDE - 4, (2,))
        image[0, row : row + 3, column : column + 3] = (2 if bright else 1) * LETTER.rot90(int(turn))
    return images + NOISE * torch.randn(images.shape), torch.where(is_bright, 1 + turns // 2, 0), is_bright


class InvariantGate(torch.nn.Module):
    """g in [0, 1] from invariant features: strict convolutions to trivial fields, and the maximum over pixels.

    A sigmoid σ is never 0, but 1.2 σ − 0.2 is, where it is not above 0. It has no slope there, so it starts near 1.
    """

    def __init__(self, image: nn.FieldType, fields: int = 8) -> None:
        super().__init__()
        maps = nn.FieldType(image.gspace, [image.gspace.regular_repr] * fields)
        invariant = nn.FieldType(image.gspace, [image.gspace.trivial_repr] * fields)
        self.features = nn.SequentialModule(
            RelaxedR2Conv(image, maps, 3, padding=1, relax=None),
            nn.ReLU(maps),
            RelaxedR2Conv(maps, invariant, 1, relax=None),
            nn.ReLU(invariant),
        )
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(fields, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1), torch.nn.Sigmoid()
        )
        torch.nn.init.constant_(self.mlp[2].bias, 2.0)

    def forward(self, images: nn.GeometricTensor) -> Tensor:
        """Return the gate of each image, (batch,)."""
        gate: Tensor = self.mlp(self.features(images).tensor.amax(dim=(2, 3))).squeeze(1)
        return (1.2 * gate - 0.2).relu()


class Classifier(torch.nn.Module):
    """Two soft convolutions under the gate, and the maximum over the pixels."""

    def __init__(self) -> None:
        super().__init__()
        gspace = gspaces.rot2dOnR2(4)
        self.image = nn.FieldType(gspace, [gspace.trivial_repr])
        hidden = nn.FieldType(gspace, [gspace.regular_repr] * 8)
        classes = nn.FieldType(gspace, [gspace.trivial_repr] * 3)
        self.gate = InvariantGate(self.image)
        self.body = nn.SequentialModule(
            RelaxedR2Conv(self.image, hidden, 5, padding=2, initial_softness=0.3),
            nn.ReLU(hidden),
            RelaxedR2Conv(hidden, classes, 5, padding=2, initial_softness=0.3),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes, (batch, 3)."""
        fields = self.image(images)
        with gate_softness(self.body, self.gate(fields)):
            scores: Tensor = self.body(fields).tensor.amax(dim=(2, 3))
        return scores


def train(network: Classifier, steps: int) -> None:
    """Train on new images in each step, in the second half with a cost of softness."""
    optimiser = torch.optim.Adam(network.parameters(), RATE)
    for step in range(steps):
        images, labels, _ = letters(BATCH)
        loss = cross_entropy(network(images), labels)
        if step >= steps // 2:
            loss = loss + COST * network.gate(network.image(images)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def report(network: Classifier, count: int = 400) -> str:
    """Return a table of faint and of bright letters: accuracy, the gate, and the error of equivariance."""
    images, labels, is_bright = letters(count)
    rows = ["letter  right, %  mean g  g = 0, %  error of equivariance"]
    for name, some in (("faint", ~is_bright), ("bright", is_bright)):
        with torch.no_grad():
            right = (network(images[some]).argmax(1) == labels[some]).float().mean().item()
            gate = network.gate(network.image(images[some]))
        error = max(row.error for row in equivariance_error(network, data=images[some], in_type=network.image).rows)
        closed = (gate == 0).float().mean()
        rows.append(f"{name:6}  {100 * right:8.1f}  {gate.mean():6.2f}  {100 * closed:8.1f}  {error:.1e}")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    torch.manual_seed(0)
    network = Classifier()
    train(network, parser.parse_args(arguments).steps)
    print(report(network))


if __name__ == "__main__":
    main()
