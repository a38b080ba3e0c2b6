"""Likelihoods against torch's losses, and their draws against the covariance of drawn labels."""

from __future__ import annotations

import pytest
import torch
from errors import ROUNDING
from torch import Tensor
from torch.nn import functional

from escnn_relaxed.learning.likelihoods import Likelihood, likelihood_of


def of(name: str, noise: float = 1.0) -> Likelihood:
    likelihood = Likelihood(name)
    likelihood.noise = noise
    return likelihood


def fisher_of_labels(output: Tensor, likelihood: str, noise: float) -> Tensor:
    """The covariance of the gradient of −log p over all labels, each as often as it is drawn, for one input."""
    if likelihood == "gaussian":
        return torch.eye(len(output), dtype=output.dtype) / noise
    if likelihood == "binary":
        chance = output.sigmoid()
        return torch.diag(chance * (1 - chance))
    labels = torch.eye(len(output), dtype=output.dtype)
    slopes = output.softmax(0) - labels
    return torch.einsum("c,ci,cj->ij", output.softmax(0), slopes, slopes)


@pytest.mark.whole
@pytest.mark.parametrize("likelihood", ["categorical", "binary", "gaussian"])
def test_directions_have_the_covariance_of_the_gradients_of_drawn_labels(likelihood: str) -> None:
    output = torch.tensor([2.0, -1.0, 0.5, 0.0], dtype=torch.float64)
    expected = fisher_of_labels(output, likelihood, 0.5)
    generator, errors = torch.Generator().manual_seed(1), []
    for draws in (400, 40_000):
        found = of(likelihood, 0.5).direction(output.expand(draws, -1), generator)
        errors.append(float((found.mT @ found / draws - expected).norm() / expected.norm()))
    # A hundred times the draws: a tenth of the error, give or take what chance does.
    assert errors[0] < 0.3
    assert errors[1] < 0.3 * errors[0]


def test_directions_of_pixels_are_those_of_each_pixel() -> None:
    output = torch.randn(2, 3, 4, dtype=torch.float64)
    found = Likelihood("categorical").direction(output, torch.Generator().manual_seed(3))
    assert found.sum(1).abs().max() <= ROUNDING  # as of a softmax minus a label
    assert (found.abs().amax((0, 1)) > 0).all()


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 2, 2)])
def test_losses_are_those_of_torch(shape: tuple[int, ...]) -> None:
    output = torch.randn(shape, dtype=torch.float64)
    labels, numbers = torch.randint(0, 3, (5, *shape[2:])), torch.rand(shape, dtype=torch.float64)
    pixels = output[0, 0].numel()
    found = of("categorical").losses(output, labels)
    assert found.shape == (5,)
    assert found.mean() / pixels == pytest.approx(functional.cross_entropy(output, labels).item(), rel=ROUNDING)
    found = of("binary").losses(output, numbers).mean() / (3 * pixels)
    expected = functional.binary_cross_entropy_with_logits(output, numbers)
    assert found == pytest.approx(expected.item(), rel=ROUNDING)
    normal = torch.distributions.Normal(output, 0.5**0.5)
    expected = -normal.log_prob(numbers).flatten(1).sum(1)
    assert torch.allclose(of("gaussian", 0.5).losses(output, numbers), expected, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.whole
@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 2, 2)])
def test_unit_takes_losses_to_those_of_torch(shape: tuple[int, ...]) -> None:
    output, other = torch.randn(2, *shape, dtype=torch.float64)
    labels, numbers = torch.randint(0, 3, (5, *shape[2:])), torch.rand(shape, dtype=torch.float64)
    cases = (
        ("categorical", functional.cross_entropy, labels),
        ("binary", functional.binary_cross_entropy_with_logits, numbers),
        ("gaussian", functional.mse_loss, numbers),
    )
    for name, loss, targets in cases:
        likelihood = of(name, 0.5)
        # Of two outputs, since the log likelihood of a Gaussian has a constant beside torch's loss.
        rise = (likelihood.losses(output, targets) - likelihood.losses(other, targets)).mean() * likelihood.unit
        expected = (loss(output, targets) - loss(other, targets)).item()
        assert rise.item() == pytest.approx(expected, abs=ROUNDING)


@pytest.mark.whole
@pytest.mark.parametrize(("size", "weight"), [(2.0, 0.25), (0.5, 1.0)], ids=["together", "less than noise"])
def test_outputs_weigh_what_their_residuals_say_and_never_more_than_1(size: float, weight: float) -> None:
    """The weight is tr H / tr J, of the curvature H at weight 1 and J of the residuals."""
    likelihood, rows = of("gaussian"), torch.randn(6, 4, dtype=torch.float64)
    found = likelihood.weighted(rows, size * rows)
    assert likelihood.weight == pytest.approx(weight, rel=ROUNDING)
    assert torch.allclose(found.mT @ found, weight * rows.mT @ rows, rtol=ROUNDING, atol=ROUNDING)
    assert torch.equal(likelihood.weighted(torch.zeros_like(rows), rows), torch.zeros_like(rows))
    assert likelihood.weight == 1


@pytest.mark.parametrize(
    ("name", "shape", "is_weighted"),
    [("gaussian", (5, 3), True), ("gaussian", (5, 1), False), ("binary", (5, 3), False), ("binary", (5, 1), False)],
)
@pytest.mark.whole
def test_several_outputs_of_a_regression_are_weighted_alone(name: str, shape: tuple[int], is_weighted: bool) -> None:
    likelihood = of(name)
    likelihood.losses(torch.zeros(shape), torch.zeros(shape))
    assert likelihood.is_weighted == is_weighted


@pytest.mark.whole
@pytest.mark.parametrize("noise", [0.25, 0.0])
def test_noise_is_the_mean_square_of_the_residuals_and_never_0(noise: float) -> None:
    output, signs = torch.randn(6, 4, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(12)
    likelihood = Likelihood("gaussian")
    targets = output + noise**0.5 * signs.reshape(6, 4)
    likelihood.fit(float(likelihood.losses(output, targets).mean()))
    assert likelihood.noise == pytest.approx(noise, abs=ROUNDING)
    assert likelihood.noise > 0
    assert likelihood.losses(output, targets).isfinite().all()
    assert likelihood.direction(output, torch.Generator()).isfinite().all()


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_one_class_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"two classes or more, got \(5,"):
        Likelihood("categorical").direction(torch.zeros(shape), torch.Generator())


_CHANCES = torch.rand(12, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
_NUMBERS = torch.arange(12)


@pytest.mark.parametrize(
    ("targets", "output", "likelihood"),
    [
        (_NUMBERS % 3, (3,), "categorical"),
        ((_NUMBERS % 3).view(3, 2, 2), (3, 2, 2), "categorical"),
        ((_NUMBERS % 3).where(_NUMBERS > 2, -100), (3,), "categorical"),
        (_NUMBERS, (3,), None),
        (_NUMBERS, (1,), None),
        (_NUMBERS[:, None], (1,), "gaussian"),
        ((_NUMBERS % 2)[:, None], (1,), "binary"),
        ((_CHANCES > 0.3).float(), (3,), "binary"),
        (functional.one_hot(_NUMBERS % 3).float(), (3,), None),
        (functional.one_hot(_NUMBERS % 3), (3,), None),
        (_CHANCES, (3,), None),
        (_CHANCES[:, :1], (1,), None),
        (_CHANCES * 4, (3,), "gaussian"),
        (_NUMBERS % 2 > 0, (), "binary"),
    ],
)
def test_targets_are_of_one_likelihood_or_leave_a_doubt(
    targets: Tensor, output: tuple[int, ...], likelihood: str | None
) -> None:
    assert likelihood_of(targets, output) == likelihood
