"""Under a gate on softness every method of a layer answers for the gated kernel, or refuses."""

import copy
from typing import Any

import pytest
import small
import small_networks as forms
import torch
from errors import ROUNDING, SINGLE_REORDERED, relative_error
from small_networks import answer, answer_in_eval, features_of, layer_of
from torch import Tensor, nn

from escnn_relaxed import (
    RelaxedR2Conv,
    export_network,
    gate_softness,
    harden_network,
    relax_network,
    relaxation_summary,
)
from escnn_relaxed.measure import relaxation_scalars
from escnn_relaxed.network import to_escnn

EACH = torch.tensor([0.2, 0.6], dtype=torch.float64)
A_FEW = pytest.mark.parametrize("form", ["soft", "soft in translation", "transposed, in translation", "linear"])


@forms.EVERY_EXPORTED
def test_export_has_a_constant_gate(form: str) -> None:
    layer = layer_of(form)
    features = features_of(layer)
    names = ["rotation"] if "rotation" in layer.relaxed_subgroups else []
    with gate_softness(layer, 0.4), gate_softness(layer, torch.tensor(0.7, dtype=torch.float64), *names):
        expected, exported = answer_in_eval(layer), layer.export()
    assert relative_error(exported(features).detach(), expected) <= ROUNDING
    with gate_softness(layer, EACH), pytest.raises(RuntimeError, match="has a value for each input"):
        layer.export()


def test_exported_network_has_a_constant_gate() -> None:
    network = forms.mixed_network().eval()
    with gate_softness(network, 0.3):
        features, (expected, found) = forms.random_input(network.in_type, 9, 9, dtype=torch.float32), ({}, {})
        exported = export_network(network)
        with torch.no_grad():
            expected, found = network(network.in_type(features)).tensor, exported(features)
    assert relative_error(found, expected) <= SINGLE_REORDERED
    with gate_softness(network, EACH.float()), pytest.raises(RuntimeError, match="has a value for each input"):
        export_network(network)


@pytest.mark.parametrize("form", forms.SOFT_IN_TRANSLATION)
def test_filter_banks_are_on_the_line_between_the_layer_and_its_strict_part(form: str) -> None:
    layer = layer_of(form)
    whole, strict = layer.filter_banks((4, 3)), harden_network(layer).filter_bank()
    with gate_softness(layer, 0.3):
        found = layer.filter_banks((4, 3))
    assert relative_error(found.detach(), (strict + 0.3 * (whole - strict)).detach()) <= ROUNDING
    with gate_softness(layer, EACH), pytest.raises(RuntimeError, match="filter_banks: a gate on softness has a value"):
        layer.filter_banks((4, 3))


@pytest.mark.parametrize("form", ["soft", "linear", "transposed", "volumes"])
def test_filter_follows_a_number_and_refuses_a_gate_for_each_input(form: str) -> None:
    layer = layer_of(form)
    whole, strict = layer.filter_bank().detach(), harden_network(layer).filter_bank().detach()
    gated = strict + 0.3 * (whole - strict)
    name = "matrix" if form == "linear" else "filter"
    with gate_softness(layer, 0.3):
        for found in (layer.filter_bank(), layer.expand_parameters()[0], getattr(layer, name)):
            assert relative_error(found.detach(), gated) <= ROUNDING
    with gate_softness(layer, EACH):
        for call in (layer.filter_bank, layer.expand_parameters, lambda: getattr(layer, name)):
            with pytest.raises(RuntimeError, match="has a value for each input here"):
                call()


class OwnBank(RelaxedR2Conv):
    """A layer that computes with twice its filter bank."""

    def expand_parameters(self) -> tuple[Tensor, Tensor | None]:
        filter_bank, bias = super().expand_parameters()
        return 2 * filter_bank, bias


def test_layer_with_an_expansion_of_its_own_takes_one_number() -> None:
    fields = small.field_type("C4", "regular")
    layer = OwnBank(fields, fields, 3, padding=1, initial_softness=0.3, bias=False).double()
    plain = RelaxedR2Conv(fields, fields, 3, padding=1, initial_softness=0.3, bias=False).double()
    plain.load_state_dict(layer.state_dict())
    with gate_softness(layer, 0.3), gate_softness(plain, 0.3):
        assert relative_error(answer(layer), 2 * answer(plain)) <= ROUNDING
    with gate_softness(layer, EACH), pytest.raises(RuntimeError, match="has a value for each input here"):
        answer(layer)


@A_FEW
@pytest.mark.parametrize("gate", [0.5, EACH], ids=["number", "each"])
def test_what_changes_or_describes_the_weights_refuses_gates(form: str, gate: Any) -> None:
    layer = layer_of(form)
    before = copy.deepcopy(layer.state_dict())
    with gate_softness(layer, gate):
        for call in (
            lambda: layer.set_softness(0.1),
            lambda: layer.element_errors([layer.in_type.fibergroup.identity]),
        ):
            with pytest.raises(RuntimeError, match="a gate is on the softness of this layer: remove it first"):
                call()
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_tables_show_the_gated_softness_of_one_number() -> None:
    layer = layer_of("soft")
    s = layer.softness().item()
    with gate_softness(layer, 0.5):
        (row,) = relaxation_summary(layer).rows
        assert row.softness["all"] == pytest.approx(0.25 * s / (1 - 0.75 * s))
        assert relaxation_scalars(layer)["softness/network"] == row.softness["all"]
    with gate_softness(layer, EACH), pytest.raises(RuntimeError, match="relaxation_summary: a gate on softness has"):
        relaxation_summary(layer)


@A_FEW
@pytest.mark.parametrize("how", forms.COPIES)
def test_copies_have_the_gate_and_share_nothing_of_it(form: str, how: str) -> None:
    layer = layer_of(form)
    learned = torch.tensor([0.2, 0.6], dtype=torch.float64, requires_grad=True)
    for gate in (0.5, EACH, learned * 1):
        with gate_softness(layer, gate):
            expected, other = answer(layer), forms.COPIES[how](layer)
        assert layer.gates == ()
        assert torch.equal(answer(other), expected)
        other.gates = ()
        assert torch.equal(answer(other), answer(layer))


@A_FEW
def test_hardened_networks_have_no_gate_on_what_is_strict(form: str) -> None:
    layer = layer_of(form)
    gate = torch.tensor(0.5, dtype=torch.float64, requires_grad=True) * 1
    with gate_softness(layer, gate), gate_softness(layer, 0.5, "rotation"):
        hardened = harden_network(layer)
        assert hardened.gates == ()
        assert torch.equal(answer(hardened), answer(harden_network(layer_of(form))))
        assert len(harden_network(layer, "rotation").gates) == 1
        with pytest.raises(ValueError, match="is not hardened"):
            to_escnn(layer)
        strict = to_escnn(hardened)
        assert not hasattr(strict, "gates")


def test_strict_layers_that_are_relaxed_start_without_a_gate() -> None:
    network = forms.network_of(small.soft_regular_layer(relax={}), small.soft_regular_layer())
    with gate_softness(network, 0.5):
        relaxed = relax_network(network, relax="rotation")
    assert relaxed[0].gates == ()
    assert [gate.value for gate in relaxed[2].gates] == [0.5]


# --- exported programs with the gate as an input ----------------------------------------------------------------------


class WithGate(nn.Module):
    """A network on plain tensors with the gate of each image as a second input."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, gate: Tensor) -> Tensor:
        with gate_softness(self.network, gate):
            found: Tensor = self.network(self.network.in_type(images)).tensor
        return found


@pytest.mark.parametrize("form", ["soft", "soft in translation"])
def test_exported_program_takes_the_gate_as_a_second_input(form: str) -> None:
    layer = layer_of(form).eval()
    features, gate, other = features_of(layer), EACH, torch.tensor([0.9, -0.3], dtype=torch.float64)
    program = torch.export.export(WithGate(layer), (features, gate), strict=False).module()
    for each in (gate, other):
        with torch.no_grad():
            assert relative_error(program(features, each), WithGate(layer)(features, each)) <= ROUNDING
    assert layer.gates == ()
