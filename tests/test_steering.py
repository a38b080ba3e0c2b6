"""Hidden values → filter bank: the steered average against loops, and as a projection on equivariant kernels."""

from __future__ import annotations

import battery
import numpy as np
import pytest
import torch
from layers import build
from reference_fields import coset
from tolerances import ROUNDING
from transformations import relative_error

from escnn_relaxed.continuous.steered_average import SteeredAverage
from escnn_relaxed.continuous.steering import PairSteering, sees_relative_element
from escnn_relaxed.group.elements import sample_group
from escnn_relaxed.group.fields import Block, FieldStructure

POINTS = 3
POSITIONS = 2
HIDDEN = 2


def block(space: str, fields: str) -> Block:
    field_type = battery.field_type(space, fields)
    (only,) = FieldStructure(field_type.representations, sample_group(battery.gspace(space), 6)).blocks
    return only


@pytest.mark.parametrize(
    ("space", "in_fields", "out_fields"),
    [("C4", "regular", "regular"), ("D3", "regular", "regular"), ("D4", "regular", "regular")],
)
def test_regular_blocks_are_gathered_by_both_elements(space: str, in_fields: str, out_fields: str) -> None:
    """S[g, g′] is φ steered by g′, at g beside it."""
    sample = sample_group(battery.gspace(space), 1)
    count = len(sample)
    hidden = torch.randn(HIDDEN, count, POSITIONS, count, POINTS, dtype=torch.float64)
    steered = PairSteering(block(space, in_fields), block(space, out_fields), sample)(hidden)
    for g, v in np.ndindex(count, count):
        assert torch.equal(steered[:, g, v], hidden[:, v, :, g])


@pytest.mark.parametrize(
    ("space", "in_fields", "out_fields"),
    [
        ("C4", "quotient", "regular"),
        ("C8", "regular", "quotient"),
        ("C8", "quotient", "quotient"),
        ("D3", "reordered regular", "regular"),
        ("C4", "regular", "reordered regular"),
    ],
)
def test_permutation_blocks_are_means_over_cosets(space: str, in_fields: str, out_fields: str) -> None:
    sample = sample_group(battery.gspace(space), 1)
    count = len(sample)
    (in_field,) = battery.field_type(space, in_fields).representations
    (out_field,) = battery.field_type(space, out_fields).representations
    hidden = torch.randn(HIDDEN, count, POSITIONS, count, POINTS, dtype=torch.float64)
    steering = PairSteering(block(space, in_fields), block(space, out_fields), sample).double()
    expected = torch.zeros(HIDDEN, out_field.size, in_field.size, POSITIONS, POINTS, dtype=torch.float64)
    for g, v in np.ndindex(count, count):
        a, b = coset(out_field, sample.elements[g]), coset(in_field, sample.elements[v])
        expected[:, a, b] += hidden[:, v, :, g] * out_field.size * in_field.size / count**2
    assert relative_error(steering(hidden), expected) <= ROUNDING


@pytest.mark.parametrize(
    ("space", "in_fields", "out_fields"),
    [
        ("C8", "trivial", "regular"),
        ("D4", "regular", "trivial"),
        ("C4", "last irrep", "last irrep"),
        ("D3", "last irrep", "last irrep"),
        ("D3", "regular", "last irrep"),
        ("D3", "last irrep", "regular"),
        ("SO(2)", "last irrep", "trivial"),
        ("O(2)", "last irrep", "last irrep"),
    ],
)
@pytest.mark.parametrize("has_relatives", [False, True], ids=["alone", "beside permutations"])
def test_other_blocks_are_averaged_over_the_group(
    space: str, in_fields: str, out_fields: str, has_relatives: bool
) -> None:
    """S_(m,n),j = mean_g ρ_A(g)[:, m] φ_j(g) ρ_B(g)⁻¹[n, :] for the entries (m, n) of κ that carry weights."""

    def relatives(count: int) -> int:
        return count if has_relatives else 1

    sample = sample_group(battery.gspace(space), 6)
    (in_field,) = battery.field_type(space, in_fields).representations
    (out_field,) = battery.field_type(space, out_fields).representations
    pair = block(space, in_fields), block(space, out_fields)
    hidden = torch.randn(HIDDEN, len(sample), POSITIONS, relatives(len(sample)), POINTS, dtype=torch.float64)
    steering = PairSteering(*pair, sample).double()
    rows, columns = ([0], range(in_field.size)) if pair[1].is_permutation else (range(out_field.size), [0])
    expected = [
        sum(
            torch.einsum(
                "a,b,xp->abxp",
                torch.from_numpy(np.array(out_field(g)[:, m], dtype=np.float64)),
                torch.from_numpy(np.array(in_field(~g)[n], dtype=np.float64)),
                hidden[j, i, :, i % relatives(len(sample))],
            )
            for i, g in enumerate(sample.elements)
        )
        / len(sample)
        for m in rows
        for n in columns
        for j in range(HIDDEN)
    ]
    assert steering.entries == len(rows) * len(columns)
    assert relative_error(steering(hidden), torch.stack(expected)) <= ROUNDING


def test_only_two_permutations_see_the_relative_element() -> None:
    regular, trivial = block("C4", "regular"), block("C4", "trivial")
    assert sees_relative_element(regular, regular)
    assert not sees_relative_element(regular, trivial)
    assert not sees_relative_element(trivial, regular)


@pytest.mark.parametrize("fields", ["regular", "irreps", "mixed, sheared", "regular + irreps + quotient"])
@pytest.mark.parametrize("space", ["C4", "D3"])
def test_bank_is_linear_in_the_hidden_values(space: str, fields: str) -> None:
    sample = sample_group(battery.gspace(space), 1)
    structure = FieldStructure(battery.field_type(space, fields).representations, sample)
    average = SteeredAverage(structure, structure, sample).double()
    shape = (HIDDEN + 1, len(sample), POSITIONS, len(sample), 9)
    first, second = (torch.randn(shape, dtype=torch.float64) for _ in range(2))
    average.initialize(first, average.count_directions(first))
    with torch.no_grad():
        expected = 2 * average(first) - 3 * average(second)
        assert relative_error(average(2 * first - 3 * second), expected) <= ROUNDING


@torch.no_grad()
@pytest.mark.parametrize("soft_part", ["continuous", "tied"])
@pytest.mark.parametrize(
    ("space", "pair"),
    [("C4", "two regular -> regular"), ("D4", "regular -> irreps"), ("D2", "mixed, sheared -> regular")],
)
def test_projection_on_equivariant_kernels(space: str, pair: str, soft_part: str) -> None:
    """P K = mean_h ρ_out(h) K(h⁻¹d) ρ_in(h)⁻¹: K at ω′ = 0 is kept, a soft K is not (equation (6))."""
    in_type, out_type = battery.types(space, pair)
    relax = battery.subgroups(space, 0.2)
    layer = build(in_type, out_type, relax=relax, initial_softness=0.3, soft_part=soft_part)
    soft = layer.filter_bank()
    layer.set_domain_frequency(**battery.subgroups(space, 0.0))
    strict = layer.filter_bank()
    assert relative_error(projection(layer, strict), strict) <= ROUNDING
    assert relative_error(projection(layer, soft), soft) > 0.05
    if soft_part == "tied":
        # The soft part is centred on the domain, so it has no strict part: K = P K + (K − P K).
        assert relative_error(projection(layer, soft), strict) <= ROUNDING


def projection(layer, bank: torch.Tensor) -> torch.Tensor:
    """The explicit group average; every element must map the grid to itself."""
    space = layer.in_type.gspace
    total = torch.zeros_like(bank)
    line = np.arange(layer.kernel_size)
    rows, columns = np.meshgrid(line, line, indexing="ij")
    centre = (layer.kernel_size - 1) / 2
    position = np.stack([columns - centre, centre - rows])
    for h in space.fibergroup.elements:
        x, y = np.einsum("ij,jhw->ihw", space.basespace_action(~h), position).round(6)
        steered = bank[:, :, (centre - y).astype(int), (x + centre).astype(int)]
        rho_out, rho_in = (
            torch.from_numpy(np.asarray(t.representation(g), dtype=np.float64))
            for t, g in ((layer.out_type, h), (layer.in_type, ~h))
        )
        total += torch.einsum("oa,abhw,bi->oihw", rho_out, steered, rho_in)
    return total / space.fibergroup.order()


@pytest.mark.parametrize("space", ["flip", "C2", "C3", "D4"])
def test_means_over_the_group_have_a_weight_for_each_map_that_commutes_with_it(space: str) -> None:
    """Between irreps at one tap (Schur's lemma), in groups of two elements as in larger ones."""
    fields = battery.field_type(space, "irreps")
    layer = build(fields, fields, kernel_size=1, relax=None, soft_part="continuous")
    irreps = [fields.gspace.fibergroup.irrep(*irrep) for irrep in fields.irreps]
    expected = [a.sum_of_squares_constituents if a == b else 0 for a in irreps for b in irreps]
    assert [pair.weights.shape[-1] for pair in layer.kernel.steered_average.block_pairs] == expected
