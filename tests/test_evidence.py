"""Softness by the evidence of the data, against Bayesian linear regression and loops; likelihoods, and training."""

import copy
import math
from pathlib import Path
from typing import Any

import baseline_layers
import pytest
import small
import small_networks
import torch
from errors import ROUNDING
from escnn import nn as enn
from evidence_networks import CLOSED_FORM, Classifier, entries, images
from pretend_device import DEVICE, pretend
from small import soft_transposed_layer, volume_layer, volume_type
from torch import Tensor, nn
from torch.nn import functional
from two_processes import in_two_processes

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
from escnn_relaxed.learning.likelihoods import Likelihood
from escnn_relaxed.learning.posterior import occam_factor_of
from escnn_relaxed.learning.prior import LEAST_PRECISION

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
        rest, before = self.targets - self.offset, 0 * delta
        while (delta - before).norm() > 1e-15 * delta.norm():
            before = delta
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

    def occam_factor(self, delta: Tensor, alpha: Tensor, noise: float) -> float:
        """By how much log p(targets) with α integrated out is less than at α."""
        rest = self.targets - self.offset - self.design @ alpha
        at_alpha = -(rest.square() / noise + math.log(2 * math.pi * noise)).sum() / 2
        covariance = self.design / delta[self.number] @ self.design.mT
        covariance = covariance + noise * torch.eye(len(covariance), dtype=torch.float64)
        normal = torch.distributions.MultivariateNormal(self.offset, covariance)
        return float(at_alpha - normal.log_prob(self.targets))


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
    expected = regression.occam_factor(delta, alpha, noise)
    assert occam_factor_of(evidence._present()) == pytest.approx(expected, rel=CLOSED_FORM)


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
    assert occam_factor_of(evidence._present()) == pytest.approx(occam_factor, rel=CLOSED_FORM)


def test_precisions_are_bounded_and_the_penalty_is_not_too_steep() -> None:
    network = Classifier()
    weights = network.second.kernel.modulation.weights
    weights.data.fill_(1e4)
    evidence = SoftnessEvidence(network, 100)
    evidence.update(images(20))
    assert [row.precision for row in evidence.table()][3:] == [LEAST_PRECISION] * 3
    weights.data.fill_(1.0)
    state = evidence.state_dict()
    evidence.load_state_dict({**state, "precision": dict.fromkeys(state["precision"], 1e6)})
    (slope,) = torch.autograd.grad(evidence.penalty(), weights)
    assert (slope == 10).all()  # the second derivative, so that SGD is stable up to a rate of 0.2


def test_precisions_stay_at_their_prior_where_the_data_say_nothing() -> None:
    """Inputs of zero have no curvature: γ = 0, and δ = n₀ / (‖α‖² + n₀σ₀²)."""
    network = Classifier()
    evidence = SoftnessEvidence(network, 1000)
    evidence.update(torch.zeros_like(images(20)))
    rows = evidence.table()
    squares = [float(of.flatten()[on].detach().square().sum()) for of, on in entries(network)]
    assert all(0 <= row.gamma_per_weight < ROUNDING for row in rows)
    assert [row.precision for row in rows] == pytest.approx([1 / (square + 0.25) for square in squares])


def test_decay_is_the_step_of_plain_sgd_on_the_penalty_and_adam_does_not_speed_it_up() -> None:
    """Where the loss has no slope, Adam takes α to 0 by the penalty alone, and decay leaves it nearly as it is."""
    network = Classifier()
    networks = [network, copy.deepcopy(network), copy.deepcopy(network)]
    evidences, inputs = [SoftnessEvidence(network, 1000) for network in networks], images(20)
    for evidence in evidences:
        evidence.update(inputs)
    before = torch.cat([of.detach().flatten()[on] for of, on in entries(networks[0])])

    evidences[0].penalty().backward()
    torch.optim.SGD(networks[0].parameters(), 0.1).step()
    evidences[1].decay(0.1)
    stepped, decayed = (
        torch.cat([of.detach().flatten()[on] for of, on in entries(network)]) for network in networks[:2]
    )
    assert (stepped - decayed).norm() < ROUNDING * before.norm()
    assert 0 < (decayed - before).norm() < 0.01 * before.norm()

    adam = torch.optim.Adam(networks[2].parameters(), 0.1)
    for _ in range(20):
        adam.zero_grad()
        evidences[2].penalty().backward()
        adam.step()
    lost = torch.cat([of.detach().flatten()[on] for of, on in entries(networks[2])])
    assert lost.norm() < 0.5 * before.norm()
    with pytest.raises(ValueError, match=r"learning_rate must be finite and >= 0, got -0\.1"):
        evidences[1].decay(-0.1)


def test_decay_takes_the_rate_of_each_soft_weight_from_the_optimiser() -> None:
    network = Classifier()
    expected, inputs, evidences = copy.deepcopy(network), images(20), []
    for each in (network, expected):
        evidences.append(SoftnessEvidence(each, 1000))
        evidences[-1].update(inputs)
    first, second = (layer.kernel.modulation.weights for layer in (network.first, network.second))
    before = second.detach().clone()
    # The first group has another rate, and the second layer is not in the optimiser.
    groups = [{"params": [network.head.weight], "lr": 10.0}, {"params": [first], "lr": 0.1}]
    evidences[0].decay(torch.optim.SGD(groups))
    evidences[1].decay(0.1)
    assert torch.equal(first, expected.first.kernel.modulation.weights)
    assert torch.equal(second, before)
    assert not torch.equal(expected.second.kernel.modulation.weights, before)
    frozen = first.requires_grad_(False).clone()
    evidences[0].decay(0.1)
    assert torch.equal(first, frozen)
    assert not torch.equal(second, before)


def test_decay_in_half_precision_knows_the_prior_in_single_precision_after_a_penalty_too() -> None:
    networks = [Classifier()]
    networks.append(copy.deepcopy(networks[0]))
    evidences, inputs = [SoftnessEvidence(network, 1000) for network in networks], images(20)
    for network, evidence in zip(networks, evidences, strict=True):
        evidence.update(inputs)
        network.bfloat16()
    evidences[0].penalty()
    # Little is left of the largest δ, so that its rounding would show.
    rate = 0.9 * 1000 / max(row.precision for row in evidences[0].table())
    for evidence in evidences:
        evidence.decay(rate)
    assert all(torch.equal(*values) for values in zip(*(network.parameters() for network in networks), strict=True))


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


def test_modes_statistics_and_random_numbers_are_left_as_they_were() -> None:
    network = Classifier().train()
    network.head.eval()
    evidence, inputs, labels = SoftnessEvidence(network, 100), images(20), torch.randint(0, 3, (20,))
    with small_networks.left_alone(network, but="hardened_in"):
        evidence.update(inputs)
        evidence.harden(inputs, labels)
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("context", [torch.autocast("cpu", torch.bfloat16), torch.no_grad()], ids=["cast", "no_grad"])
def test_updates_are_the_same_where_casts_or_gradients_are_off(context: torch.autocast) -> None:
    network, inputs = Classifier().float(), images(20).float()
    plain, within = SoftnessEvidence(network, 100), SoftnessEvidence(network, 100)
    plain.update(inputs)
    with context:
        within.update(inputs)
    assert within.penalty().requires_grad
    assert list(within.table()) == list(plain.table())


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


def test_penalty_is_of_the_parameters_that_the_network_has_now() -> None:
    network = Classifier()
    evidence = SoftnessEvidence(network, 100)
    evidence.update(images(20))
    before = evidence.penalty().item()
    state = {name: 2 * value if "modulation.weights" in name else value for name, value in network.state_dict().items()}
    network.load_state_dict(state, assign=True)
    penalty = evidence.penalty()
    assert penalty.item() == pytest.approx(4 * before)
    penalty.backward()
    assert network.first.kernel.modulation.weights.grad is not None
    network.second = copy.deepcopy(network.first)
    evidence.penalty().backward()
    assert network.second.kernel.modulation.weights.grad is not None


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


def _update_with_a_part(rank: int, network: nn.Module, inputs: Tensor) -> dict[str, Any]:
    network = copy.deepcopy(network)
    evidence = SoftnessEvidence(network, 1000, "binary")
    # The processes have parts of unequal sizes.
    own = inputs[:12] if rank == 0 else inputs[12:]
    evidence.update(own)
    # Each decides alone, and so by all inputs.
    targets = (inputs.mean((1, 2, 3)) > 0).double()[:, None]
    state = evidence.state_dict()
    trials = [(trial.rise, trial.error, trial.is_hardened) for trial in evidence.harden(inputs, targets)]
    return {"state": state, "trials": trials}


@pytest.mark.slow
def test_processes_learn_together_what_one_learns_of_all_inputs(tmp_path: Path) -> None:
    """One logit: the curvature does not depend on what is drawn."""
    network, inputs = Classifier(classes=1), images(40)
    first, second = in_two_processes(_update_with_a_part, tmp_path, network, inputs)
    assert first["state"]["precision"] == second["state"]["precision"]
    assert first["trials"] == second["trials"]
    evidence = SoftnessEvidence(network, 1000, "binary")
    evidence.update(inputs)
    expected = evidence.state_dict()
    for key in ("precision", "determined"):
        assert first["state"][key] == pytest.approx(expected[key], rel=CLOSED_FORM)
    trials = evidence.harden(inputs, (inputs.mean((1, 2, 3)) > 0).double()[:, None])
    assert [of[:2] for of in first["trials"]] == [pytest.approx((of.rise, of.error), rel=CLOSED_FORM) for of in trials]


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


@pytest.mark.whole
@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 2, 2)])
@pytest.mark.parametrize("name", ["categorical", "binary", "gaussian"])
def test_losses_are_those_of_torch_in_the_unit_that_is_said(name: str, shape: tuple[int, ...]) -> None:
    output, other = torch.randn(2, *shape, dtype=torch.float64)
    labels, numbers = torch.randint(0, 3, (5, *shape[2:])), torch.rand(shape, dtype=torch.float64)
    loss, targets = {
        "categorical": (functional.cross_entropy, labels),
        "binary": (functional.binary_cross_entropy_with_logits, numbers),
        "gaussian": (functional.mse_loss, numbers),
    }[name]
    likelihood = of(name, 0.5)
    found, beside = likelihood.losses(output, targets), likelihood.losses(other, targets)
    assert found.shape == (5,)
    if name == "gaussian":
        expected = -torch.distributions.Normal(output, 0.5**0.5).log_prob(numbers).flatten(1).sum(1)
        assert torch.allclose(found, expected, rtol=ROUNDING, atol=ROUNDING)
        # The log likelihood of a Gaussian has a constant beside torch's loss.
        rise, expected = (found - beside).mean(), loss(output, targets) - loss(other, targets)
    else:
        rise, expected = found.mean(), loss(output, targets)
    assert (rise * likelihood.unit).item() == pytest.approx(expected.item(), abs=ROUNDING)


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
    # Several outputs of a regression alone are weighted.
    found = []
    for name, outputs in (("gaussian", 3), ("gaussian", 1), ("binary", 3)):
        likelihood = of(name)
        likelihood.losses(torch.zeros(5, outputs), torch.zeros(5, outputs))
        found.append(likelihood.is_weighted)
    assert found == [True, False, False]


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


def test_inputs_and_outputs_that_do_not_fit_are_named() -> None:
    for inputs, message in (
        (images(9), "inputs must be 10 or more, and no more than observations .=20., got 9"),
        (images(21), "inputs must be 10 or more, and no more than observations .=20., got 21"),
        ((), "inputs must have a batch, got an empty tuple"),
        (images(12) * math.nan, "inputs: a gradient of the network's output is not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            SoftnessEvidence(Classifier(), 20).update(inputs)
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
    network = Classifier()
    network.register_forward_hook(lambda module, given, output: (output, output))
    with pytest.raises(TypeError, match="network: its output must be a tensor or a GeometricTensor, got tuple"):
        SoftnessEvidence(network, 20).update(images(12))


def test_calls_out_of_order_and_states_of_other_layers_are_refused() -> None:
    evidence, labels = SoftnessEvidence(Classifier(), 20), torch.zeros(12, dtype=torch.long)
    with pytest.raises(RuntimeError, match="harden needs what an update learns"):
        evidence.harden(images(12), labels)
    with pytest.raises(ValueError, match="state must have"):
        evidence.load_state_dict({})
    with pytest.raises(TypeError, match="state must be a dict"):
        evidence.load_state_dict(3)
    state = SoftnessEvidence(Classifier(relax={"rotation": 0.25}), 20).state_dict()
    with pytest.raises(ValueError, match="state must have precisions of"):
        evidence.load_state_dict(state)
