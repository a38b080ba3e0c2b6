"""Likelihoods of a network's output: losses of single inputs, and draws from the prediction."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ..checks import check_choice

_LEAST_NOISE = 1e-30
# At this variance log p has no constant, beside which the squares of small residuals would be lost in float32.
_UNIT_NOISE = 1 / (2 * math.pi)
LIKELIHOODS = "categorical", "binary", "gaussian"


class Likelihood:
    """One of the likelihoods that torch's losses are of."""

    def __init__(self, name: str) -> None:
        self.name = check_choice("likelihood", name, LIKELIHOODS)
        self.noise = _UNIT_NOISE  # the variance of a Gaussian
        self.weight = 1.0  # of each output: below 1 where the errors of an input's outputs go together
        self.outputs = 1  # over how many of an input the loss is a mean, by the last output

    @property
    def unit(self) -> float:
        """The loss of torch over the negative log likelihood of an input, up to a constant."""
        return (2 * self.noise if self.name == "gaussian" else 1.0) / (self.weight * self.outputs)

    @property
    def is_weighted(self) -> bool:
        """Whether outputs of an input may go together: several ones of a Gaussian."""
        return self.name == "gaussian" and self.outputs > 1

    def fit(self, loss: float) -> None:
        """Take for the noise of a Gaussian what a mean loss at the noise and weight of the start says."""
        self.noise = max(2 * _UNIT_NOISE * loss / self.outputs, _LEAST_NOISE)

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
        return self.weight * each.reshape(len(each), -1).sum(1)

    def direction(self, output: Tensor, generator: torch.Generator, targets: Tensor | None = None) -> Tensor:
        """Return numbers like the output, drawn with its Fisher matrix at weight 1; of targets the Gaussian's slope."""
        self._check(output)
        if targets is not None:
            return (targets - output) / self.noise
        # The slope of the loss at a drawn label has this covariance, too, but of a sure network it is nearly 0 in most
        # draws. These numbers have their usual size in every draw.
        signs = torch.randint(2, output.shape, generator=generator, device="cpu").to(output) * 2 - 1
        if self.name == "gaussian":
            return signs / self.noise**0.5
        if self.name == "binary":
            return signs * (output.sigmoid() * (-output).sigmoid()).sqrt()
        chances = output.softmax(1)
        roots = chances.sqrt() * signs
        return roots - chances * roots.sum(1, keepdim=True)

    def weighted(self, rows: Tensor, residual_rows: Tensor) -> Tensor:
        """Find what an output weighs, and return the rows of H, given at weight 1, with that weight."""
        # Where residuals of an input go together, as of neighbouring pixels, its gradients are larger than H says.
        expected, found = float(rows.square().sum()), float(residual_rows.square().sum())
        self.weight = expected / found if found > expected > 0 else 1.0
        return rows * self.weight**0.5

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
