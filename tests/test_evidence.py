"""Softness by the evidence of the data, against Bayesian linear regression and loops."""

from __future__ import annotations

import copy
import math

import baseline_layers
import pytest
import small
import small_networks
import torch
from errors import ROUNDING
from escnn import nn as enn
from evidence_networks import CLOSED_FORM, Classifier, entries, images
from small import soft_regular_layer, soft_transposed_layer, volume_layer, volume_type
from torch import Tensor, nn
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
from escnn_relaxed.learning.posterior import LEAST_PRECISION, MOST_PRECISION

# Closed forms: a layer whose output is one number, which is an affine function of α.


class Regression:
    """Bayesian linear regression on α with MacKay's precisions, by plain linear algebra."""

    def __init__(self, count: int = 60) -> None:
        in_type, out_type = small.field_type("D4", "regular"), small.field_type("D4", "trivial")
        relax = {"rotation": 0.25, "reflection": 0.25}
        self.layer = RelaxedR2Conv(in_type, out_type, 3, relax=relax, initial_softness=0.1).double()
        self.inputs = self.layer.in_type(torch.randn(count, 8, 3, 3, dtype=torch.float64))
        self.layer.requires_grad_(False)
        self.groups = [(of.name, pair) for of in self.layer.kernel.weight_groups() for pair in of.entries]
        self.number = torch.cat([torch.full((len(of),), k) for k, (_, (_, of)) in enumerate(self.groups)])
        self.size = len(self.number)
        columns = []
        self.set(torch.zeros(self.size))
        self.offset = self.answer()
        for unit in torch.eye(self.size, dtype=torch.float64):
            self.set(unit)
            columns.append(self.answer() - self.offset)
        self.design = torch.stack(columns, 1)
        truth = torch.randn(self.size, dtype=torch.float64) / (1 + 4 * self.number)
        self.targets = self.offset + self.design @ truth + 0.1 * torch.randn(count, dtype=torch.float64)
        for parameter, _ in entries(self.layer):
            parameter.requires_grad_()

    def set(self, alpha: Tensor) -> None:
        with torch.no_grad():
            for k, (_, (parameter, of)) in enumerate(self.groups):
                parameter.view(-1)[of] = alpha[self.number == k].double()

    def answer(self) -> Tensor:
        with torch.no_grad():
            return self.layer(self.inputs).tensor.flatten()

    def at_the_fixed_point(self) -> tuple[Tensor, Tensor, float]:
        """δ of each group, α and the noise that do not change by another step."""
        delta, noise = torch.ones(len(self.groups), dtype=torch.float64), 0.1
        rest = self.targets - self.offset
        for _ in range(20_000):
            covariance = self.posterior(delta, noise)
            alpha = covariance @ self.design.mT @ rest / noise
            gamma = self.determined(delta, noise)
            squares = torch.zeros_like(delta).index_add(0, self.number, alpha.square())
            delta = (gamma + 1) / (squares + 0.25)
            noise = float((rest - self.design @ alpha).square().mean())
        return delta, self.posterior(delta, noise) @ self.design.mT @ rest / noise, noise

    def posterior(self, delta: Tensor, noise: float) -> Tensor:
        """Σ = (H + diag δ)⁻¹."""
        return torch.linalg.inv(self.design.mT @ self.design / noise + torch.diag(delta[self.number]))

    def determined(self, delta: Tensor, noise: float) -> Tensor:
        """γ = n − δ tr Σ of each group."""
        diagonal = self.posterior(delta, noise).diagonal()
        sums = [torch.zeros_like(delta).index_add(0, self.number, of) for of in (torch.ones_like(diagonal), diagonal)]
        return sums[0] - delta * sums[1]

    def log_evidence(self, delta: Tensor, noise: float) -> float:
        """log p(targets), with α integrated out."""
        covariance = self.design / delta[self.number] @ self.design.mT
        covariance = covariance + noise * torch.eye(len(covariance), dtype=torch.float64)
        normal = torch.distributions.MultivariateNormal(self.offset, covariance)
        return float(normal.log_prob(self.targets))


def test_linear_regression_has_its_closed_form() -> None:
    regression = Regression()
    delta, alpha, noise = regression.at_the_fixed_point()
    regression.set(alpha)
    evidence = SoftnessEvidence(regression.layer, len(regression.targets), "gaussian")
    state = evidence.state_dict()
    evidence.load_state_dict({**state, "precision": dict(zip(state["precision"], delta.tolist(), strict=True))})
    targets = regression.targets.view(-1, 1, 1, 1)
    evidence.update(regression.inputs, targets)
    rows = evidence.table()
    assert [row.subgroup for row in rows] == [label for label, _ in regression.groups]
    assert [row.weights for row in rows] == [len(of) for _, (_, of) in regression.groups]
    assert [row.precision for row in rows] == pytest.approx(delta.tolist(), rel=CLOSED_FORM)
    gamma = regression.determined(delta, noise).tolist()
    assert [row.determined for row in rows] == pytest.approx(gamma, rel=CLOSED_FORM)
    found = evidence.log_evidence(regression.inputs, targets)
    assert found == pytest.approx(regression.log_evidence(delta, noise), rel=CLOSED_FORM)


class Changed(nn.Module):
    """A layer whose outputs have another unit, and come several times."""

    def __init__(self, layer: RelaxedR2Conv, times: int = 1, factor: float = 1.0) -> None:
        super().__init__()
        self.layer, self.times, self.factor = layer, times, factor

    def forward(self, inputs: enn.GeometricTensor) -> Tensor:
        return self.factor * self.layer(inputs).tensor.repeat(1, self.times, 1, 1)


def test_a_small_unit_of_the_targets_changes_nothing_and_independent_residuals_count_in_full() -> None:
    image, found = small.field_type("C4", "trivial"), []
    layer = RelaxedR2Conv(image, image, 3, padding=1, initial_softness=0.1)
    inputs = image(torch.randn(500, 1, 5, 5))
    targets = layer(inputs).tensor.detach() + 0.1 * torch.randn(500, 1, 5, 5)
    for factor in (1.0, 2.0**-20):
        evidence = SoftnessEvidence(Changed(layer, factor=factor), 500, "gaussian")
        evidence.update(inputs, factor * targets)
        noise, penalty = evidence.state_dict()["noise"] / factor**2, evidence.penalty().item() / factor**2
        found.append([noise, penalty, *(row.determined for row in evidence.table())])
        assert evidence.state_dict()["weight"] > 1 - 4 * (2 / 500) ** 0.5  # four times its error, of so many inputs
    # Powers of 2 are exact in float32, so that sums of squares in another order are what differs.
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.parametrize("targets", [torch.zeros(40, 1, 1, 1), torch.zeros(32, 1, 1, 1) / 0])
def test_an_update_that_fails_changes_nothing(targets: Tensor) -> None:
    regression = Regression()
    evidence = SoftnessEvidence(regression.layer, len(regression.targets), "gaussian")
    evidence.update(regression.inputs, regression.targets.view(-1, 1, 1, 1))
    before = evidence.state_dict(), evidence.penalty().item()
    few = enn.GeometricTensor(regression.inputs.tensor[:32], regression.inputs.type)
    with pytest.raises(ValueError, match=r"targets must be as many as inputs|not finite"):
        evidence.update(few, targets.to(regression.targets))
    after = evidence.state_dict(), evidence.penalty().item()
    assert {**after[0], "generator": 0} == {**before[0], "generator": 0}
    assert after[1] == before[1]


# The Fisher matrix.


@pytest.mark.parametrize("draws", [1, 40], ids=["fewer than weights", "more than weights"])
def test_determined_weights_are_those_of_the_fisher_matrix(draws: int) -> None:
    network, inputs = Classifier().eval(), images(10)
    evidence = SoftnessEvidence(network, 1000, seed=1)
    evidence.update(inputs.repeat(draws, 1, 1, 1))
    sizes, delta = [row.weights for row in evidence.table()], [row.precision for row in evidence.table()]
    rows = torch.cat([learned.rows for learned in evidence._present()], 1)
    curvature, prior = rows.mT @ rows, torch.tensor(delta, dtype=torch.float64).repeat_interleave(torch.tensor(sizes))
    inverse = torch.linalg.inv(curvature + torch.diag(prior))
    traces = [float(of.sum()) for of in inverse.diagonal().split(sizes)]
    expected = [n - of * trace for n, of, trace in zip(sizes, delta, traces, strict=True)]
    assert [row.determined for row in evidence.table()] == pytest.approx(expected, rel=CLOSED_FORM, abs=CLOSED_FORM)
    alpha = torch.cat([parameter.detach().flatten()[of] for parameter, of in entries(network)])
    determinant = torch.linalg.slogdet(inverse * prior)[1]
    occam_factor = float((prior * alpha.square()).sum() - determinant) / 2
    labels = torch.randint(0, 3, (10,))
    loss = functional.cross_entropy(network(inputs), labels).item()
    assert evidence.log_evidence(inputs, labels) == pytest.approx(-1000 * loss - occam_factor, rel=CLOSED_FORM)


# Precisions and groups.


@pytest.mark.parametrize(("value", "bound"), [(0.0, MOST_PRECISION), (1e4, LEAST_PRECISION)])
def test_precisions_are_bounded_and_the_penalty_is_not_too_steep(value: float, bound: float) -> None:
    network = Classifier()
    weights = network.second.kernel.modulation.weights
    weights.data.fill_(value)
    evidence = SoftnessEvidence(network, 100, prior_weights=0)
    evidence.update(images(20))
    assert [row.precision for row in evidence.table()][3:] == [bound] * 3
    weights.data.fill_(1.0)
    (slope,) = torch.autograd.grad(evidence.penalty(), weights)
    assert (slope <= 10).all()  # the second derivative, so that SGD is stable up to a rate of 0.2


def test_precisions_stay_at_their_prior_where_the_data_say_nothing() -> None:
    """Inputs of zero have no curvature: γ = 0, and δ = n₀ / (‖α‖² + n₀σ₀²)."""
    network = Classifier()
    evidence = SoftnessEvidence(network, 1000, prior_weights=3, prior_deviation=0.2)
    evidence.update(torch.zeros_like(images(20)))
    rows = evidence.table()
    squares = [float(of.flatten()[on].detach().square().sum()) for of, on in entries(network)]
    assert all(0 <= row.gamma_per_weight < ROUNDING for row in rows)
    assert [row.precision for row in rows] == pytest.approx([3 / (square + 0.12) for square in squares])


def test_weights_that_are_frozen_hardened_or_shared_are_left_out() -> None:
    network = Classifier()
    every = [(row.layer, row.subgroup) for row in SoftnessEvidence(network, 100).table()]
    assert len(every) == 6
    network.first.harden("rotation")
    left = [(row.layer, row.subgroup) for row in SoftnessEvidence(network, 100).table()]
    assert left == [("first", "reflection"), *every[3:]]
    other = copy.deepcopy(network.first)
    other.kernel.modulation.weights = network.first.kernel.modulation.weights
    for second in (network.first, other):
        network.second = second
        assert [(row.layer, row.subgroup) for row in SoftnessEvidence(network, 100).table()] == left[:1]
    network.first.kernel.modulation.weights.requires_grad_(False)
    with pytest.raises(ValueError, match="network has no soft weights that learn"):
        SoftnessEvidence(network, 100)


LAYERS = {
    **{form: (lambda form=form: small_networks.layer_of(form)) for form in ("soft", "learned", "soft in translation")},
    **{
        way: (lambda way=way: baseline_layers.baseline(way, "D4", "regular -> regular")) for way in baseline_layers.WAYS
    },
    "transposed": lambda: soft_transposed_layer("C4", "regular -> regular", soft_part="tied"),
    "of volumes": lambda: volume_layer(volume_type("D4"), kernel=None),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_of_every_form_learns_how_soft_and_is_strict_where_all_its_soft_weights_are_0(name: str) -> None:
    layer = LAYERS[name]()
    inputs = layer.in_type(small_networks.features_of(layer, side=5, batch=10))
    evidence = SoftnessEvidence(layer, 50, "gaussian")
    evidence.update(inputs, torch.randn_like(layer(inputs).tensor))
    rows = evidence.table()
    names = {word for row in rows for word in row.subgroup.replace(" × ", ", ").split(", ")}
    assert names == {*layer.relaxed_subgroups}
    assert all(0 < row.gamma_per_weight <= 1 for row in rows)
    assert evidence.penalty() > 0
    with torch.no_grad():
        for group in layer.kernel.weight_groups():
            for parameter, places in group.entries:
                parameter.view(-1)[places] = 0
    assert evidence.penalty() <= ROUNDING
    assert layer.softness() <= ROUNDING


def test_functions_of_two_subgroups_are_apart() -> None:
    layer = soft_regular_layer("tied", "D4", {"rotation": 0.25, "reflection": 0.25, "translation": 0.25})
    rows = SoftnessEvidence(layer, 100).table()
    assert {row.subgroup for row in rows} == {"rotation", "reflection", "translation", "rotation × reflection"}
    soft_weights = layer.kernel.modulation.weights, layer.kernel.position_modulation.weights
    assert sum(row.weights for row in rows) == sum(map(len, soft_weights))
    assert all(math.isnan(row.determined) for row in rows)


def test_copies_of_an_output_tell_nothing_new() -> None:
    """What the data determine of α, the penalty and the rise of a trial are those of one output."""
    count = 2000
    regression = Regression(count)
    rest = regression.targets - regression.offset
    regression.set(torch.linalg.lstsq(regression.design, rest[:, None]).solution[:, 0])
    targets, layer = regression.targets.view(-1, 1, 1, 1), regression.layer
    one, several = (SoftnessEvidence(Changed(layer, times), count, "gaussian") for times in (1, 8))
    one.update(regression.inputs, targets)
    several.update(regression.inputs, targets.repeat(1, 8, 1, 1))
    # Signs are drawn for each copy, so that the weight has an error of √(2 / count), and the residuals as much.
    error = 8 / count**0.5
    assert several.state_dict()["weight"] == pytest.approx(1 / 8, rel=error)
    for alone, together in zip(one.table(), several.table(), strict=True):
        assert together.determined == pytest.approx(alone.determined, rel=error)
    assert several.penalty().item() == pytest.approx(one.penalty().item(), rel=error)
    found = one.harden(regression.inputs, targets)
    layer.hardened = ()
    again = several.harden(regression.inputs, targets.repeat(1, 8, 1, 1))
    assert [trial.rise for trial in again] == pytest.approx([trial.rise for trial in found], rel=error)
    # A second update with the same draws finds the same noise and weight.
    layer.hardened, found = (), []
    for _ in range(2):
        several._generator.manual_seed(1)
        several.update(regression.inputs, targets.repeat(1, 8, 1, 1))
        found.append([several.state_dict()[name] for name in ("noise", "weight")])
    assert found[0] == found[1]
