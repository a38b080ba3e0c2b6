"""The evidence in training loops, what these have around them, the likelihoods of torch's losses, and bad input."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import small
import torch
from errors import ROUNDING
from evidence_networks import CLOSED_FORM, Classifier, images
from pretend_device import DEVICE, pretend
from torch import Tensor, distributed, nn
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
from escnn_relaxed.learning.likelihoods import Likelihood


def test_modes_statistics_and_random_numbers_are_left_as_they_were() -> None:
    network = Classifier().train()
    network.head.eval()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    evidence, inputs, labels = SoftnessEvidence(network, 100), images(20), torch.randint(0, 3, (20,))
    drawn = torch.get_rng_state()
    evidence.update(inputs)
    evidence.harden(inputs, labels)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [module.training for module in (network, network.norm, network.head)] == [True, True, False]
    after = network.state_dict()
    assert all(torch.equal(after[name], value) for name, value in state.items())
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
    # Of float32 against float64.
    evidence = SoftnessEvidence(network.double(), 100)
    evidence.update(inputs.double())
    expected = [row.determined for row in evidence.table()]
    assert [row.determined for row in plain.table()] == pytest.approx(expected, rel=1e-3)


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


@pytest.mark.parametrize("likelihood", ["binary", "gaussian", "categorical"])
def test_every_likelihood_takes_outputs_of_any_shape(likelihood: str) -> None:
    """Pixels are outputs of their own: the penalty is that of a mean over them."""
    image = small.field_type("C4", "trivial")
    layer = RelaxedR2Conv(image, small.field_type("C4", "trivial + trivial"), 3, padding=1, initial_softness=0.1)
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


# Likelihoods.


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


# Bad input.


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
    for name in ("harden", "log_evidence"):
        with pytest.raises(RuntimeError, match=f"{name} needs what an update learns"):
            getattr(evidence, name)(images(12), labels)
    with pytest.raises(ValueError, match="state must have"):
        evidence.load_state_dict({})
    with pytest.raises(TypeError, match="state must be a dict"):
        evidence.load_state_dict(3)
    state = SoftnessEvidence(Classifier(relax={"rotation": 0.25}), 20).state_dict()
    with pytest.raises(ValueError, match="state must have precisions of"):
        evidence.load_state_dict(state)
