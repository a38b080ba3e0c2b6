"""The networks that the docs offer to copy: they train, and hardened they have the symmetry that they claim."""

from __future__ import annotations

import pytest
import torch
from errors import SINGLE_REORDERED
from torch import nn

from escnn_relaxed import harden_network

networks = pytest.importorskip("networks_to_copy", reason="no docs beside the tests")

# Sides that halve symmetrically: multiples of 4 where a pooling takes blocks of 2 × 2, 8n + 1 where a stride does.
SHAPES = {"UNet": (3, 16, 16), "ResNet": (3, 17, 17), "Regression": (1, 17, 17)}


@pytest.mark.parametrize("name", SHAPES)
def test_every_parameter_learns(name: str) -> None:
    torch.manual_seed(0)
    network: nn.Module = getattr(networks, name)(fields=2)
    output = network(torch.randn(4, *SHAPES[name]))
    parts = output if isinstance(output, tuple) else (output,)
    torch.stack([(part - torch.randn(part.shape)).square().mean() for part in parts]).sum().backward()
    without = [key for key, of in network.named_parameters() if of.grad is None or not of.grad.any()]
    assert not without


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_hardened_network_turns_with_its_image(name: str) -> None:
    """By 90°: pixels turn, classes and numbers stay, vectors turn."""
    torch.manual_seed(0)
    network = harden_network(getattr(networks, name)(fields=2)).eval()
    images = torch.randn(4, *SHAPES[name])
    before, after = network(images), network(images.rot90(1, (2, 3)))
    if name == "UNet":
        pairs = [(before.rot90(1, (2, 3)), after)]
    elif name == "ResNet":
        pairs = [(before, after)]
    else:
        # A quarter turn takes (x, y) to (−y, x).
        vectors = torch.stack([-before[1][:, 1], before[1][:, 0]], 1)
        pairs = [(before[0], after[0]), (vectors, after[1])]
    for expected, found in pairs:
        assert float((found - expected).norm() / expected.norm()) < SINGLE_REORDERED
