"""Softness by the evidence of the data, against Bayesian linear regression and loops, and on networks as users have."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import baseline_layers
import battery
import forms
import pytest
import torch
import volumes
from escnn import nn as enn
from layers import soft_transposed_layer
from pretend_device import DEVICE, pretend
from soft_networks import soft_regular_layer
from tolerances import BROKEN, ROUNDING
from torch import Tensor, distributed, nn
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
from escnn_relaxed.baselines import ResidualR2Conv
from escnn_relaxed.learning.evidence import LEAST_PRECISION, MOST_PRECISION

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
    return [
        pair for layer in layers for name, of in layer.weight_groups().items() if label in ("", name) for pair in of
    ]


# Closed forms: a layer whose output is one number, which is an affine function of α.


class Regression:
    """Bayesian linear regression on α with MacKay's precisions, by plain linear algebra."""

    def __init__(self, count: int = 60) -> None:
        in_type, out_type = battery.field_type("D4", "regular"), battery.field_type("D4", "trivial")
        relax = {"rotation": 0.25, "reflection": 0.25}
        self.layer = RelaxedR2Conv(in_type, out_type, 3, relax=relax, initial_softness=0.1).double()
        self.inputs = self.layer.in_type(torch.randn(count, 8, 3, 3, dtype=torch.float64))
        self.layer.requires_grad_(False)
        self.groups = [(label, pair) for label, of in self.layer.weight_groups().items() for pair in of]
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
            delta = (gamma / squares).clamp(LEAST_PRECISION, MOST_PRECISION)
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
        rows = evidence._gradients(inputs.repeat(draws, 1, 1, 1))
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
    rows = torch.cat(list(evidence._rows.values()), 1)
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
    "of volumes": lambda: volumes.layer(volumes.fields("D4"), kernel=None),
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
        for of in layer.weight_groups().values():
            for parameter, places in of:
                values = parameter.view(-1)[places]
                parameter.view(-1)[places] = values.mean(-1, keepdim=True).expand_as(values) * (places.dim() > 1)
    assert evidence.penalty() <= ROUNDING
    assert layer.softness() <= ROUNDING


def test_functions_of_two_subgroups_are_apart() -> None:
    layer = soft_regular_layer("tied", "D4", {"rotation": 0.25, "reflection": 0.25, "translation": 0.25})
    rows = SoftnessEvidence(layer, 100).table()
    assert {row.subgroup for row in rows} == {"rotation", "reflection", "translation", "rotation × reflection"}
    assert sum(row.weights for row in rows) == layer.kernel.modulation.weights.numel()
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
        for label, of in getattr(network, name).weight_groups().items():
            for parameter, places in of:
                expected += precision[name, label] * parameter.detach().flatten()[places].square().sum() / 2000
    assert evidence.penalty().item() == pytest.approx(float(expected), rel=ROUNDING)
    assert all(LEAST_PRECISION <= value <= MOST_PRECISION for value in precision.values())


@pytest.mark.parametrize(("value", "bound"), [(0.0, MOST_PRECISION), (1e4, LEAST_PRECISION)])
def test_precisions_are_bounded(value: float, bound: float) -> None:
    network = Classifier()
    with torch.no_grad():
        network.second.kernel.modulation.weights.fill_(value)
    evidence = SoftnessEvidence(network, 1000)
    evidence.update(images(20))
    assert [row.precision for row in evidence.table()][3:] == [bound] * 3


def test_penalty_is_not_too_steep_for_stochastic_gradient_descent() -> None:
    network = Classifier()
    with torch.no_grad():
        network.second.kernel.modulation.weights.mul_(1e-6)
    evidence = SoftnessEvidence(network, 100)
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


def test_curvature_that_is_singular_is_no_error() -> None:
    network = Classifier()
    evidence = SoftnessEvidence(network, 1000)
    evidence.update(torch.zeros_like(images(20)))
    assert all(0 <= row.share < BROKEN for row in evidence.table())


class HalfPlanes(nn.Module):
    """One soft layer of C4 that sees all of an image, the maximum over the group, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        image, hidden = battery.field_type("C4", "trivial"), battery.field_type("C4", "regular")
        self.layer = RelaxedR2Conv(image, hidden, 5, initial_softness=0.02)
        self.pool, self.head = enn.GroupPooling(hidden), nn.Linear(1, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.layer(self.layer.in_type(images))).tensor.flatten(1))


def trained_by_evidence(network: nn.Module, inputs: Tensor, labels: Tensor) -> SoftnessEvidence:
    evidence = SoftnessEvidence(network, len(inputs))
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-2)
    for epoch in range(20):
        for batch in torch.randperm(len(inputs)).split(50):
            loss = functional.cross_entropy(network(inputs[batch]), labels[batch]) + evidence.penalty()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if epoch >= 2:
            evidence.update(inputs[:200])
    return evidence


def test_softness_that_the_data_do_not_need_goes_and_what_they_need_stays() -> None:
    """Whether the middle of an image is bright, and whether its upper half is brighter than its lower half."""
    inputs, noise = torch.randn(400, 1, 5, 5), 0.3 * torch.randn(400)
    middle, halves = inputs[:, 0, 2, 2], inputs[:, 0, :2].mean((1, 2)) - inputs[:, 0, 3:].mean((1, 2))
    shares = []
    for quantity, is_needed in ((middle, False), (halves, True)):
        network, labels = HalfPlanes(), (quantity + noise > 0).long()
        evidence = trained_by_evidence(network, inputs, labels)
        shares += [row.share for row in evidence.table()]
        (trial,) = evidence.harden(inputs, labels)
        assert trial.is_hardened != is_needed
        assert (trial.rise <= 2 * trial.price + trial.error + math.log(20)) != is_needed
        assert network.layer.hardened == (() if is_needed else ("rotation",))
        # What was hardened has no prior any more, and nothing to learn.
        assert evidence.penalty().requires_grad == is_needed
        evidence.update(inputs)
        assert len(evidence.table()) == is_needed
    assert shares[1] > 3 * shares[0]


@pytest.mark.whole
@pytest.mark.parametrize(("beyond", "error", "is_hardened"), [(1, 2, True), (3, 2, False), (-1, 2, True)])
def test_hardening_allows_for_the_error_of_the_rise(
    beyond: int, error: int, is_hardened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rise may be above twice the price and log 20 by as much as its error."""
    layer, count = soft_regular_layer(), 16
    inputs = layer.in_type(torch.randn(count, 4, 3, 3, dtype=torch.float64))
    evidence = SoftnessEvidence(layer, 100, "gaussian")
    evidence.update(inputs, torch.randn_like(layer(inputs).tensor))
    price = evidence._posterior(evidence._groups)[1]
    mean, deviation = (2 * price + math.log(20) + beyond) / 100, error / 100 * count**0.5
    rises = mean + deviation * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(count // 2)
    losses = iter([torch.zeros_like(rises), rises])
    monkeypatch.setattr(evidence, "_losses", lambda *_: next(losses))
    (trial,) = evidence.harden(inputs, torch.zeros(count))
    assert (trial.price, trial.error) == (pytest.approx(price), pytest.approx(error))
    assert trial.rise == pytest.approx(2 * price + math.log(20) + beyond)
    assert trial.is_hardened == is_hardened == bool(layer.hardened)


def test_hardening_goes_subgroup_by_subgroup_and_then_layer_by_layer() -> None:
    """The first layer has to be soft; the second has hardly any softness, and it goes."""
    torch.manual_seed(1)
    image, hidden = battery.field_type("C4", "trivial"), battery.field_type("C4", "regular")
    network = enn.SequentialModule(
        RelaxedR2Conv(image, hidden, 5, initial_softness=0.5),
        RelaxedR2Conv(hidden, hidden, 1, initial_softness=1e-9),
        enn.GroupPooling(hidden),
    )
    inputs = network.in_type(torch.randn(100, 1, 5, 5))
    with torch.no_grad():
        targets = network(inputs).tensor + 1e-3 * torch.randn(100, 1, 1, 1)
    evidence = SoftnessEvidence(network, 100, "gaussian")
    evidence.update(inputs, targets)
    report = evidence.harden(inputs, targets)
    assert [(trial.layers, trial.is_hardened) for trial in report] == [
        (("0", "1"), False),
        (("1",), True),
        (("0",), False),
    ]
    assert [layer.hardened for layer in (network[0], network[1])] == [(), ("rotation",)]
    assert [row.layer for row in evidence.table()] == ["0"]


def test_layers_that_were_hardened_may_be_soft_again() -> None:
    network, inputs = Classifier(), images(20)
    evidence = SoftnessEvidence(network, 100)
    evidence.update(inputs)
    before, penalty = list(evidence.table()), evidence.penalty().item()
    labels = torch.randint(0, 3, (20,))
    trials = list(evidence.harden(inputs, labels))
    network.first.hardened = network.second.hardened = ()
    assert list(evidence.harden(inputs, labels)) == trials
    network.first.hardened = network.second.hardened = ()
    evidence.load_state_dict(evidence.state_dict())
    assert list(evidence.table()) == before
    assert evidence.penalty().item() == penalty


def test_layers_stay_as_they_are_where_a_trial_fails() -> None:
    network = Classifier()
    evidence = SoftnessEvidence(network, 100)
    evidence.update(images(20))
    labels = torch.randint(0, 3, (20,))
    evidence._losses(images(20), labels)
    network.second.register_forward_hook(lambda layer, *_: 1 / (not network.first.hardened) and None)
    with pytest.raises(ZeroDivisionError):
        evidence.harden(images(20), labels)
    assert network.first.hardened == network.second.hardened == ()


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


# What training loops have around them.


def test_modes_and_statistics_of_batch_norm_are_left_as_they_were() -> None:
    network = Classifier().train()
    network.head.eval()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    evidence = SoftnessEvidence(network, 100)
    evidence.update(images(20))
    evidence.harden(images(20), torch.randint(0, 3, (20,)))
    assert network.training
    assert network.norm.training
    assert not network.head.training
    after = network.state_dict()
    assert all(torch.equal(after[name], value) for name, value in state.items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_other_random_numbers_are_left_as_they_were() -> None:
    evidence = SoftnessEvidence(Classifier(), 100)
    before = torch.get_rng_state()
    evidence.update(torch.ones(20, 8, 5, 5, dtype=torch.float64))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("context", ["autocast", "no_grad", "single"])
def test_updates_are_the_same_where_casts_or_gradients_are_off(context: str) -> None:
    networks = Classifier().float(), Classifier().float()
    networks[1].load_state_dict(networks[0].state_dict())
    inputs, tables = images(20).float(), []
    contexts = {"autocast": torch.autocast("cpu", torch.bfloat16), "no_grad": torch.no_grad()}
    for network in networks:
        evidence = SoftnessEvidence(network, 100)
        if context == "single":
            network.double() if network is networks[0] else None
            evidence.update(inputs.double() if network is networks[0] else inputs)
        elif network is networks[1]:
            with contexts[context]:
                evidence.update(inputs)
        else:
            evidence.update(inputs)
        assert evidence.penalty().requires_grad
        tables.append([row.determined for row in evidence.table()])
    # Of float32 against float64 where the network is cast, else of the same computation.
    assert tables[1] == pytest.approx(tables[0], rel=1e-3 if context == "single" else 1e-9)


def test_state_goes_on_as_if_nothing_had_been_in_between() -> None:
    network, inputs = Classifier(), images(20)
    evidence = SoftnessEvidence(network, 100)
    evidence.update(inputs)
    state = copy.deepcopy(evidence.state_dict())
    other = SoftnessEvidence(network, 100, seed=5)
    other.load_state_dict(state)
    assert other.penalty() == evidence.penalty() > 0
    assert list(other.table()) == list(evidence.table())
    for each in (evidence, other):
        each.update(inputs)
    assert list(other.table()) == list(evidence.table())


def test_penalty_waits_for_no_device() -> None:
    with pretend() as device:
        network = Classifier()
        evidence = SoftnessEvidence(network, 100)
        network.to(DEVICE)
        evidence.update(images(20).to(DEVICE))
        device.waits.clear()
        penalty = evidence.penalty()
        assert device.has(penalty)
        penalty.backward()
        assert not device.waits


@pytest.mark.parametrize("likelihood", ["binary", "gaussian", "categorical"])
def test_every_likelihood_takes_outputs_of_any_shape(likelihood: str) -> None:
    """Pixels are outputs of their own: the penalty is that of a mean over them."""
    image = battery.field_type("C4", "trivial")
    layer = RelaxedR2Conv(image, battery.field_type("C4", "trivial + trivial"), 3, padding=1, initial_softness=0.1)
    inputs = image(torch.randn(20, 1, 5, 5))
    targets = {
        "binary": torch.randint(0, 2, (20, 2, 5, 5)).float(),
        "gaussian": torch.randn(20, 2, 5, 5),
        "categorical": torch.randint(0, 2, (20, 5, 5)),
    }[likelihood]
    evidence = SoftnessEvidence(layer, 20, likelihood)
    evidence.update(inputs, targets)
    (row,) = evidence.table()
    outputs = {"binary": 50, "gaussian": 50, "categorical": 25}[likelihood]
    energy = row.precision * layer.kernel.modulation.weights.detach().square().sum().item() / 2
    with torch.no_grad():
        noise = functional.mse_loss(layer(inputs).tensor, torch.zeros(()) + targets).item() if outputs == 50 else 0.0
    unit = 2 * noise / evidence.state_dict()["weight"] if likelihood == "gaussian" else 1.0
    assert evidence.penalty().item() == pytest.approx(energy * unit / (20 * outputs), rel=1e-5)  # float32


def test_distributed_wrapper_is_looked_into(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        network = Classifier()
        wrapped = SoftnessEvidence(nn.parallel.DistributedDataParallel(network), 100)
        plain, inputs = SoftnessEvidence(network, 100), images(20)
        wrapped.update(inputs)
        plain.update(inputs)
        assert list(wrapped.table()) == list(plain.table())
    finally:
        distributed.destroy_process_group()


def _update_with_a_part(rank: int, network: nn.Module, inputs: Tensor, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    network = copy.deepcopy(network)
    evidence = SoftnessEvidence(network, 1000, "binary")
    # The processes have parts of unequal sizes.
    own = inputs[:12] if rank == 0 else inputs[12:]
    evidence.update(own)
    targets = (own.mean((1, 2, 3)) > 0).double()[:, None]
    state = evidence.state_dict()
    trials = [(trial.rise, trial.error, trial.is_hardened) for trial in evidence.harden(own, targets)]
    torch.save({"state": state, "trials": trials}, f"{folder}/{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.slow
def test_processes_learn_together_what_one_learns_of_all_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One logit: the curvature does not depend on what is drawn."""
    network, inputs = Classifier(classes=1), images(40)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(_update_with_a_part, args=(network, inputs, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert first["state"]["precision"] == second["state"]["precision"]
    assert first["trials"] == second["trials"]
    evidence = SoftnessEvidence(network, 1000, "binary")
    evidence.update(inputs)
    expected = evidence.state_dict()
    for key in ("precision", "determined"):
        assert first["state"][key] == pytest.approx(expected[key], rel=CLOSED_FORM)
    trials = evidence.harden(inputs, (inputs.mean((1, 2, 3)) > 0).double()[:, None])
    assert [of[:2] for of in first["trials"]] == [pytest.approx((of.rise, of.error), rel=CLOSED_FORM) for of in trials]


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"network": 3}, TypeError, "network must be a torch.nn.Module"),
        ({"network": nn.Linear(1, 1)}, ValueError, "network has no relaxed layer"),
        ({"observations": 0}, ValueError, "observations must be >= 1, got 0"),
        ({"observations": 1.5}, TypeError, "observations must be an integer, got 1.5"),
        ({"likelihood": "poisson"}, ValueError, "likelihood must be one of .*, got 'poisson'"),
        ({"seed": -1}, ValueError, "seed must be >= 0, got -1"),
    ],
)
def test_bad_argument_is_named(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SoftnessEvidence(**{"network": Classifier(), "observations": 100, **arguments})


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (images(9), ValueError, "inputs must be 10 or more, and no more than observations .=20., got 9"),
        (images(21), ValueError, "inputs must be 10 or more, and no more than observations .=20., got 21"),
        ((), ValueError, "inputs must have a batch, got an empty tuple"),
        (3, TypeError, "inputs must be a tensor or a GeometricTensor, got int"),
        (images(12) * math.nan, ValueError, "inputs: a gradient of the network's output is not finite"),
    ],
)
def test_bad_inputs_are_named(inputs: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SoftnessEvidence(Classifier(), 20).update(inputs)


def test_outputs_that_do_not_fit_the_likelihood_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"'categorical' is of outputs \(batch, classes, …\) with two .*, got \(12, 1\)"
    ):
        SoftnessEvidence(Classifier(classes=1), 20).update(images(12))
    gaussian = SoftnessEvidence(Classifier(), 20, "gaussian")
    with pytest.raises(ValueError, match="targets must be given where likelihood='gaussian'"):
        gaussian.update(images(12))
    with pytest.raises(ValueError, match=r"targets must have the shape of the outputs, \(12, 3\), got \(12, 1\)"):
        gaussian.update(images(12), torch.zeros(12, 1))
    with pytest.raises(ValueError, match=r"targets must be as many as inputs .=12., got 11"):
        gaussian.update(images(12), torch.zeros(11, 3))


def test_network_that_returns_several_things_is_refused() -> None:
    network = Classifier()
    network.register_forward_hook(lambda module, given, output: (output, output))
    with pytest.raises(TypeError, match="network: its output must be a tensor or a GeometricTensor, got tuple"):
        SoftnessEvidence(network, 20).update(images(12))


def test_what_needs_an_update_says_so() -> None:
    evidence = SoftnessEvidence(Classifier(), 20)
    labels = torch.zeros(12, dtype=torch.long)
    with pytest.raises(RuntimeError, match="harden needs what an update learns"):
        evidence.harden(images(12), labels)
    with pytest.raises(RuntimeError, match="log_evidence needs what an update learns"):
        evidence.log_evidence(images(12), labels)


def test_state_of_other_layers_is_refused() -> None:
    evidence = SoftnessEvidence(Classifier(), 20)
    with pytest.raises(ValueError, match="state must have"):
        evidence.load_state_dict({})
    with pytest.raises(TypeError, match="state must be a dict"):
        evidence.load_state_dict(3)
    state = SoftnessEvidence(Classifier(relax={"rotation": 0.25}), 20).state_dict()
    with pytest.raises(ValueError, match="state must have precisions of"):
        evidence.load_state_dict(state)
