"""Likelihoods of a network's output: losses of single inputs, and draws from the prediction."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ..checks import check_choice, check_integer

_LEAST_NOISE = 1e-30
# At this variance log p has no constant, beside which the squares of small residuals would be lost in float32.
_UNIT_NOISE = 1 / (2 * math.pi)
LIKELIHOODS = "categorical", "binary", "gaussian"
# The class of outputs that torch's cross_entropy leaves out, unless another one is given.
IGNORE_INDEX = -100
_LEAST_INTEGER = -(2**63)


class Likelihood:
    """The likelihood of one of torch's losses."""

    def __init__(self, name: str, ignore_index: int = IGNORE_INDEX) -> None:
        self.name = check_choice("likelihood", name, LIKELIHOODS)
        self.ignore_index = check_integer("ignore_index", ignore_index, _LEAST_INTEGER)
        if name != "categorical" and ignore_index != IGNORE_INDEX:
            raise ValueError(
                f"ignore_index must be {IGNORE_INDEX} where likelihood={name!r}, since torch's loss leaves nothing "
                f"out, got {ignore_index}"
            )
        self.noise = _UNIT_NOISE  # the variance of a Gaussian
        self.weight = 1.0  # of each output: below 1 where the errors of an input's outputs go together
        self.outputs = 1.0  # over how many of an input the loss is a mean, by the last output, or by set_mean_outputs

    @property
    def unit(self) -> float:
        """The loss of torch over the negative log likelihood of an input, up to a constant."""
        return (2 * self.noise if self.name == "gaussian" else 1.0) / (self.weight * self.outputs)

    @property
    def is_weighted(self) -> bool:
        """True if the outputs of an input may be correlated: a Gaussian with several outputs."""
        return self.name == "gaussian" and self.outputs > 1

    def fit(self, loss: float) -> None:
        """Set the noise of a Gaussian from a mean loss at the initial noise and weight."""
        self.noise = max(2 * _UNIT_NOISE * loss / self.outputs, _LEAST_NOISE)

    def losses(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log likelihood of each input, (batch,)."""
        self._set_outputs_from(output)
        if self.name == "categorical":
            # torch takes no class to leave out beside a chance of each class.
            void = IGNORE_INDEX if targets.is_floating_point() else self.ignore_index
            checked = self._checked_targets(targets, output)
            each = functional.cross_entropy(output, checked, ignore_index=void, reduction="none")
        elif targets.shape != output.shape:
            wanted, given = tuple(output.shape), tuple(targets.shape)
            raise ValueError(f"targets must have the shape of the outputs, {wanted}, got {given}")
        elif self.name == "binary":
            each = functional.binary_cross_entropy_with_logits(output, targets.to(output), reduction="none")
        else:
            each = (output - targets).square() / (2 * self.noise) + math.log(2 * math.pi * self.noise) / 2
        return self.weight * each.reshape(len(each), -1).sum(1)

    def direction(self, output: Tensor, generator: torch.Generator, targets: Tensor | None = None) -> Tensor:
        """Return a random direction of the output's shape, with its Fisher matrix as covariance, 0 at void targets.

        With Gaussian targets, return the gradient of the log likelihood instead.
        """
        self._set_outputs_from(output)
        if self.name == "gaussian" and targets is not None:
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
        direction = roots - chances * roots.sum(1, keepdim=True)
        if targets is None:
            return direction
        targets = self._checked_targets(targets, output)
        return direction if targets.is_floating_point() else direction * (targets != self.ignore_index).unsqueeze(1)

    def counted_outputs(self, targets: Tensor) -> Tensor:
        """Return how many outputs of each input the loss counts, (batch,), after a pass with them."""
        if self.name != "categorical" or targets.is_floating_point():
            return torch.full((len(targets),), float(self.outputs), dtype=torch.float64, device="cpu")
        return (targets != self.ignore_index).reshape(len(targets), -1).sum(1).cpu().double()

    def set_mean_outputs(self, counts: Tensor) -> None:
        """Set the number of outputs of an input to the mean that the loss counts."""
        self.outputs = float(counts.mean())
        if not self.outputs:
            raise ValueError(f"targets must have classes, got ignore_index (={self.ignore_index}) everywhere")

    def weighted(self, rows: Tensor, residual_rows: Tensor) -> Tensor:
        """Estimate the weight of an output, and return the rows of H, given at weight 1, with that weight."""
        # Where residuals of an input go together, as those of neighbours, its gradients are larger than H says.
        expected, measured = float(rows.square().sum()), float(residual_rows.square().sum())
        self.weight = expected / measured if measured > expected > 0 else 1.0
        return rows * self.weight**0.5

    def _set_outputs_from(self, output: Tensor) -> None:
        """Set how many outputs an input has from the shape of a network's output, which must fit the likelihood."""
        classes = 1
        if self.name == "categorical":
            classes = output.shape[1] if output.dim() > 1 else 1
            if classes < 2:
                raise ValueError(
                    f"likelihood='categorical' is of outputs (batch, classes, …) with two classes or more, got "
                    f"{tuple(output.shape)}"
                )
        self.outputs = output[0].numel() // classes

    def _checked_targets(self, targets: Tensor, output: Tensor) -> Tensor:
        """Return the checked targets of a classification: class indices, or a probability of each class."""
        is_whole = not targets.is_floating_point()
        wanted = (len(output), *output.shape[2:]) if is_whole else tuple(output.shape)
        if targets.shape != wanted:
            kind = "classes" if is_whole else "chances of classes"
            raise ValueError(f"targets must be {kind} of shape {wanted}, got {tuple(targets.shape)}")
        # torch's loss takes no other integers.
        targets = targets.to(output.device, torch.long if is_whole else targets.dtype)
        if is_whole:
            others = targets[targets != self.ignore_index]
            if len(others) and not 0 <= int(others.min()) <= int(others.max()) < output.shape[1]:
                wrong = others[(others < 0) | (others >= output.shape[1])][0].item()
                raise ValueError(
                    f"targets must be from 0 to {output.shape[1] - 1}, or ignore_index (={self.ignore_index}) where "
                    f"the loss leaves them out, got {wrong}"
                )
        return targets
