"""Softness by the evidence of the data, against Bayesian linear regression and loops."""

from __future__ import annotations

import copy
import math

import baseline_layers
import pytest
import small as battery
import small_networks as forms
import torch
from errors import BROKEN, ROUNDING
from escnn import nn as enn
from evidence_networks import CLOSED_FORM, Classifier, entries, images
from small import soft_regular_layer, soft_transposed_layer, volume_layer, volume_type
from torch import Tensor, nn
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
from escnn_relaxed.kernel.kernel import WeightGroup
from escnn_relaxed.learning.posterior import LEAST_PRECISION, MOST_PRECISION

# Closed forms: a layer whose output is one number, which is an affine function of α.


class Regression:
    """Bayesian linear regression on α with MacKay's precisions, by plain linear algebra."""

    def __init__(self, count: int = 60) -> None:
        in_type, out_type = battery.field_type("D4", "regular"), battery.field_type("D4", "trivial")
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


def test_penalty_is_that_of_the_prior_beside_the_mean_square_error() -> None:
    """At its minimum α is the most likely one: the gradient vanishes."""
    regression = Regression()
    delta, alpha, _ = regression.at_the_fixed_point()
    regression.set(alpha)
    evidence = SoftnessEvidence(regression.layer, len(regression.targets), "gaussian")
    evidence.update(regression.inputs, regression.targets.view(-1, 1, 1, 1))
    assert [row.precision for row in evidence.table()] == pytest.approx(delta.tolist(), rel=BROKEN)
    loss = functional.mse_loss(regression.layer(regression.inputs).tensor.flatten(), regression.targets)
    slopes = [
        torch.autograd.grad(of, regression.layer.kernel.modulation.weights)[0] for of in (loss, evidence.penalty())
    ]
    # Three steps of the fixed point from a start that is not it come near; then the two slopes cancel.
    assert (slopes[0] + slopes[1]).norm() < BROKEN * slopes[0].norm()


class Repeated(nn.Module):
    """A layer whose outputs come several times."""

    def __init__(self, layer: RelaxedR2Conv, times: int) -> None:
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, inputs: enn.GeometricTensor) -> Tensor:
        return self.layer(inputs).tensor.repeat(1, self.times, 1, 1)


class Scaled(nn.Module):
    """A layer whose outputs have another unit."""

    def __init__(self, layer: RelaxedR2Conv, factor: float) -> None:
        super().__init__()
        self.layer, self.factor = layer, factor

    def forward(self, inputs: enn.GeometricTensor) -> Tensor:
        return self.layer(inputs).tensor * self.factor


def test_copies_of_an_output_tell_nothing_new() -> None:
    """What the data determine of α, the penalty and the price of softness are those of one output."""
    count = 2000
    regression = Regression(count)
    rest = regression.targets - regression.offset
    regression.set(torch.linalg.lstsq(regression.design, rest[:, None]).solution[:, 0])
    targets = regression.targets.view(-1, 1, 1, 1)
    networks = regression.layer, Repeated(regression.layer, 8)
    one, several = (SoftnessEvidence(network, count, "gaussian") for network in networks)
    one.update(regression.inputs, targets)
    several.update(regression.inputs, targets.repeat(1, 8, 1, 1))
    # Signs are drawn for each copy, so that the weight has an error of √(2 / count), and the residuals as much.
    error = 8 / count**0.5
    assert several.state_dict()["weight"] == pytest.approx(1 / 8, rel=error)
    for alone, together in zip(one.table(), several.table(), strict=True):
        assert together.determined == pytest.approx(alone.determined, rel=error)
    assert several.penalty().item() == pytest.approx(one.penalty().item(), rel=error)
    found = one.harden(regression.inputs, targets)
    regression.layer.hardened = ()
    again = several.harden(regression.inputs, targets.repeat(1, 8, 1, 1))
    assert [trial.rise for trial in again] == pytest.approx([trial.rise for trial in found], rel=error)


def test_a_small_unit_of_the_targets_changes_nothing() -> None:
    image, found = battery.field_type("C4", "trivial"), []
    layer = RelaxedR2Conv(image, image, 3, padding=1, initial_softness=0.1)
    inputs = image(torch.randn(64, 1, 5, 5))
    targets = layer(inputs).tensor.detach() + 0.1 * torch.randn(64, 1, 5, 5)
    for factor in (1.0, 2.0**-20):
        evidence = SoftnessEvidence(Scaled(layer, factor), 64, "gaussian")
        evidence._generator.manual_seed(1)
        evidence.update(inputs, factor * targets)
        noise, penalty = evidence.state_dict()["noise"] / factor**2, evidence.penalty().item() / factor**2
        found.append([noise, penalty, *(row.determined for row in evidence.table())])
    # Powers of 2 are exact in float32, so that sums of squares in another order are what differs.
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_second_update_with_the_same_regression_finds_the_same_noise_and_weight() -> None:
    regression, found = Regression(), []
    evidence = SoftnessEvidence(Repeated(regression.layer, 8), len(regression.targets), "gaussian")
    for _ in range(2):
        evidence._generator.manual_seed(1)
        evidence.update(regression.inputs, regression.targets.view(-1, 1, 1, 1).repeat(1, 8, 1, 1))
        found.append([evidence.state_dict()[name] for name in ("noise", "weight")])
    assert found[0] == found[1]
    assert found[0][1] < 0.5


def test_a_network_whose_errors_go_together_has_no_higher_evidence() -> None:
    image, found = battery.field_type("C4", "trivial"), []
    right = Repeated(RelaxedR2Conv(image, image, 3, padding=1, initial_softness=0.1), 8)
    wrong = copy.deepcopy(right)
    wrong.layer.weights.data *= 0.5  # so that copies of an output have the same error
    inputs = image(torch.randn(200, 1, 9, 9))
    targets = right(inputs).detach() + 0.5 * torch.randn(200, 8, 9, 9)
    for network in (right, wrong):
        evidence = SoftnessEvidence(network, 200, "gaussian")
        evidence.update(inputs, targets)
        found.append((evidence.log_evidence(inputs, targets), evidence.state_dict()["weight"]))
    assert found[1][1] < 0.5 * found[0][1]  # else this test could not fail
    assert found[1][0] < found[0][0]


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
    assert {name: value for name, value in after[0].items() if name != "generator"} == {
        name: value for name, value in before[0].items() if name != "generator"
    }
    assert after[1] == before[1]


def test_outputs_whose_residuals_are_independent_count_in_full() -> None:
    image = battery.field_type("C4", "trivial")
    layer = RelaxedR2Conv(image, image, 3, padding=1, initial_softness=0.1)
    inputs = image(torch.randn(500, 1, 5, 5))
    evidence = SoftnessEvidence(layer, 500, "gaussian")
    evidence.update(inputs, layer(inputs).tensor.detach() + torch.randn(500, 1, 5, 5))
    assert evidence.state_dict()["weight"] > 1 - 4 * (2 / 500) ** 0.5  # four times its error, of so many inputs


def exact_fisher(network: nn.Module, inputs: Tensor) -> Tensor:
    """The Fisher matrix of all images over the soft weights, from every label of every image."""
    total: Tensor | float = 0.0
    for image in inputs.split(1):
        logits = network(image)[0]
        chances = logits.softmax(0).detach()
        for label, chance in enumerate(chances):
            loss = functional.cross_entropy(logits[None], torch.tensor([label]))
            slopes = [
                torch.autograd.grad(loss, parameter, retain_graph=True)[0].flatten()[of]
                for parameter, of in entries(network)
            ]
            slope = torch.cat(slopes)
            total = total + chance * torch.outer(slope, slope)
    return total


def test_error_of_the_sampled_fisher_matrix_falls_with_the_number_of_draws() -> None:
    network, inputs = Classifier().eval(), images(10)
    expected = exact_fisher(network, inputs)
    errors = []
    for draws in (10, 160):
        evidence = SoftnessEvidence(network, 10_000, seed=1)
        rows = evidence._gradients(evidence._likelihood, inputs.repeat(draws, 1, 1, 1))
        errors.append(float((rows.mT @ rows / 1000 - expected).norm() / expected.norm()))
    assert errors[0] < 0.5
    # A quarter, give or take what chance does.
    assert errors[1] < 0.4 * errors[0]


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
    price = float((prior * alpha.square()).sum() - determinant) / 2
    labels = torch.randint(0, 3, (10,))
    loss = functional.cross_entropy(network(inputs), labels).item()
    assert evidence.log_evidence(inputs, labels) == pytest.approx(-1000 * loss - price, rel=CLOSED_FORM)


# Groups.

LAYERS = {
    **{form: (lambda form=form: forms.layer_of(form)) for form in ("soft", "learned", "soft in translation")},
    **{
        way: (lambda way=way: baseline_layers.baseline(way, "D4", "regular -> regular")) for way in baseline_layers.WAYS
    },
    "transposed": lambda: soft_transposed_layer("C4", "regular -> regular", soft_part="tied"),
    "of volumes": lambda: volume_layer(volume_type("D4"), kernel=None),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_of_every_form_learns_how_soft_and_is_strict_where_all_its_soft_weights_are_0(name: str) -> None:
    layer = LAYERS[name]()
    inputs = layer.in_type(forms.features_of(layer, side=5, batch=10))
    evidence = SoftnessEvidence(layer, 50, "gaussian")
    targets = torch.randn_like(layer(inputs).tensor)
    evidence.update(inputs, targets)
    rows = evidence.table()
    assert {word for row in rows for word in row.subgroup.replace(" × ", ", ").split(", ")} == {
        *layer.relaxed_subgroups
    }
    assert all(0 < row.share <= 1 for row in rows)
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


def test_weights_that_are_frozen_hardened_or_shared_are_left_out() -> None:
    network = Classifier()
    every = [(row.layer, row.subgroup) for row in SoftnessEvidence(network, 100).table()]
    assert len(every) == 6
    network.first.harden("rotation")
    left = [(row.layer, row.subgroup) for row in SoftnessEvidence(network, 100).table()]
    assert left == [("first", "reflection"), *every[3:]]
    network.second = network.first
    assert [(row.layer, row.subgroup) for row in SoftnessEvidence(network, 100).table()] == [("first", "reflection")]
    other = copy.deepcopy(network.first)
    other.kernel.modulation.weights = network.first.kernel.modulation.weights
    network.second = other
    assert len(SoftnessEvidence(network, 100).table()) == 1
    network.first.kernel.modulation.weights.requires_grad_(False)
    with pytest.raises(ValueError, match="network has no soft weights that learn"):
        SoftnessEvidence(network, 100)


# Training loops.


def test_penalty_is_nothing_before_an_update_and_the_prior_after_it() -> None:
    network, evidence = Classifier(), None
    evidence = SoftnessEvidence(network, 1000)
    assert evidence.penalty() == 0
    evidence.update(images(20))
    precision = {(row.layer, row.subgroup): row.precision for row in evidence.table()}
    expected = 0.0
    for name in ("first", "second"):
        for group in getattr(network, name).kernel.weight_groups():
            for parameter, places in group.entries:
                expected += precision[name, group.name] * parameter.detach().flatten()[places].square().sum() / 2000
    assert evidence.penalty().item() == pytest.approx(float(expected), rel=ROUNDING)
    assert all(LEAST_PRECISION <= value <= MOST_PRECISION for value in precision.values())


@pytest.mark.parametrize(("value", "bound"), [(0.0, MOST_PRECISION), (1e4, LEAST_PRECISION)])
def test_precisions_are_bounded(value: float, bound: float) -> None:
    network = Classifier()
    with torch.no_grad():
        network.second.kernel.modulation.weights.fill_(value)
    evidence = SoftnessEvidence(network, 1000, prior_weights=0)
    evidence.update(images(20))
    assert [row.precision for row in evidence.table()][3:] == [bound] * 3


def test_penalty_is_not_too_steep_for_stochastic_gradient_descent() -> None:
    network = Classifier()
    with torch.no_grad():
        network.second.kernel.modulation.weights.mul_(1e-6)
    evidence = SoftnessEvidence(network, 100, prior_weights=0)
    evidence.update(images(20))
    assert evidence.table()[3].precision > 1e5
    with torch.no_grad():
        network.second.kernel.modulation.weights.fill_(1.0)
    optimiser = torch.optim.SGD([network.second.kernel.modulation.weights], lr=0.19)
    for _ in range(300):
        optimiser.zero_grad()
        evidence.penalty().backward()
        optimiser.step()
    assert network.second.kernel.modulation.weights.abs().max() < BROKEN


def test_precisions_stay_at_their_prior_where_the_data_say_nothing() -> None:
    """Inputs of zero have no curvature: γ = 0, and δ = n₀ / (‖α‖² + n₀σ₀²)."""
    network = Classifier()
    evidence = SoftnessEvidence(network, 1000, prior_weights=3, prior_deviation=0.2)
    evidence.update(torch.zeros_like(images(20)))
    rows = evidence.table()
    squares = [sum(part.view(-1)[of].square().sum() for part, of in group.entries).item() for group in groups(network)]
    assert all(0 <= row.share < ROUNDING for row in rows)
    assert [row.precision for row in rows] == pytest.approx([3 / (square + 0.12) for square in squares])


def groups(network: Classifier) -> list[WeightGroup]:
    return [group for layer in (network.first, network.second) for group in layer.kernel.weight_groups()]


@pytest.mark.parametrize(("name", "value"), [("prior_weights", -1), ("prior_deviation", 0), ("prior_weights", "1")])
def test_priors_are_checked(name: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
        SoftnessEvidence(Classifier(), 1000, **{name: value})


def test_evidence_prefers_the_network_that_needs_no_softness_where_both_fit() -> None:
    found = []
    for softness in (1e-6, 0.05):
        torch.manual_seed(0)
        image = battery.field_type("C4", "trivial")
        layer = RelaxedR2Conv(image, image, 5, initial_softness=softness)
        inputs = image(torch.randn(100, 1, 5, 5))
        with torch.no_grad():
            targets = layer(inputs).tensor + 0.1 * torch.randn(100, 1, 1, 1)
        evidence = SoftnessEvidence(layer, 100, "gaussian")
        evidence.update(inputs, targets)
        found.append(evidence.log_evidence(inputs, targets))
    assert found[0] > found[1] + 1
