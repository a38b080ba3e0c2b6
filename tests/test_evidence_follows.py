"""The evidence follows its network: what is hardened, frozen or shared by hand, groups of one name, saved states."""

import copy
import math

import pytest
import small
import torch
from evidence_networks import Classifier, images
from operations import CountOperations
from small import soft_regular_layer
from torch import nn

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
from escnn_relaxed.kernel import TiedKernel, WeightGroup
from escnn_relaxed.learning.soft_gradients import soft_groups


def updated(network: nn.Module, observations: int = 100) -> SoftnessEvidence:
    evidence = SoftnessEvidence(network, observations)
    evidence.update(images(20))
    return evidence


def energies(network: nn.Module, evidence: SoftnessEvidence) -> dict[str, float]:
    """δ‖α‖² of each group, by its key, with δ as it was saved."""
    precision, found = evidence.state_dict()["precision"], {}
    for group in soft_groups(network):
        squares = [parameter.detach().flatten()[on].square().sum().item() for parameter, on in group.weights.entries]
        found[group.key] = precision[group.key] * sum(squares)
    return found


def test_what_is_hardened_by_hand_leaves_penalty_decay_and_table_at_once() -> None:
    network = Classifier()
    evidence = updated(network)
    before = list(evidence.table())
    network.first.harden("rotation")
    left = energies(network, evidence)
    assert list(left) == ["first/reflection", *(f"second/{row.subgroup}" for row in before[3:])]
    assert evidence.penalty().item() == pytest.approx(sum(left.values()) / 200)
    known = [(row.layer, row.subgroup, row.determined, row.precision) for row in before]
    assert [(row.layer, row.subgroup, row.determined, row.precision) for row in evidence.table()] == [
        known[1],
        *known[3:],
    ]
    weights = network.first.kernel.modulation.weights
    weights.grad, start = None, weights.detach().clone()
    evidence.penalty().backward()
    kept = weights.grad != 0
    evidence.decay(0.1)
    assert torch.equal(start[~kept], weights[~kept])
    assert not torch.equal(start[kept], weights[kept])
    # Soft again, they count as before.
    network.first.hardened = ()
    assert [row.determined for row in evidence.table()] == [row.determined for row in before]


def test_a_penalty_has_as_many_operations_after_hardening_and_waits_for_nothing() -> None:
    network = Classifier()
    evidence = updated(network)
    counts = []
    for subgroups in ((), ("rotation",)):
        network.first.harden(*subgroups) if subgroups else None
        evidence.penalty()
        with CountOperations() as count:
            evidence.penalty()
        assert not count.waits
        counts.append(count.operations.total())
    # Fewer groups have fewer entries to take.
    assert counts[1] < counts[0] <= 12


def test_weights_that_learn_again_count_again() -> None:
    network = Classifier()
    evidence = updated(network)
    penalty, weights = evidence.penalty().item(), network.second.kernel.modulation.weights
    weights.requires_grad_(False)
    assert evidence.penalty().item() < penalty
    weights.requires_grad_()
    assert evidence.penalty().item() == penalty


def test_a_layer_that_takes_the_weights_of_another_is_seen() -> None:
    """The parameters are as before, and another layer has them."""
    network = Classifier()
    evidence = updated(network)
    before, first = evidence.penalty().item(), network.first
    first.harden()
    assert evidence.penalty().item() < before
    network.first = copy.copy(first)
    network.first.hardened = ()
    assert evidence.penalty().item() == before


def test_shared_weights_keep_what_was_learned_while_a_layer_is_soft() -> None:
    network = Classifier()
    network.second.kernel.modulation.weights = network.first.kernel.modulation.weights
    evidence = updated(network)
    before = evidence.penalty().item()
    network.first.harden()
    assert {row.layer for row in evidence.table()} == {"second"}
    assert evidence.penalty().item() == before > 0
    saved = evidence.state_dict()
    evidence.symmetry_profile(2)
    evidence.harden(images(20), torch.randint(0, 3, (20,)))
    network.second.hardened = ()
    evidence.load_state_dict(saved)
    assert evidence.penalty().item() == before
    # States of older versions have the name of the layer that was soft.
    older = {key.replace("first", "second"): of for key, of in saved["precision"].items()}
    evidence.load_state_dict({**saved, "precision": older})
    assert evidence.penalty().item() == before


@pytest.mark.parametrize("by_hand", [("rotation",), ("reflection",), ("rotation", "reflection")])
def test_profile_hardening_and_states_work_after_a_layer_is_hardened_by_hand(by_hand: tuple[str, ...]) -> None:
    network, inputs = Classifier(), images(20)
    evidence = updated(network)
    state = evidence.state_dict()
    network.first.harden(*by_hand)
    rows = evidence.symmetry_profile(3).rows
    assert all(row.deviation >= 0 for row in rows)
    if len(by_hand) == 2:
        assert {(row.error, row.deviation) for row in rows if row.layer == "first"} == {(0, 0)}
    report = evidence.harden(inputs, torch.randint(0, 3, (20,)))
    assert all(trial.layers != ("first",) for trial in report if trial.subgroup in by_hand)
    network.second.hardened = ()
    evidence.load_state_dict(state)
    assert evidence.penalty().item() == pytest.approx(sum(energies(network, evidence).values()) / 200)
    network.first.hardened = ()
    evidence.update(inputs)
    network.first.harden(*by_hand)
    evidence.update(inputs)
    # What was learned of the hardened weights is of an older update, so a profile with them needs a new one.
    network.first.hardened = ()
    with pytest.raises(RuntimeError, match="symmetry_profile needs what an update learns"):
        evidence.symmetry_profile(3)
    evidence.update(inputs)
    evidence.symmetry_profile(3)


@pytest.mark.parametrize("by_hand", [True, False])
def test_where_all_is_strict_nothing_is_learned_and_nothing_raised(by_hand: bool) -> None:
    network, inputs, labels = Classifier(), images(20), torch.randint(0, 3, (20,))
    evidence = updated(network)
    if by_hand:
        network.first.harden()
        network.second.harden()
    else:
        with torch.no_grad():
            for layer in (network.first, network.second):
                layer.kernel.modulation.weights.mul_(1e-9)
        evidence.update(inputs)
        evidence.harden(inputs, labels)
        assert network.first.hardened == network.second.hardened == ("rotation", "reflection")
    state = evidence.state_dict()
    evidence.update(inputs)
    evidence.check(inputs)
    evidence.decay(0.1)
    assert (evidence.penalty().item(), len(evidence.table()), len(evidence.harden(inputs, labels))) == (0, 0, 0)
    assert {row.error for row in evidence.symmetry_profile(2).rows} == {0}
    assert evidence.state_dict()["precision"] == state["precision"]
    evidence.load_state_dict(state)
    assert evidence.penalty() == 0


class Halves(TiedKernel):
    """Weights in two groups of each subgroup, as a kernel of two parts has."""

    def weight_groups(self) -> list[WeightGroup]:
        halves = []
        for group in super().weight_groups():
            for part in range(2):
                entries = [(parameter, places[part::2]) for parameter, places in group.entries]
                halves.append(group._replace(entries=entries))
        return halves


def test_groups_of_one_subgroup_have_a_precision_each() -> None:
    fields = small.field_type("C4", "regular")
    layer = RelaxedR2Conv(fields, fields, 3, kernel=Halves, initial_softness=0.1).double()
    (parameter, first), (_, second) = (group.entries[0] for group in layer.kernel.weight_groups())
    with torch.no_grad():
        parameter.view(-1)[first] = 0.01
        parameter.view(-1)[second] = 3.0
    inputs = fields(torch.randn(20, 4, 3, 3, dtype=torch.float64))
    evidence = SoftnessEvidence(layer, 100)
    evidence.update(inputs)
    rows, alpha = evidence.table(), parameter.detach().flatten()
    assert [row.subgroup for row in rows] == ["rotation", "rotation"]
    assert rows[0].precision > 2 * rows[1].precision
    pairs = zip(rows, (alpha[first], alpha[second]), strict=True)
    energy = sum(row.precision * of.square().sum().item() for row, of in pairs)
    assert evidence.penalty().item() == pytest.approx(energy / 200)
    state = evidence.state_dict()
    assert sorted(state["precision"]) == ["/rotation", "/rotation/2"]
    other = SoftnessEvidence(layer, 100)
    other.load_state_dict(state)
    assert other.penalty() == evidence.penalty()
    # A state of an older version has one number for both.
    older = {**state, "precision": {"/rotation": 7.0}, "determined": {"/rotation": 1.0}}
    other.load_state_dict(older)
    assert [(row.precision, row.determined) for row in other.table()] == [(7.0, 1.0)] * 2
    # A part that is hardened or frozen does not change the names of others.
    assert [group.key for group in soft_groups(layer)] == ["/rotation", "/rotation/2"]


def test_keys_are_those_of_saved_states() -> None:
    """Of layer and subgroup, where a layer has one group of it."""
    network = Classifier()
    names = ("rotation", "reflection", "rotation × reflection")
    expected = {f"{layer}/{name}" for layer in ("first", "second") for name in names}
    assert {group.key for group in soft_groups(network)} == expected
    evidence = SoftnessEvidence(soft_regular_layer(), 100)
    assert evidence.state_dict()["precision"].keys() == {"/rotation"}
    assert all(math.isnan(row.determined) for row in evidence.table())
