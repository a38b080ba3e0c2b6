"""The evidence in training loops, what these have around them, and bad input."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import small as battery
import torch
from escnn import nn as enn
from evidence_networks import CLOSED_FORM, Classifier, images
from pretend_device import DEVICE, pretend
from torch import Tensor, distributed, nn
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence

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


def test_sequence_takes_plain_tensors_as_fields() -> None:
    layer = Classifier().first
    network = enn.SequentialModule(layer, enn.ReLU(layer.out_type))
    inputs, found = images(20), []
    for given in (inputs, network.in_type(inputs)):
        evidence = SoftnessEvidence(network, 100)
        evidence.update(given)
        found.append(evidence.table()[0].determined)
    assert found[0] == found[1]


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
