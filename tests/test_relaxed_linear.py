"""``RelaxedLinear`` beside escnn's ``Linear``, beside explicit means over its group, and in networks."""

import pickle
from collections.abc import Callable, Sequence

import pytest
import small
import torch
from errors import BROKEN, ROUNDING, SINGLE, SINGLE_REORDERED, answer_to, relative_error
from escnn import group, gspaces
from escnn import nn as enn
from escnn.group import Group, GroupElement, Representation
from escnn.nn import FieldType
from reference import matrix_of
from small import shake
from torch import Tensor, nn

from escnn_relaxed import ContinuousKernel, RelaxedLinear, harden_network

GROUPS: dict[str, Callable[[], Group]] = {
    "C2": lambda: group.cyclic_group(2),
    "C4": lambda: group.cyclic_group(4),
    "C8": lambda: group.cyclic_group(8),
    "D4": lambda: group.dihedral_group(4),
    "D6": lambda: group.dihedral_group(6),
    "SO(2)": lambda: group.so2_group(2),
    "O(2)": lambda: group.o2_group(2),
    "SO(3)": lambda: group.so3_group(2),
    "O(3)": lambda: group.o3_group(2),
    "octahedral": group.octa_group,
    "full octahedral": group.full_octa_group,
    "Klein": lambda: gspaces.fullCylindricalOnR3(1).fibergroup,
    "icosahedral": group.ico_group,
}
# Groups with fields whose channels belong to elements, and what they may be soft in.
SOFT = {"C2": ("rotation",), "C4": ("rotation",), "D4": ("rotation", "reflection"), "octahedral": ("rotation",)}
# Groups of which one irrep alone, or all, keeps a layer strict.
IRREPS = ("SO(2)", "O(2)", "SO(3)", "O(3)", "full octahedral")


def irreps(of: Group) -> list[Representation]:
    """The trivial irrep, and two more."""
    names = {
        "SO(2)": [(0,), (1,), (2,)],
        "O(2)": [(0, 0), (1, 1), (1, 2)],
        "SO(3)": [(0,), (1,), (2,)],
        "O(3)": [(0, 0), (1, 1), (0, 2)],
        "Icosahedral": [(0,), (1,), (2,)],
    }
    if of.name in names:
        return [of.irrep(*name) for name in names[of.name]]
    return [of.trivial_representation, *[irrep for irrep in of.irreps() if not irrep.is_trivial()][:2]]


def fields(name: str, are_apart: bool = False) -> FieldType:
    """Fields of many kinds, but few. States of fields of a kind that are apart load into no ``Linear``."""
    of = GROUPS[name]()
    regular = [] if of.continuous or of.order() > 24 else [of.regular_representation]
    first, second = (irreps(of), regular) if are_apart else (regular, irreps(of))
    return FieldType(gspaces.no_base_space(of), [*regular, *first, *second])


def classes(name: str, count: int = 3) -> FieldType:
    """Scores of classes."""
    space = gspaces.no_base_space(GROUPS[name]())
    return FieldType(space, [space.trivial_repr] * count)


def build(in_type: FieldType, out_type: FieldType, **options: object) -> RelaxedLinear:
    """A layer in float64, far from strict, with all weights away from their start."""
    layer = RelaxedLinear(in_type, out_type, **{"initial_softness": 0.3, **options}).double()
    shake(layer)
    return layer


def matrices(field_type: FieldType, elements: Sequence[GroupElement]) -> Tensor:
    """ρ(g) of all fields for each element, (elements, C, C)."""
    return torch.stack([matrix_of(field_type, g) for g in elements])


def mean_over(layer: RelaxedLinear, elements: Sequence[GroupElement]) -> Tensor:
    """The mean of ρ_out(g) W ρ_in(g)⁻¹ over elements."""
    left, right = matrices(layer.out_type, elements), matrices(layer.in_type, [~g for g in elements])
    return (left @ layer.matrix @ right).mean(0)


def subgroup(of: Group, *names: str) -> list[GroupElement]:
    """The rotations of a group, its reflection and the identity, or all elements."""
    if not names or not isinstance(of, group.DihedralGroup):
        return list(of.elements)
    if names == ("rotation",):
        return [of.element((0, turn)) for turn in range(of.rotation_order)]
    return [of.identity, of.element((1, 0))]


def features(layer: enn.EquivariantModule, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(5, layer.in_type.size, dtype=dtype)


@pytest.mark.parametrize("name", [*[*GROUPS][:-1], small.ICOSAHEDRAL])
def test_strict_layer_is_linear_in_values_and_gradients(name: str) -> None:
    trained = enn.Linear(fields(name, are_apart=True), fields(name))
    shake(trained)
    layer = RelaxedLinear(trained.in_type, trained.out_type, relax=None)
    assert isinstance(layer, enn.Linear)
    layer.load_state_dict(trained.state_dict())
    inputs = features(layer, torch.float32)
    outputs = [module(module.in_type(inputs)).tensor for module in (layer, trained)]
    assert relative_error(*(of.detach() for of in outputs)) <= SINGLE
    for output in outputs:
        output.square().sum().backward()
    assert relative_error(layer.weights.grad, trained.weights.grad) <= SINGLE_REORDERED
    assert relative_error(layer.bias.grad, trained.bias.grad) <= SINGLE_REORDERED
    assert layer.evaluate_output_shape((5, layer.in_type.size)) == (5, layer.out_type.size)
    torch.testing.assert_close(layer.eval().matrix, trained.eval().matrix, rtol=0, atol=1e-6)
    for own, theirs in zip(layer.expand_parameters(), trained.expand_parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=0, atol=1e-6)
    plain, expected = layer.double().export(), answer_to(layer, inputs.double())
    assert (type(plain), plain.training, plain.weight.dtype) == (nn.Linear, False, torch.float64)
    for same in (plain(inputs.double()).detach(), answer_to(pickle.loads(pickle.dumps(layer)), inputs.double())):
        assert torch.equal(same, expected)


@pytest.mark.parametrize("way", ["between", "onto trivial", "from trivial"])
@pytest.mark.parametrize("name", SOFT)
def test_hardened_layer_is_the_mean_over_the_group(name: str, way: str) -> None:
    many, few = fields(name, are_apart=True), classes(name)
    layer = build(*{"between": (many, many), "onto trivial": (many, few), "from trivial": (few, many)}[way])
    assert layer.relaxed_subgroups == SOFT[name]
    of = many.fibergroup
    with torch.no_grad():
        for names in ((), *((each,) for each in SOFT[name])):
            mean = mean_over(layer, subgroup(of, *names))
            hardened = harden_network(layer, names)
            assert relative_error(hardened.matrix, mean) <= ROUNDING
            # The fields are orthogonal.
            share = ((layer.matrix - mean).square().sum() / layer.matrix.square().sum()).item()
            assert share > BROKEN
            assert layer.softness(*names).item() == pytest.approx(share, abs=ROUNDING)
            assert relative_error(mean_over(hardened, subgroup(of, *names)), hardened.matrix) <= ROUNDING


@pytest.mark.parametrize("name", [*IRREPS, small.ICOSAHEDRAL])
def test_irreps_are_soft_and_exactly_equivariant_once_hardened(name: str) -> None:
    """No channel belongs to an element, and a matrix has one tap: a free map makes the layer soft."""
    layer = build(fields(name), fields(name))
    assert layer.relaxed_subgroups
    assert layer.cannot_be_soft == ()
    assert layer.softness().item() > BROKEN
    elements = [of for of in layer.in_type.gspace.testing_elements][:30]
    left, right = matrices(layer.out_type, elements), matrices(layer.in_type, elements)
    matrix = layer.matrix.detach()
    assert relative_error(left @ matrix, matrix @ right) > BROKEN
    for strict in (harden_network(layer), build(fields(name), fields(name), relax=None)):
        matrix = strict.matrix.detach()
        assert strict.softness().item() == 0.0
        assert relative_error(left @ matrix, matrix @ right) <= ROUNDING


@pytest.mark.parametrize("keep", ["C4", 4])
def test_kept_subgroup_is_kept(keep: object) -> None:
    layer = build(fields("C8"), fields("C8"), keep=keep)
    of = layer.in_type.fibergroup
    with torch.no_grad():
        kept = mean_over(layer, [of.element(turn) for turn in (0, 2, 4, 6)])
        assert relative_error(kept, layer.matrix) <= ROUNDING
        assert relative_error(mean_over(layer, list(of.elements)), layer.matrix) > BROKEN


@pytest.mark.parametrize("name", ["C4", "D6", "SO(2)", "octahedral", "Klein"])
def test_check_equivariance_checks_what_is_strict(name: str) -> None:
    strict = RelaxedLinear(fields(name), fields(name), relax=None)
    assert len(strict.check_equivariance(verbose=False)) == len(list(strict.in_type.gspace.testing_elements))
    if name in SOFT:
        soft = build(fields(name), fields(name))
        with pytest.warns(UserWarning, match="soft in rotation"):
            assert len(soft.check_equivariance(verbose=False)) == 1


D4, C4 = fields("D4"), fields("C4")
IMAGE = FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: RelaxedLinear(C4, C4, relax=("reflection",)), ValueError, "C4 has no reflection to relax"),
        (lambda: RelaxedLinear(IMAGE, IMAGE), ValueError, "no_base_space"),
        (
            lambda: RelaxedLinear(*[fields("Klein")] * 2, relax=None, kernel=ContinuousKernel()),
            ValueError,
            "kernel must be the default one for",
        ),
        (lambda: RelaxedLinear(*[fields("Klein")] * 2, relax=("rotation",)), ValueError, "no action on the plane"),
        (lambda: RelaxedLinear(*[fields("SO(3)")] * 2, samples=5), ValueError, "multiple of 24"),
        (lambda: RelaxedLinear(D4, D4)(D4(torch.zeros(2, D4.size, dtype=torch.int64))), TypeError, "floating-point"),
        (
            lambda: RelaxedLinear(D4, D4).evaluate_output_shape((2, 3)),
            ValueError,
            r"must be \(batch, 20\), got \(2, 3\)",
        ),
        (lambda: RelaxedLinear(C4, C4, keep=True), TypeError, "keep must be the id of a subgroup .*, got True"),
    ],
)
def test_bad_calls_say_what_is_right(build: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


def test_text_of_a_layer_has_no_geometry() -> None:
    layer = RelaxedLinear(*[classes("C4", 1)] * 2, relax=None, bias=False)
    text = "[C4: {irrep_0 (x1)}(1)]"
    assert repr(layer) == f"RelaxedLinear({text}, {text}, bias=False, relax=None)"
