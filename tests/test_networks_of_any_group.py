"""Networks of linear maps of any finite group, and of irreps and Fourier fields: all that networks have."""

import pickle

import numpy as np
import pytest
import torch
from any_group import EXACT, all_irreps, build, fourier, regular
from errors import BROKEN, ROUNDING, SINGLE, relative_error
from escnn import group, gspaces
from escnn import nn as enn
from escnn.group import GroupElement, Representation
from escnn.nn import FieldType
from reference import matrix_of
from small import shake
from torch import Tensor, nn

from escnn_relaxed import (
    RelaxedLinear,
    SoftnessEvidence,
    assert_equivariant,
    equivariance_error,
    export_network,
    gate_softness,
    harden_network,
    relax_network,
    relaxation_summary,
    to_escnn,
    which_softness_helps,
)
from escnn_relaxed.measure import symmetry_profile

FORMS = {"Klein": lambda: regular("Klein"), "irreps": lambda: all_irreps("C2 x C3"), "SO(3)": lambda: fourier("SO(3)")}


@pytest.mark.parametrize("name", FORMS)
def test_strict_layer_is_linear_and_its_states_load(name: str) -> None:
    fields = FORMS[name]()
    trained = enn.Linear(fields, fields)
    shake(trained)
    inputs = torch.randn(4, fields.size)
    expected = trained(fields(inputs)).tensor.detach()
    for options in ({"relax": None}, {}):
        layer = RelaxedLinear(fields, fields, **options)
        layer.load_state_dict(trained.state_dict())
        assert relative_error(layer(fields(inputs)).tensor.detach(), expected) <= SINGLE
        assert layer.softness().item() == 0.0


@pytest.mark.parametrize("name", FORMS)
def test_network_is_relaxed_trained_hardened_and_handed_back(name: str) -> None:
    fields = FORMS[name]()
    classes = FieldType(fields.gspace, [fields.gspace.trivial_repr] * 2)
    trained = enn.SequentialModule(enn.Linear(fields, fields), enn.Linear(fields, classes)).double()
    relaxed = relax_network(trained, initial_softness=0.1)
    assert [layer.softness().item() for layer in relaxed] == pytest.approx([0.1, 0.1], abs=1e-6)
    hardened = harden_network(relaxed)
    inputs = fields(torch.randn(4, fields.size, dtype=torch.float64))
    # escnn samples its bases in float32.
    assert relative_error(hardened(inputs).tensor.detach(), trained(inputs).tensor.detach()) <= SINGLE
    for strict in (hardened, to_escnn(hardened)):
        assert max(row.error for row in equivariance_error(strict).rows) <= SINGLE
    assert_equivariant(hardened)
    with pytest.raises(AssertionError, match="soft: 0 in"):
        assert_equivariant(relaxed)
    plain = export_network(relaxed)
    assert [type(module) for module in plain.modules() if not list(module.children())] == [nn.Linear] * 2
    torch.testing.assert_close(plain(inputs.tensor), relaxed(inputs).tensor, rtol=0, atol=ROUNDING)
    again = relax_network(enn.SequentialModule(*map(_built_like, relaxed)))
    again.double().load_state_dict(relaxed.state_dict())
    for copied in (again, pickle.loads(pickle.dumps(relaxed))):
        torch.testing.assert_close(copied(inputs).tensor, relaxed(inputs).tensor, rtol=0, atol=ROUNDING)
    with gate_softness(relaxed, 0.0):
        assert max(row.error for row in equivariance_error(relaxed).rows) <= SINGLE


def _built_like(layer: RelaxedLinear) -> enn.Linear:
    return enn.Linear(layer.in_type, layer.out_type)


def test_hardened_state_of_a_group_without_rotations_loads() -> None:
    layer, other = build(regular("Klein")), build(regular("Klein"))
    layer.harden()
    assert layer.hardened == ("rotation", "reflection", "translation", "group")
    other.load_state_dict(layer.state_dict())
    assert other.hardened == layer.hardened
    assert torch.equal(other.matrix, layer.matrix)
    layer.hardened = ("group",)
    assert layer.relaxed_subgroups == ()
    assert str(relaxation_summary(layer)).splitlines()[1].split()[-1] == "0"


def test_gate_of_the_group_leaves_half_of_the_soft_part() -> None:
    layer = build(regular("C2 x C3"))
    whole, strict = layer.matrix.detach(), harden_network(layer).matrix.detach()
    for names in ((), ("group",)):
        with gate_softness(layer, 0.5, *names):
            assert relative_error(layer.matrix.detach(), (whole + strict) / 2) <= ROUNDING


@pytest.mark.parametrize("fields", [regular("C2 x C3"), all_irreps("C2 x C3")], ids=["regular", "irreps"])
def test_each_element_has_a_row_in_reports(fields: FieldType) -> None:
    layer = build(fields)
    names = ["element (0, 1)", "element (0, 2)", "element (1, 0)", "element (1, 1)", "element (1, 2)"]
    report, profile = equivariance_error(layer), symmetry_profile(layer)
    assert [(row.name, row.subgroup, row.kind) for row in report.rows] == [(name, "group", "exact") for name in names]
    assert [row.name for row in profile.rows] == names
    mean = np.mean([0.0, *(row.error**2 for row in profile.rows)])
    assert mean / 2 == pytest.approx(layer.softness().item(), abs=EXACT)
    kept = build(fields, keep=(2, 1))
    assert symmetry_profile(kept).kept() == ("element (1, 0)",)
    summary = relaxation_summary(kept, data=torch.randn(3, kept.in_type.size, dtype=torch.float64))
    assert summary.rows[0].keep == "(2, 1)"
    assert summary.error > BROKEN
    elements = [g for g in kept.in_type.fibergroup.elements if g in _kept_of(kept)]
    assert equivariance_error(kept, elements=elements).rows[-1].error <= EXACT


def _kept_of(layer: RelaxedLinear) -> list[GroupElement]:
    subgroup, include, _ = layer.in_type.fibergroup.subgroup((2, 1))
    return [include(element) for element in subgroup.elements]


def test_error_of_features_without_a_base_space_is_that_of_their_matrices() -> None:
    of = group.cyclic_group(4)
    fields = FieldType(gspaces.no_base_space(of), [of.regular_representation])
    layer = build(fields, bias=False)
    report = equivariance_error(layer, data=torch.eye(4, dtype=torch.float64))
    quarter = report.rows[0]
    matrix, turn = layer.matrix.detach(), matrix_of(fields, of.element(1))
    assert quarter.name == "rotation 90°"
    distance = (matrix @ turn - turn @ matrix).norm() / matrix.norm()
    assert quarter.error == pytest.approx(distance.item(), rel=EXACT)
    with pytest.raises(ValueError, match="angles and shifts must be left out"):
        equivariance_error(layer, angles=[90.0])


@pytest.mark.parametrize("name", ["Klein", "SO(3)"])
def test_data_say_whether_softness_helps(name: str) -> None:
    torch.manual_seed(0)
    of = group.klein4_group() if name == "Klein" else group.so3_group(1)
    reps: list[Representation] = [of.regular_representation] if name == "Klein" else [of.irrep(0), of.irrep(1)]
    fields = FieldType(gspaces.no_base_space(of), reps)
    layer = RelaxedLinear(fields, fields)
    target = harden_network(layer).matrix.detach() + 0.3 * torch.randn(fields.size, fields.size)
    inputs = torch.randn(600, fields.size)
    outputs = inputs @ target.T + 0.1 * torch.randn(600, fields.size)

    def losses(network: nn.Module, rows: slice = slice(300, None)) -> Tensor:
        return (network(fields(inputs[rows])).tensor - outputs[rows]).square().sum(1)

    def train(network: nn.Module) -> None:
        optimiser = torch.optim.Adam(network.parameters(), 0.05)
        for _ in range(60):
            optimiser.zero_grad()
            losses(network, slice(300)).mean().backward()
            optimiser.step()

    (subgroup,) = layer.relaxed_subgroups
    assert which_softness_helps(layer, train, losses).helps == {subgroup: True}
    train(layer)
    evidence = SoftnessEvidence(layer, 300, "gaussian")
    for _ in range(3):
        evidence.update(fields(inputs[:300]), outputs[:300])
    (row,) = evidence.table()
    assert (row.subgroup, row.weights) == (subgroup, {"Klein": 3, "SO(3)": 16}[name])
    # Of 16 entries two directions, the multiples of the identity of each irrep, are equivariant and do nothing.
    assert row.determined == pytest.approx({"Klein": 3, "SO(3)": 14}[name], abs=0.1)
