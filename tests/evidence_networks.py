"""A classifier of two soft layers for the tests of the evidence, its images, and soft weights of a network."""

import torch
from escnn import nn as enn
from small import soft_regular_layer
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.baselines import ResidualR2Conv

# Of the project's own claim for closed forms; found: 1e-12 to 1e-10.
CLOSED_FORM = 1e-8


class Classifier(nn.Module):
    """Two soft layers of D4, batch norm between them, the mean over positions, a linear layer."""

    def __init__(self, classes: int = 3, relax: dict[str, float] | None = None) -> None:
        super().__init__()
        relax = {"rotation": 0.25, "reflection": 0.25} if relax is None else relax
        self.first, self.second = (soft_regular_layer("tied", "D4", relax) for _ in range(2))
        fields = self.first.out_type
        self.norm, self.relu = enn.InnerBatchNorm(fields).double(), enn.ReLU(fields)
        self.head = nn.Linear(fields.size, classes).double()

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.norm(self.first(self.first.in_type(images))))
        return self.head(self.relu(self.second(features)).tensor.mean((2, 3)))


def images(count: int = 12) -> Tensor:
    return torch.randn(count, 8, 5, 5, dtype=torch.float64)


def entries(network: nn.Module, label: str = "") -> list[tuple[nn.Parameter, Tensor]]:
    """All soft weights, or those of a label."""
    layers = [module for module in network.modules() if isinstance(module, RelaxedR2Conv | ResidualR2Conv)]
    groups = [group for layer in layers for group in layer.kernel.weight_groups()]
    return [entry for group in groups if label in ("", group.name) for entry in group.entries]
