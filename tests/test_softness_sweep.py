"""Accuracy as a gate makes a network less soft, and a gate that is written into the weights."""

import copy
from statistics import fmean

import pytest
import small
import small_networks as forms
import torch
from errors import DECOMPOSED, relative_error
from escnn import gspaces
from escnn import nn as enn
from small_networks import answer, layer_of

from escnn_relaxed import RelaxedR2Conv, gate_softness, harden_network, robustness_report
from escnn_relaxed.measure import softness_sweep
from escnn_relaxed.network import write_gate

SPACE = gspaces.rot2dOnR2(4)
IMAGE, CLASSES = (enn.FieldType(SPACE, [SPACE.trivial_repr] * count) for count in (1, 3))


def classifier() -> RelaxedR2Conv:
    torch.manual_seed(0)
    return RelaxedR2Conv(IMAGE, CLASSES, 5, initial_softness=0.3)


def test_sweep_is_the_robustness_under_each_gate() -> None:
    network, images = classifier(), torch.randn(60, 1, 5, 5)
    labels = network(IMAGE(images)).tensor.flatten(1).argmax(1)
    with forms.left_alone(network):
        sweep = softness_sweep(network, images, labels, gates=(0, 0.5, 1))
    strict, half, whole = sweep.rows
    assert (strict.accuracy, whole.accuracy) == (strict.transformed, 1.0)
    assert strict.accuracy == robustness_report(harden_network(network), images, labels).accuracy < 1
    assert whole.report == robustness_report(network, images, labels)
    assert whole.worst == min(row.accuracy for row in whole.report.rows) <= whole.transformed < 1
    assert whole.transformed == fmean(row.accuracy for row in whole.report.rows)
    assert strict.accuracy <= half.accuracy <= 1
    lines = str(sweep).splitlines()
    assert [line.split()[0] for line in lines] == ["gate", "0", "0.5", "1"]
    (row,) = softness_sweep(network, images, labels, "rotation", gates=(1,), angles=(90,), elements=()).rows
    assert row.accuracy == 1
    assert len(row.report.rows) == 1


def test_sweep_refuses_what_it_cannot_measure() -> None:
    images, labels = torch.randn(4, 1, 5, 5), torch.zeros(4, dtype=torch.long)
    for arguments, message in (
        ({"gates": ()}, "gates must have a number, got none"),
        ({"elements": ()}, "nothing to measure"),
    ):
        with pytest.raises(ValueError, match=message):
            softness_sweep(classifier(), images, labels, **arguments)
    with pytest.raises(TypeError, match="gates must be a number, got 'half'"):
        softness_sweep(classifier(), images, labels, gates=("half",))


WRITABLE = ("soft", "learned", "weighted", "residual", "transposed", "volumes", "linear")


@pytest.mark.parametrize("form", WRITABLE)
def test_written_gate_is_the_gate_where_one_factor_relaxes_a_layer(form: str) -> None:
    layer = layer_of(form)
    for gate in (0.4, 1.5):
        with gate_softness(layer, gate):
            expected, softness = answer(layer), layer.softness().item()
        write_gate(layer, gate)
        assert layer.softness().item() == pytest.approx(softness, rel=1e-9)
        assert relative_error(answer(layer), expected) <= DECOMPOSED


@pytest.mark.parametrize("form", ["soft in translation", "transposed, in translation", "soft, continuous"])
def test_written_gate_has_the_softness_of_the_gated_layer_elsewhere(form: str) -> None:
    layer = layer_of(form)
    with gate_softness(layer, 0.5):
        softness = layer.softness().item()
    write_gate(layer, 0.5)
    assert layer.softness().item() == pytest.approx(softness, rel=1e-3)


def test_a_gate_that_cannot_be_written_changes_nothing() -> None:
    network = forms.network_of(small.soft_regular_layer(), small.soft_regular_layer(relax={}))
    strict = network[2].filter_bank().detach().clone()
    write_gate(network, 0.5)
    assert torch.equal(network[2].filter_bank(), strict)
    for gate in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="gate must be above 0 and finite"):
            write_gate(network, gate)
    # The window of a partial layer has no soft weights that could be scaled.
    mixed = torch.nn.ModuleList([small.soft_regular_layer(), layer_of("partial")])
    before = copy.deepcopy(mixed.state_dict())
    with pytest.raises(ValueError, match="set_narrowing"):
        write_gate(mixed, 0.5)
    with gate_softness(network, 0.5), pytest.raises(RuntimeError, match="remove it first"):
        write_gate(network, 0.5)
    assert all(torch.equal(value, before[name]) for name, value in mixed.state_dict().items())


def test_a_gate_on_one_layer_of_a_network_is_refused_and_changes_nothing() -> None:
    network = forms.network_of(small.soft_regular_layer(), small.soft_regular_layer())
    before = copy.deepcopy(network.state_dict())
    with gate_softness(network, {"2": 0.5}), pytest.raises(RuntimeError, match="remove it first"):
        write_gate(network, 0.5)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
