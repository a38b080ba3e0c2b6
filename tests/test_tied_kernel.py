"""The kernel tied to its strict part: equation (2), its mean, its softness, and the number of its weights."""

from __future__ import annotations

import math

import battery
import pytest
import torch
from escnn import gspaces
from escnn.nn import FieldType, R2Conv
from group_average import acted, energy, subgroup_elements
from layers import SIZES, TORUS, build, build_with_oracle, relaxation
from reference import Oracle
from reference_coordinates import inverse_action
from tolerances import BROKEN, ROUNDING
from torch import Tensor
from transformations import equivariance_error, largest_error, relative_error

from escnn_relaxed import RelaxedR2Conv, harden_network, relax_network

# Fields with and without elements, on and off the pixel grid.
CASES = [
    ("C4", "regular -> regular"),
    ("C4", "irreps -> irreps"),
    ("D4", "regular + irreps -> mixed, sheared + regular + quotient"),
    ("D4 axis 45°", "trivial -> regular"),
    ("flip", "irreps -> regular"),
    ("C8", "trivial -> regular"),
    ("C3", "regular -> trivial"),
    ("SO(2)", "irreps -> band-limited"),
    ("O(2)", "irreps -> irreps"),
]
ON_GRID = [case for case in CASES if case[0] in ("C4", "D4", "D4 axis 45°", "flip")]
EVERY_CASE = pytest.mark.parametrize(("space", "pair"), CASES)
EVERY_CASE_ON_GRID = pytest.mark.parametrize(("space", "pair"), ON_GRID)


def tied(space: str, pair: str, kernel_size: int = 3, **arguments: object) -> RelaxedR2Conv:
    arguments = {"relax": battery.subgroups(space, 0.25), "initial_softness": 0.3, **arguments}
    return build(*battery.types(space, pair), kernel_size, soft_part="tied", **arguments)


def strict_kernel(layer: RelaxedR2Conv) -> Tensor:
    return layer.steerable_basis(layer.weights).detach()


# --- equation (2) -----------------------------------------------------------------------------------------------------


def kappa(oracle: Oracle, g: object, tap: tuple[float, float], strict: Tensor) -> Tensor:
    """(1 + m)(g⁻¹d; a(g)) K_strict(g⁻¹d) for one output field, at u = g⁻¹d.

    m = Σ α h(a) + Σ μ h(a) ⟨e_k, u/|u|⟩ⁿ. Of a regular field, a weight α counts in the row of the identity alone, there
    |G| times.
    """
    space, taps = oracle.layer.in_type.gspace, oracle.taps()
    u = min(taps, key=lambda other: math.dist(other, inverse_action(space, g, tap)))
    assert math.dist(u, inverse_action(space, g, tap)) <= 1e-9  # float64
    (field,) = oracle.outputs.fields
    (weights,) = oracle.modulation._weights([field.representation], oracle.outputs, 0)
    values, length = oracle.modulation._values(g, (0.0, 0.0)), math.hypot(*u)
    of_rows = torch.ones(field.representation.size, dtype=torch.float64)
    identity = torch.ones_like(of_rows)
    if field.is_permutation:
        identity[1:], identity[0] = 0, len(oracle.elements)
    for function, weight in weights:
        if isinstance(function, int):
            of_rows = of_rows + weight * values[function] * identity
        elif length:
            number, axis, degree = function
            of_rows = of_rows + weight * values[number] * (u[axis] / length) ** degree
    return of_rows[:, None] * strict[..., taps.index(u)]


@torch.no_grad()
@pytest.mark.parametrize("space", ["C4", "D4"])
@pytest.mark.parametrize("field", ["regular", "last irrep", "mixed, sheared"])
def test_kernel_is_equation_2_of_a_modulated_strict_kernel(space: str, field: str) -> None:
    """K(d) = mean_g ρ_out(g) [(1 + m) K_strict](g⁻¹d; a(g)) ρ_in(g)⁻¹."""
    fields = battery.types(space, f"regular -> {field}")
    arguments = {"relax": battery.subgroups(space, 0.25), "initial_softness": 0.3, "soft_part": "tied"}
    layer, oracle = build_with_oracle(*fields, **arguments)
    strict = strict_kernel(layer).flatten(2)
    (out_field,), (in_field,) = oracle.outputs.fields, oracle.inputs.fields
    expected = []
    for tap in oracle.taps():
        total = torch.zeros_like(strict[..., 0])
        for g in oracle.elements:
            rho_out = torch.as_tensor(out_field.representation(g), dtype=torch.float64)
            rho_in = torch.as_tensor(in_field.representation(~g), dtype=torch.float64)
            total = total + rho_out @ kappa(oracle, g, tap, strict) @ rho_in
        expected.append(total / len(oracle.elements))
    assert relative_error(layer.filter_bank().flatten(2), torch.stack(expected, dim=-1)) <= ROUNDING
    assert relative_error(layer.filter_bank().flatten(2), strict) > 0.1


# --- the mean over the group, and softness ----------------------------------------------------------------------------


@torch.no_grad()
@EVERY_CASE_ON_GRID
def test_mean_over_the_group_is_the_strict_kernel(space: str, pair: str) -> None:
    layer = tied(space, pair)
    mean = acted(layer, layer.filter_bank(), subgroup_elements(layer.in_type.gspace)).mean(dim=0)
    assert relative_error(mean, strict_kernel(layer)) <= ROUNDING


@torch.no_grad()
@EVERY_CASE
def test_hardened_layer_is_the_strict_kernel(space: str, pair: str) -> None:
    """Also where the group has elements off the pixel grid."""
    layer = tied(space, pair, relax=battery.subgroups(space, 0.25) | {"translation": 0.3}, regions=2)
    assert relative_error(harden_network(layer).filter_bank(), strict_kernel(layer)) <= ROUNDING


@torch.no_grad()
@pytest.mark.parametrize("subgroup", ["rotation", "reflection"])
@pytest.mark.parametrize("pair", ["irreps -> regular", "regular + irreps -> mixed, sheared + regular + quotient"])
def test_mean_over_a_subgroup_is_that_of_the_bank(pair: str, subgroup: str) -> None:
    layer = tied("D4", pair)
    bank = layer.filter_bank()
    mean = acted(layer, bank, subgroup_elements(layer.in_type.gspace, (subgroup,))).mean(dim=0)
    assert relative_error(harden_network(layer, (subgroup,)).filter_bank(), mean) <= ROUNDING
    expected = energy(layer, bank - mean) / energy(layer, bank)
    assert layer.softness(subgroup).item() == pytest.approx(expected.item(), rel=0, abs=ROUNDING)
    assert expected > 1e-3


@torch.no_grad()
@EVERY_CASE_ON_GRID
def test_softness_is_the_energy_that_the_mean_leaves_out(space: str, pair: str) -> None:
    layer = tied(space, pair)
    bank = layer.filter_bank()
    mean = acted(layer, bank, subgroup_elements(layer.in_type.gspace)).mean(dim=0)
    expected = energy(layer, bank - mean) / energy(layer, bank)
    assert layer.softness().item() == pytest.approx(expected.item(), rel=0, abs=ROUNDING)
    assert expected > 0.05


@torch.no_grad()
@pytest.mark.parametrize(("space", "pair"), [("C4", "regular -> regular"), ("D4", "irreps -> irreps")])
def test_square_of_the_error_on_white_noise_is_twice_the_softness(space: str, pair: str) -> None:
    """Equation (7), as a mean over the group."""
    layer = tied(space, pair, bias=False, **TORUS)
    features = battery.random_input(layer.in_type, 12, 12, batch=32)
    elements = subgroup_elements(layer.in_type.gspace)
    squares = [equivariance_error(layer, features, g) ** 2 for g in elements]
    # Sums of 4608 pixels of some channels each scatter by a few percent.
    assert sum(squares) / len(squares) == pytest.approx(2 * layer.softness().item(), rel=0.1)


@torch.no_grad()
@EVERY_CASE
def test_layer_at_zero_is_strict(space: str, pair: str) -> None:
    layer = tied(space, pair)
    layer.set_domain_frequency(**battery.subgroups(space, 0.0))
    assert torch.equal(layer.filter_bank(), strict_kernel(layer))
    assert layer.softness().item() == 0


@torch.no_grad()
@pytest.mark.parametrize("pair", ["regular -> regular", "irreps -> irreps"])
def test_softness_grows_with_the_frequency_and_has_no_zeros(pair: str) -> None:
    """Waves of ω′ = 0.5, 1 and 2 are 0 at all elements of C4."""
    layer = tied("C4", pair, **TORUS)
    features = battery.random_input(layer.in_type, 5, 5)
    found = []
    for frequency in (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0):
        layer.set_domain_frequency(rotation=frequency)
        found.append(layer.softness().item())
        assert (largest_error(layer, features) > BROKEN) == (frequency > 0)
    assert found == sorted(found)
    assert found[0] == 0
    # tanh has reached 1 by then.
    assert found[-1] == pytest.approx(found[-3], rel=0.02)


# --- the number of weights --------------------------------------------------------------------------------------------


def counted(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_number_of_weights_depends_on_nothing_but_the_types() -> None:
    types = battery.types("D4", "regular + irreps -> irreps + regular + quotient")
    wanted = counted(RelaxedR2Conv(*types, 3))
    for frequency in (0.0, 1e-6, 1.0, 100.0):
        assert counted(RelaxedR2Conv(*types, 3, relax={"rotation": frequency, "reflection": frequency})) == wanted
    for seed in range(2):
        torch.manual_seed(seed)
        assert counted(RelaxedR2Conv(*types, 3)) == wanted


@pytest.mark.usefixtures("float64_default")
def test_number_of_weights_does_not_depend_on_the_default_dtype() -> None:
    types = battery.types("D4", "regular + irreps -> irreps + regular + quotient")
    in_double = RelaxedR2Conv(*types, 3)
    assert {parameter.dtype for parameter in in_double.parameters()} == {torch.float64}
    torch.set_default_dtype(torch.float32)
    assert counted(in_double) == counted(RelaxedR2Conv(*types, 3))


def many(space: str, field: str, count: int) -> FieldType:
    gspace = battery.gspace(space)
    return FieldType(gspace, list(battery.field_type(space, field).representations) * count)


SO2 = gspaces.rot2dOnR2(-1)
# Types, size of the kernel, subgroups, most parameters in proportion to R2Conv.
BUDGETS = {
    "lifting 1×1": (many("C8", "trivial", 1), many("C8", "regular", 4), 1, "default", 2.0),
    "lifting 7×7": (many("C8", "trivial", 1), many("C8", "regular", 8), 7, "default", 1.3),
    "C8, 4 → 4, 3×3": (many("C8", "regular", 4), many("C8", "regular", 4), 3, "default", 1.12),
    "C8, 8 → 8, 5×5": (many("C8", "regular", 8), many("C8", "regular", 8), 5, "default", 1.05),
    "C8, 8 → 8, 1×1": (many("C8", "regular", 8), many("C8", "regular", 8), 1, "default", 1.35),
    "C8, 32 → 32, 5×5": (many("C8", "regular", 32), many("C8", "regular", 32), 5, "default", 1.05),
    "C4, 8 → 8, 5×5": (many("C4", "regular", 8), many("C4", "regular", 8), 5, "default", 1.1),
    "D4, 8 → 8, 3×3": (many("D4", "regular", 8), many("D4", "regular", 8), 3, "default", 1.1),
    "SO(2), irreps": (
        FieldType(SO2, [SO2.irrep(n) for n in range(3)] * 4),
        FieldType(SO2, [SO2.irrep(n) for n in range(3)] * 4),
        *(5, "default", 1.35),
    ),
    "translation": (
        many("trivial", "trivial", 32),
        many("trivial", "trivial", 32),
        *(3, {"translation": 0.25}, 1.5),
    ),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_layer_has_hardly_more_parameters_than_r2conv(name: str) -> None:
    in_type, out_type, kernel_size, relax, most = BUDGETS[name]
    layer = RelaxedR2Conv(in_type, out_type, kernel_size, relax=relax)
    plain = counted(R2Conv(in_type, out_type, kernel_size))
    assert layer.bank is not None
    assert plain < counted(layer) <= most * plain


CANNOT_BE_SOFT = [
    ("C4", "trivial -> trivial", 1, {"rotation": 0.25}),
    ("D4", "trivial -> trivial", 1, {"rotation": 0.25, "reflection": 0.5}),
    ("flip", "irreps -> irreps", 1, {"reflection": 0.5}),
    ("SO(2)", "irreps -> irreps", 1, {"rotation": 0.25}),
    # Rotations take the directions of taps away.
    ("D4", "regular -> irreps", 3, {"reflection": 0.5}),
    ("O(2)", "irreps -> irreps", 3, {"reflection": 0.5}),
]


@pytest.mark.parametrize(("space", "pair", "kernel_size", "relax"), CANNOT_BE_SOFT)
def test_layer_that_no_weights_make_soft_is_that_of_r2conv(space, pair, kernel_size: int, relax) -> None:
    types = battery.types(space, pair)
    layer, plain = RelaxedR2Conv(*types, kernel_size, relax=relax), R2Conv(*types, kernel_size)
    assert layer.cannot_be_soft == tuple(relax)
    assert layer.bank is None
    assert layer.relaxed_subgroups == ()
    assert counted(layer) == counted(plain)
    assert layer.softness().item() == 0
    layer.set_domain_frequency(**dict.fromkeys(relax, 1.0))
    with pytest.raises(ValueError, match="softness can be set where"):
        layer.set_softness(0.1)
    with pytest.raises(ValueError, match="'translation' has no domain frequency"):
        layer.set_domain_frequency(translation=0.1)
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer.weights, plain.weights)


# --- start, learning, and what is done with layers --------------------------------------------------------------------


@pytest.mark.parametrize("softness", [0.001, 0.1, 0.9])
@EVERY_CASE
def test_layer_starts_exactly_as_soft_as_asked(space: str, pair: str, softness: float) -> None:
    relax = battery.subgroups(space, 0.25)
    layer = RelaxedR2Conv(*battery.types(space, pair), 3, relax=relax, initial_softness=softness)
    assert layer.softness().item() == pytest.approx(softness, rel=1e-4)  # float32
    for wanted in (0.01, 0.5):
        layer.set_softness(wanted)
        assert layer.softness().item() == pytest.approx(wanted, rel=1e-4)


def test_default_start_is_nearly_strict() -> None:
    assert RelaxedR2Conv(*battery.types("C4", "regular -> regular"), 3).softness().item() == pytest.approx(
        0.001, rel=1e-4
    )


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("pair", ["regular -> regular", "irreps -> irreps"])
def test_every_weight_of_a_soft_part_at_zero_learns(pair: str, kind: str) -> None:
    """And ω′ has no slope there, since it multiplies nothing."""
    given = relaxation(kind, {"rotation": 0.2})
    layer = RelaxedR2Conv(
        *battery.types("C4", pair), 3, padding=1, initial_softness=0.0, learn_relaxation=True, **given
    )
    layer.double()
    layer(layer.in_type(battery.random_input(layer.in_type, *SIZES[kind]))).tensor.square().sum().backward()
    assert (layer.bank.weights.grad != 0).all()
    assert all(not value.grad.any() for value in layer.domain_frequency.values())


@torch.no_grad()
def test_relaxed_network_is_the_trained_one_until_it_learns() -> None:
    trained = R2Conv(*battery.types("D4", "regular -> regular"), 3, padding=1)
    layer = relax_network(trained)
    assert not layer.bank.weights.any()
    assert torch.equal(layer.weights, trained.weights)
    torch.nn.init.normal_(layer.bank.weights)
    assert layer.softness().item() > 1e-3
    back = harden_network(layer)
    assert torch.equal(back.weights, trained.weights)
    assert counted(back) == counted(trained)


def test_layers_of_several_kinds_have_the_channels_in_order() -> None:
    """Each field has its own modulation, also where fields of a kind do not follow each other."""
    layer = tied("C4", "regular -> trivial + regular + irreps + regular + trivial")
    with torch.no_grad():
        strict = strict_kernel(layer)
        for field in range(len(layer.out_type)):
            layer.bank.weights.zero_()
            kinds = list(dict.fromkeys(layer.out_type.representations))
            shake_field(layer, kinds, field)
            changed = (layer.filter_bank() - strict).flatten(1).any(dim=1).nonzero().flatten().tolist()
            start = sum(of.size for of in layer.out_type.representations[:field])
            assert changed == list(range(start, start + layer.out_type.representations[field].size))


def shake_field(layer: RelaxedR2Conv, kinds: list[object], field: int) -> None:
    """Set the weights of one output field away from 0: those of its elements, and then those of directions."""
    fields = layer.out_type.representations
    maps, sides = layer.bank.maps, len(layer.bank.maps.sides)
    before = list(zip(kinds, maps.kinds, strict=True))
    number = kinds.index(fields[field])
    first = sum(of.fields * len(of.functions) for _, of in before[:number])
    own = len(maps.kinds[number].functions)
    first += fields[:field].count(fields[field]) * own
    layer.bank.weights[first : first + own] = 1.0
    rank = sum(of.fields for _, of in before[:number]) + fields[:field].count(fields[field])
    start = sum(of.fields * len(of.functions) for _, of in before) + rank * sides
    layer.bank.weights[start : start + sides] = 1.0


@pytest.mark.parametrize("kind", SIZES)
def test_autocast_gives_the_answer_within_its_dtype(kind: str) -> None:
    layer = tied("C4", "regular -> regular", padding=1, **relaxation(kind, {"rotation": 0.2})).float()
    features = battery.random_input(layer.in_type, 9, 9).float()
    expected = layer(layer.in_type(features)).tensor
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(layer.in_type(features)).tensor
    # bfloat16 has eight bits.
    assert relative_error(found.detach().float(), expected.detach()) <= 0.02
