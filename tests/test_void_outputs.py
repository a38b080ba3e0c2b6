"""Classes that the loss leaves out (``ignore_index``) count nowhere, against an independent dense computation."""

import math

import pytest
import small
import torch
from errors import ROUNDING
from escnn import nn as enn
from evidence_networks import CLOSED_FORM, entries
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
from escnn_relaxed.learning.likelihoods import Likelihood
from escnn_relaxed.learning.prior import LEAST_PRECISION

CLASSES, SIDE, COUNT, OBSERVATIONS = 3, 4, 12, 50
VOID = [-100, 255, 1]


class Segmentation(nn.Module):
    """Two soft layers of C4, and logits (batch, classes, H, W) in a dict."""

    def __init__(self) -> None:
        super().__init__()
        image, hidden = small.field_type("C4", "trivial"), small.field_type("C4", "regular")
        logits = image.gspace.type(*[image.gspace.trivial_repr] * CLASSES)
        self.first = RelaxedR2Conv(image, hidden, 3, padding=1, initial_softness=0.1).double()
        self.second = RelaxedR2Conv(hidden, logits, 3, padding=1, initial_softness=0.1).double()
        self.relu = enn.ELU(hidden)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"logits": self.second(self.relu(self.first(self.first.in_type(images)))).tensor}


def logits_of(returned: dict[str, Tensor]) -> Tensor:
    return returned["logits"]


def scenes(void: int, share: float = 0.8) -> tuple[Tensor, Tensor]:
    """Images, and labels of which a share is void: in the first image all, in the second none."""
    classes = [number for number in range(CLASSES) if number != void]
    labels = torch.tensor(classes)[torch.randint(len(classes), (COUNT, SIDE, SIDE))]
    is_void = torch.rand(labels.shape) < share
    is_void[0], is_void[1] = True, False
    return torch.randn(COUNT, 1, SIDE, SIDE, dtype=torch.float64), labels.where(~is_void, torch.tensor(void))


def evidence_of(network: nn.Module, void: int) -> SoftnessEvidence:
    return SoftnessEvidence(network, OBSERVATIONS, output=logits_of, ignore_index=void)


def dense_curvature(network: Segmentation, images: Tensor, labels: Tensor, void: int) -> Tensor:
    """H of all soft weights by a loop over inputs and their pixels, with the signs that a seed of 0 draws."""
    generator = torch.Generator().manual_seed(0)
    signs = 2 * torch.randint(2, (len(images), CLASSES, SIDE, SIDE), generator=generator).double() - 1
    curvature: Tensor | float = 0.0
    for image, label, sign in zip(images, labels, signs, strict=True):
        logits = network.eval()(image[None])["logits"][0]
        along = torch.zeros((), dtype=torch.float64)
        for row in range(SIDE):
            for column in range(SIDE):
                if label[row, column] == void:
                    continue
                chances = logits[:, row, column].softmax(0).detach()
                root = torch.diag(chances.sqrt()) - chances[:, None] * chances.sqrt()
                along = along + logits[:, row, column] @ root @ sign[:, row, column]
        parameters = [parameter for parameter, _ in entries(network)]
        slopes = [torch.zeros_like(of) for of in parameters]
        if along.requires_grad:
            slopes = list(torch.autograd.grad(along, parameters))
        slope = torch.cat([of.flatten()[on] for of, (_, on) in zip(slopes, entries(network), strict=True)])
        curvature = curvature + slope[:, None] * slope * OBSERVATIONS / len(images)
    return torch.as_tensor(curvature)


def dense_fixed_point(curvature: Tensor, alphas: list[Tensor]) -> tuple[list[float], list[float]]:
    """δ after three steps from the least one, and γ with it."""
    sizes, delta = [len(alpha) for alpha in alphas], [LEAST_PRECISION] * len(alphas)

    def determined() -> list[float]:
        prior = torch.tensor(delta, dtype=torch.float64).repeat_interleave(torch.tensor(sizes))
        diagonal = torch.linalg.inv(curvature + torch.diag(prior)).diagonal().split(sizes)
        return [n - of * float(part.sum()) for n, of, part in zip(sizes, delta, diagonal, strict=True)]

    for _ in range(3):
        pairs = zip(determined(), alphas, strict=True)
        delta = [max((gamma + 1) / (float(alpha.square().sum()) + 0.25), LEAST_PRECISION) for gamma, alpha in pairs]
    return delta, determined()


@pytest.mark.parametrize("void", VOID)
def test_void_outputs_count_neither_in_the_fisher_matrix_nor_in_the_penalty(void: int) -> None:
    network, (images, labels) = Segmentation(), scenes(void)
    evidence = evidence_of(network, void)
    evidence.update(images, labels)
    alphas = [parameter.detach().flatten()[on] for parameter, on in entries(network)]
    delta, gamma = dense_fixed_point(dense_curvature(network, images, labels, void), alphas)
    assert [row.precision for row in evidence.table()] == pytest.approx(delta, rel=CLOSED_FORM)
    assert [row.determined for row in evidence.table()] == pytest.approx(gamma, rel=CLOSED_FORM)
    counted = float((labels != void).sum()) / COUNT
    assert counted < 0.35 * SIDE**2
    energy = sum(of * float(alpha.square().sum()) for of, alpha in zip(delta, alphas, strict=True))
    assert evidence.penalty().item() == pytest.approx(energy / (2 * OBSERVATIONS * counted), rel=CLOSED_FORM)


@pytest.mark.parametrize("void", VOID)
def test_losses_of_single_inputs_are_in_the_unit_of_a_loss_that_leaves_out_void_outputs(void: int) -> None:
    output, (_, labels) = torch.randn(COUNT, CLASSES, SIDE, SIDE, dtype=torch.float64), scenes(void)
    likelihood = Likelihood("categorical", void)
    losses = likelihood.losses(output, labels)
    likelihood.set_mean_outputs(likelihood.counted_outputs(labels))
    expected = cross_entropy(output, labels, ignore_index=void).item()
    assert (losses.mean() * likelihood.unit).item() == pytest.approx(expected, rel=ROUNDING)
    assert losses[0] == 0


def test_trials_of_hardening_leave_out_void_outputs() -> None:
    network, (images, labels) = Segmentation(), scenes(255)
    evidence = evidence_of(network, 255)
    evidence.update(images, labels)

    def mean_loss() -> float:
        """Of an input, over all outputs that count."""
        with torch.no_grad():
            return cross_entropy(logits_of(network(images)), labels, ignore_index=255, reduction="sum").item() / COUNT

    network.eval()
    before, trial = mean_loss(), evidence.harden(images, labels)[0]
    network.first.harden()
    network.second.harden()
    assert trial.layers == ("first", "second")
    assert trial.rise == pytest.approx(OBSERVATIONS * (mean_loss() - before), rel=CLOSED_FORM)


def test_outputs_all_count_without_targets_and_of_chances() -> None:
    """A chance of each class is a target, too, and no class of it is left out."""
    network, (images, labels) = Segmentation(), scenes(-100, share=0.0)
    labels[0] = 0
    found = []
    for targets in (None, labels, torch.eye(CLASSES, dtype=torch.float64)[labels].movedim(-1, 1)):
        evidence = evidence_of(network, -100)
        evidence.update(images, targets)
        found.append((evidence.penalty().item(), list(evidence.table())))
    assert found[0] == found[1] == found[2]


def test_label_smoothing_changes_no_curvature() -> None:
    """As the evidence says: the second derivative of the loss in the logits is that of the plain loss."""
    logits, label = torch.randn(1, 5, dtype=torch.float64), torch.tensor([2])
    plain, smooth = (
        torch.autograd.functional.hessian(lambda x, by=by: cross_entropy(x, label, label_smoothing=by), logits)
        for by in (0.0, 0.2)
    )
    assert (plain - smooth).abs().max() < ROUNDING


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda labels: torch.full_like(labels, 255), r"targets must have classes, got ignore_index \(=255\) every"),
        (lambda labels: labels.where(labels != 255, -100), r"targets must be from 0 to 2, or ignore_index.* got -100"),
        (lambda labels: labels.where(labels != 2, 3), r"targets must be from 0 to 2, or ignore_index.* got 3"),
        (lambda labels: labels[:, 0], r"targets must be classes of shape \(12, 4, 4\), got \(12, 4\)"),
        (lambda labels: labels.double(), r"chances of classes of shape \(12, 3, 4, 4\), got \(12, 4, 4\)"),
        (lambda labels: labels[:5], r"targets must be as many as inputs \(=12\), got 5"),
    ],
)
def test_targets_that_do_not_fit_are_named(change: object, message: str) -> None:
    network, (images, labels) = Segmentation(), scenes(255)
    evidence = evidence_of(network, 255)
    for call in (evidence.check, evidence.update):
        with pytest.raises(ValueError, match=message):
            call(images, change(labels))
    assert evidence.penalty() == 0
    assert all(math.isnan(row.determined) for row in evidence.table())


def test_a_class_to_leave_out_is_of_classes() -> None:
    network = Segmentation()
    with pytest.raises(ValueError, match=r"ignore_index must be -100 where likelihood='binary'.* got 255"):
        SoftnessEvidence(network, 100, "binary", ignore_index=255)
    with pytest.raises(TypeError, match=r"ignore_index must be an integer, got 2\.5"):
        SoftnessEvidence(network, 100, ignore_index=2.5)
