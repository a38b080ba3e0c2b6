"""``RelaxedLinear`` of any finite group, and of irreps and Fourier fields, beside means over group elements."""

import numpy as np
import pytest
import torch
from any_group import CONTINUOUS, EXACT, PRODUCTS, all_irreps, breaks, build, fourier, mean_over, regular
from errors import BROKEN, answer_to, relative_error
from escnn import group, gspaces
from escnn.group import Group, GroupElement, Representation
from escnn.nn import FieldType
from torch import Tensor, nn

from escnn_relaxed import RelaxedLinear, harden_network
from escnn_relaxed.group.faithful import separating_irreps
from escnn_relaxed.group.intertwiners import NearestIntertwiner


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
    of = group.direct_product(group.octa_group(), group.cyclic_group(3)) if name == "cube x C3" else PRODUCTS[name]()
    elements = list(of.elements)
    held = np.array([element == of.identity for element in elements])
    return sorted(irrep.size for irrep in separating_irreps(list(of.irreps()), elements, held))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("Klein", [1, 1]),
        ("C2 x C3", [2]),
        ("C3 x C3", [2, 2]),
        ("D3 x C2", [2]),
        ("C2 x C2 x C2", [1, 1, 1]),
        ("cube x C3", [2, 3]),
    ],
)
def test_irreps_that_tell_elements_apart_are_the_smallest(name: str, sizes: list[int]) -> None:
    assert sizes_of(name) == sizes


@pytest.mark.parametrize("kind", ["regular", "irreps"])
@pytest.mark.parametrize(
    ("name", "keep"),
    [("Klein", (2, 1)), ("Klein", (1, 2)), ("C2 x C3", (1, 3)), ("D3 x C2", ((None, 3), 1)), ("D3 x C2", ((0, 1), 1))],
)
def test_subgroup_is_kept_by_the_id_of_escnn(name: str, keep: object, kind: str) -> None:
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


def test_mean_is_exact_where_the_basis_of_a_field_is_not_orthogonal() -> None:
    of = PRODUCTS["C2 x C3"]()
    torch.manual_seed(0)
    change = torch.randn(6, 6, dtype=torch.float64).numpy() + 2 * np.eye(6)
    irreps = [irrep.id for irrep in of.irreps()]
    skewed = Representation(of, "skewed", irreps, change, [], change_of_basis_inv=np.linalg.inv(change))
    matrix = torch.randn(6, 6, dtype=torch.float64)
    mean = sum(torch.from_numpy(skewed(g)) @ matrix @ torch.from_numpy(skewed(~g)) for g in of.elements) / of.order()
    found = NearestIntertwiner([skewed], [skewed]).double()(matrix)
    assert relative_error(found, mean) <= EXACT
