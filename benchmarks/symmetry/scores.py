"""What a trained network is measured by: on test images as they are, and on the same images turned."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.shared.training import softness_of
from benchmarks.symmetry.data import Data
from benchmarks.symmetry.training import accuracy, outputs_of
from benchmarks.symmetry.turns import Element


def scores(network: nn.Module, data: Data, elements: Sequence[Element]) -> dict[str, Any]:
    """Return the scores of a network; those of turned copies are of the images ``data.copied``.

    ``accuracy`` and ``loss`` are of all test images as they are. Copies by the elements of the group but the
    identity give ``turned`` and ``worst``, the mean and the lowest accuracy over elements; ``agreement``, how often the
    class of a turned copy is that of the image; ``averaged``, the accuracy of the mean probability over copies and the
    images themselves, and ``as is`` that of the same images alone. ``softness`` is that of each soft layer.
    """
    logits, labels = outputs_of(network, data.test[0]), data.test[1]
    found = {"accuracy": accuracy(logits, labels), "loss": functional.cross_entropy(logits, labels).item()}
    if len(data.copied[0]):
        found |= _copies(network, data, elements)
    return found | softness_of(network)


def _copies(network: nn.Module, data: Data, elements: Sequence[Element]) -> dict[str, float]:
    """Return the scores of turned copies."""
    images, labels = data.copied
    logits = torch.stack([outputs_of(network, data.act(images, element)) for element in elements])
    accuracies = [accuracy(some, labels) for some in logits]
    predicted = logits.argmax(-1)
    return {
        "as is": accuracies[0],
        "turned": fmean(accuracies[1:]),
        "worst": min(accuracies[1:]),
        "agreement": 100 * (predicted[1:] == predicted[:1]).double().mean().item(),
        "averaged": accuracy(functional.softmax(logits, -1).mean(0), labels),
    }
