"""Likelihoods of a network's output: losses of single inputs, and draws from the prediction."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ..checks import check_choice

LIKELIHOODS = "categorical", "binary", "gaussian"


class Likelihood:
    """One of the likelihoods that torch's losses are of.

    Args:
        name: ``"categorical"``, ``"binary"`` or ``"gaussian"``.

    Attributes:
        noise: the variance of a Gaussian.
        outputs: the number of outputs of an input that the loss is a mean over, as of the last output.
    """

    def __init__(self, name: str) -> None:
        self.name = check_choice("likelihood", name, LIKELIHOODS)
        self.noise = 1.0
        self.outputs = 1

    @property
    def unit(self) -> float:
        """The loss of torch over the negative log likelihood of an input, up to a constant."""
        return (2 * self.noise if self.name == "gaussian" else 1.0) / self.outputs

    def losses(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log likelihood of each input, (batch,)."""
        self._check(output)
        if self.name == "categorical":
            each = functional.cross_entropy(output, targets, reduction="none")
        elif targets.shape != output.shape:
            wanted, given = tuple(output.shape), tuple(targets.shape)
            raise ValueError(f"targets must have the shape of the outputs, {wanted}, got {given}")
        elif self.name == "binary":
            each = functional.binary_cross_entropy_with_logits(output, targets.to(output), reduction="none")
        else:
            each = (output - targets).square() / (2 * self.noise) + math.log(2 * math.pi * self.noise) / 2
        return each.reshape(len(each), -1).sum(1)

    def direction(self, output: Tensor, generator: torch.Generator) -> Tensor:
        """Return random numbers in the shape of the output, whose covariance is its Fisher matrix.

        The gradient of the loss with a label drawn from the prediction has this covariance, too. That of a network that
        is sure is nearly always nearly 0, and seldom large; this one is of its usual size in every draw.
        """
        self._check(output)
        signs = torch.randint(2, output.shape, generator=generator, device="cpu").to(output) * 2 - 1
        if self.name == "gaussian":
            return signs / self.noise**0.5
        if self.name == "binary":
            return signs * (output.sigmoid() * (-output).sigmoid()).sqrt()
        chances = output.softmax(1)
        roots = chances.sqrt() * signs
        return roots - chances * roots.sum(1, keepdim=True)

    def _check(self, output: Tensor) -> None:
        classes = 1
        if self.name == "categorical":
            classes = output.shape[1] if output.dim() > 1 else 1
            if classes < 2:
                raise ValueError(
                    f"likelihood='categorical' is of outputs (batch, classes, …) with two classes or more, got "
                    f"{tuple(output.shape)}"
                )
        self.outputs = output[0].numel() // classes
