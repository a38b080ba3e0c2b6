"""``RelaxedLinear`` of any finite group, and of irreps and Fourier fields, beside means over group elements."""

import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from errors import BROKEN, ROUNDING, SINGLE, answer_to, relative_error
from escnn import group, gspaces
from escnn import nn as enn
from escnn.group import Group, GroupElement, Representation
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
from escnn_relaxed.group.faithful import separating_irreps
from escnn_relaxed.measure import symmetry_profile

# Means over a group beside what the package computes, in float64.
EXACT = 1e-10
PRODUCTS: dict[str, Callable[[], Group]] = {
    "Klein": group.klein4_group,
    "C2 x C2": lambda: group.direct_product(group.cyclic_group(2), group.cyclic_group(2)),
    "C2 x C3": lambda: group.direct_product(group.cyclic_group(2), group.cyclic_group(3)),
    "C3 x C3": lambda: group.direct_product(group.cyclic_group(3), group.cyclic_group(3)),
    "C4 x C2": lambda: group.direct_product(group.cyclic_group(4), group.cyclic_group(2)),
    "D3 x C2": lambda: group.direct_product(group.dihedral_group(3), group.cyclic_group(2)),
    "C2 x C2 x C2": lambda: group.direct_product(PRODUCTS["C2 x C2"](), group.cyclic_group(2)),
}


def regular(name: str, count: int = 2) -> FieldType:
    """Regular fields of a direct product."""
    of = PRODUCTS[name]()
    return FieldType(gspaces.no_base_space(of), [of.regular_representation] * count)


def all_irreps(name: str) -> FieldType:
    """Each irrep of a direct product, none of whose channels belongs to an element."""
    of = PRODUCTS[name]()
    return FieldType(gspaces.no_base_space(of), [*of.irreps(), of.irreps()[0]])


def fourier(name: str) -> FieldType:
    """Irreps, a Fourier field and a tensor product, whose change of basis is not the identity."""
    if name == "SO(2)":
        of: Group = group.so2_group(5)
        fields = [of.irrep(0), of.irrep(2), of.bl_regular_representation(2), of.irrep(1).tensor(of.irrep(2))]
    elif name == "O(2)":
        of = group.o2_group(6)
        fields = [
            of.irrep(0, 0),
            of.irrep(1, 0),
            of.bl_regular_representation(2),
            of.irrep(1, 1).tensor(of.irrep(1, 2)),
        ]
    elif name == "SO(3)":
        of = group.so3_group(4)
        fields = [of.irrep(0), of.irrep(1), of.irrep(1), of.bl_regular_representation(2)]
        fields += [of.irrep(2).tensor(of.irrep(2))]
    else:
        of = group.o3_group(3)
        fields = [
            of.irrep(0, 0),
            of.irrep(1, 1),
            of.bl_regular_representation(1),
            of.irrep(1, 1).tensor(of.irrep(0, 2)),
        ]
    return FieldType(gspaces.no_base_space(of), fields)


CONTINUOUS = ("SO(2)", "O(2)", "SO(3)", "O(3)")


def build(in_type: FieldType, out_type: FieldType | None = None, **options: object) -> RelaxedLinear:
    """A layer in float64, far from strict."""
    layer = RelaxedLinear(in_type, in_type if out_type is None else out_type, **{"initial_softness": 0.3, **options})
    shake(layer.double())
    return layer


def matrices(field_type: FieldType, elements: Sequence[GroupElement]) -> Tensor:
    return torch.stack([matrix_of(field_type, g) for g in elements])


def mean_over(layer: RelaxedLinear, elements: Sequence[GroupElement]) -> Tensor:
    """The mean of ρ_out(g) W ρ_in(g)⁻¹ over elements."""
    left, right = matrices(layer.out_type, elements), matrices(layer.in_type, [~g for g in elements])
    return (left @ layer.matrix.detach() @ right).mean(0)


def breaks(layer: RelaxedLinear, elements: Sequence[GroupElement]) -> float:
    """The largest relative distance of ρ_out(g) W and W ρ_in(g)."""
    matrix = layer.matrix.detach()
    pairs = zip(matrices(layer.out_type, elements), matrices(layer.in_type, elements), strict=True)
    return max(relative_error(left @ matrix, matrix @ right) for left, right in pairs)


@pytest.mark.parametrize("kind", ["regular", "onto trivial", "from trivial", "irreps"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_strict_part_is_the_mean_over_all_elements(name: str, kind: str) -> None:
    many = all_irreps(name) if kind == "irreps" else regular(name)
    few = FieldType(many.gspace, [many.gspace.trivial_repr] * 3)
    layer = build(*{"onto trivial": (many, few), "from trivial": (few, many)}.get(kind, (many, many)))
    assert layer.relaxed_subgroups == ("group",)
    with torch.no_grad():
        mean = mean_over(layer, many.fibergroup.elements)
        share = ((layer.matrix - mean).square().sum() / layer.matrix.square().sum()).item()
        assert share > BROKEN
        for names in ((), ("group",)):
            assert layer.softness(*names).item() == pytest.approx(share, abs=EXACT)
            hardened = harden_network(layer, names)
            assert relative_error(hardened.matrix, mean) <= EXACT
            assert hardened.softness().item() == 0.0
        assert layer.softness("rotation", "reflection", "translation").item() == 0.0
    layer.set_softness(0.02)
    assert layer.softness().item() == pytest.approx(0.02, abs=EXACT)


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_element_is_broken(name: str) -> None:
    """The functions of an element are of a faithful representation."""
    layer, of = build(regular(name)), PRODUCTS[name]()
    for element in of.elements:
        if element != of.identity:
            assert breaks(layer, [element]) > BROKEN


def sizes_of(name: str) -> list[int]:
    of = PRODUCTS[name]()
    elements = list(of.elements)
    held = np.array([element == of.identity for element in elements])
    return sorted(irrep.size for irrep in separating_irreps(list(of.irreps()), elements, held))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("Klein", [1, 1]), ("C2 x C3", [2]), ("C3 x C3", [2, 2]), ("D3 x C2", [2]), ("C2 x C2 x C2", [1, 1, 1])],
)
def test_irreps_that_tell_elements_apart_are_the_smallest(name: str, sizes: list[int]) -> None:
    assert sizes_of(name) == sizes


def generated(of: Group, *elements: GroupElement) -> list[GroupElement]:
    """The subgroup that some elements generate."""
    known = [of.identity]
    for one in known:
        known += [product for each in elements if (product := each @ one) not in known]
    return known


@pytest.mark.parametrize("kind", ["regular", "irreps"])
@pytest.mark.parametrize(
    ("name", "keep", "number"),
    [("Klein", (2, 1), 2), ("Klein", (1, 2), 1), ("C2 x C3", (1, 3), 1), ("D3 x C2", ((None, 3), 1), None)],
)
def test_subgroup_is_kept_by_the_id_of_escnn(name: str, keep: object, number: int | None, kind: str) -> None:
    fields = regular(name) if kind == "regular" else all_irreps(name)
    layer, of = build(fields, keep=keep), fields.fibergroup
    subgroup, include, _ = of.subgroup(keep)
    kept = [include(element) for element in subgroup.elements]
    assert 1 < len(kept) < of.order()
    assert breaks(layer, kept) <= EXACT
    others = [element for element in of.elements if element not in kept]
    assert min(breaks(layer, [element]) for element in others) > BROKEN
    assert f"keep='{keep}'" in repr(layer)


def test_diagonal_subgroup_is_kept_by_its_elements() -> None:
    """It is none of those that have an id, and no entry of the smallest faithful representation is the same on it."""
    of = PRODUCTS["Klein"]()
    both = next(g for g in of.elements if [part.value for part in of.split_element(g)] == [1, 1])
    layer = build(regular("Klein"), keep=[both])
    assert breaks(layer, [both]) <= EXACT
    assert min(breaks(layer, [g]) for g in of.elements if g not in (both, of.identity)) > BROKEN


@pytest.mark.parametrize("name", CONTINUOUS)
def test_irreps_and_fourier_fields_are_soft_and_their_mean_is_exact(name: str) -> None:
    torch.manual_seed(0)
    layer, of = build(fourier(name)), fourier(name).fibergroup
    elements = [of.sample() for _ in range(8)]
    assert breaks(layer, elements) > BROKEN
    strict = harden_network(layer)
    assert breaks(strict, elements) <= EXACT
    # The nearest equivariant map: what is left is orthogonal to all of them.
    rest = layer.matrix.detach() - strict.matrix.detach()
    for other in (random_equivariant(layer) for _ in range(5)):
        cosine = (rest * other).sum() / (rest.norm() * other.norm())
        assert abs(cosine.item()) <= EXACT
    share = (rest.square().sum() / layer.matrix.detach().square().sum()).item()
    assert layer.softness().item() == pytest.approx(share, abs=EXACT)


def random_equivariant(layer: RelaxedLinear) -> Tensor:
    """A random equivariant matrix between the fields of a layer."""
    strict = RelaxedLinear(layer.in_type, layer.out_type, relax=None).double()
    nn.init.normal_(strict.weights)
    return strict.matrix.detach()


@pytest.mark.parametrize("name", ["O(2)", "O(3)"])
def test_one_subgroup_of_a_continuous_group_is_strict_alone(name: str) -> None:
    torch.manual_seed(0)
    layer, of = build(fourier(name)), fourier(name).fibergroup
    assert layer.relaxed_subgroups == ("rotation", "reflection")
    sampled = [of.sample() for _ in range(12)]
    turns = [g for g in sampled if _is_turn(layer, g)]
    mirror = next(g for g in layer.domain.sample.elements if not _is_turn(layer, g))
    for names, kept, broken in (("rotation", turns, [mirror]), ("reflection", [_reflection(of)], turns)):
        hardened = harden_network(layer, names)
        assert breaks(hardened, kept) <= EXACT
        assert breaks(hardened, broken) > BROKEN
        assert breaks(build(fourier(name), relax=_other(names)), kept) <= EXACT


def _other(name: str) -> str:
    return {"rotation": "reflection", "reflection": "rotation"}[name]


def _is_turn(layer: RelaxedLinear, element: GroupElement) -> bool:
    return bool(np.linalg.det(layer.domain.gspace.basespace_action(element)) > 0)


def _reflection(of: Group) -> GroupElement:
    return of.inversion if isinstance(of, group.O3) else of.element((1, 0.0))


@pytest.mark.parametrize(
    ("name", "keep"), [("SO(3)", "SO(2)"), ("O(3)", "SO(2)"), ("SO(3)", (False, 4)), ("O(2)", "D4")]
)
def test_continuous_group_keeps_a_subgroup(name: str, keep: object) -> None:
    torch.manual_seed(0)
    layer, of = build(fourier(name), keep=keep), fourier(name).fibergroup
    if keep == "SO(2)":
        kept = [_about_z(of, angle) for angle in (0.4, 1.3, 2.9)]
    elif keep == "D4":
        kept = [of.element((mirror, turn * np.pi / 2)) for mirror in (0, 1) for turn in range(4)]
    else:
        subgroup, include, _ = of.subgroup(keep)
        kept = [include(element) for element in subgroup.elements]
    assert breaks(layer, kept) <= EXACT
    assert breaks(layer, [of.sample() for _ in range(4)]) > BROKEN
    assert breaks(harden_network(layer), [of.sample() for _ in range(4)]) <= EXACT


def _about_z(of: Group, angle: float) -> GroupElement:
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    return of.element((0, turn) if isinstance(of, group.O3) else turn, param="MAT")


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


def test_each_element_has_a_row_in_reports() -> None:
    layer = build(regular("C2 x C3"))
    names = ["element (0, 1)", "element (0, 2)", "element (1, 0)", "element (1, 1)", "element (1, 2)"]
    report, profile = equivariance_error(layer), symmetry_profile(layer)
    assert [(row.name, row.subgroup, row.kind) for row in report.rows] == [(name, "group", "exact") for name in names]
    assert [row.name for row in profile.rows] == names
    mean = np.mean([0.0, *(row.error**2 for row in profile.rows)])
    assert mean / 2 == pytest.approx(layer.softness().item(), abs=EXACT)
    kept = build(regular("C2 x C3"), keep=(2, 1))
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relax": "rotation"}, "relax='group' names them all, got 'rotation'"),
        ({"relax": ("group", "translation")}, "no translation to relax"),
        ({"keep": "C2"}, "keep must be the id of a subgroup of Klein4"),
        ({"keep": (2, 2)}, "keep leaves nothing of the group to be soft"),
        ({"relax": "group", "keep": (2, 2)}, "all of the group is in the group to keep"),
        ({"relax": {"group": float("nan")}}, "must be finite"),
    ],
)
def test_bad_options_say_what_is_right(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RelaxedLinear(*[regular("Klein")] * 2, **options)


def test_whole_group_is_rotations_and_reflections_where_it_has_them() -> None:
    of = group.dihedral_group(4)
    fields = FieldType(gspaces.no_base_space(of), [of.regular_representation])
    layer = build(fields, relax="group")
    assert layer.relaxed_subgroups == ("rotation", "reflection")
    assert layer.softness("group").item() == layer.softness("rotation", "reflection").item()
    layer.harden("group")
    assert layer.hardened == ("rotation", "reflection")
    assert answer_to(layer, torch.ones(1, 8, dtype=torch.float64)).shape == (1, 8)
