"""Steered features of many pairs by one product are those of each pair."""

from __future__ import annotations

import pytest
import torch
from escnn import gspaces
from escnn.group import Representation

from escnn_relaxed.group.elements import sample_group
from escnn_relaxed.group.fields import FieldStructure
from escnn_relaxed.kernel.steered_average import SteeredAverage

D4, SO2 = gspaces.flipRot2dOnR2(4), gspaces.rot2dOnR2(-1)
FIELDS = {
    "irreps of SO(2), more of some": (SO2, [SO2.irrep(0), SO2.irrep(1), SO2.irrep(1), SO2.irrep(2)]),
    "irreps of SO(2)": (SO2, [SO2.irrep(0), SO2.irrep(1), SO2.irrep(2)] * 2),
    "quotients, irreps and regular of D4": (
        D4,
        [D4.quotient_repr((None, 2)), D4.regular_repr, D4.irrep(1, 1), D4.quotient_repr((0, 1)), D4.trivial_repr],
    ),
}


@pytest.fixture(params=FIELDS)
def average(request: pytest.FixtureRequest) -> SteeredAverage:
    gspace, representations = FIELDS[request.param]
    sample = sample_group(gspace, 8)
    structure = FieldStructure([r for r in representations if isinstance(r, Representation)], sample)
    return SteeredAverage(structure, structure, sample, features=3, has_constant=False).double()


@pytest.mark.parametrize("positions", [1, 4])
def test_steered_features_of_groups_are_those_of_each_pair(average: SteeredAverage, positions: int) -> None:
    elements, taps = 8, 5
    hidden = torch.randn(3, elements, positions, elements, taps, dtype=torch.float64)
    for group, steered in zip(average.groups, average._steered(hidden), strict=True):
        for place, number in enumerate(group):
            expected = average.block_pairs[number].steering(hidden).movedim(3, 0)
            torch.testing.assert_close(steered[:, place], expected.flatten(2))


def test_pairs_of_one_group_are_alike(average: SteeredAverage) -> None:
    counts = average.pair_counts()
    assert sorted(number for group in average.groups for number in group) == list(range(len(counts)))
    for group in average.groups:
        steerings = [average.block_pairs[number].steering for number in group]
        assert (
            len({(of.sizes, of.entries, of.is_relative, counts[n]) for of, n in zip(steerings, group, strict=True)})
            == 1
        )


def test_bank_is_the_sum_over_the_features_of_each_pair(average: SteeredAverage) -> None:
    hidden = torch.randn(3, 8, 1, 8, 5, dtype=torch.float64)
    average.initialize(hidden, [None] * len(average.pairs))
    energy = sum(
        torch.einsum("oif,fabpt->oiabpt", pair.weights @ pair.units, pair.steering(hidden)).square().sum()
        for pair in average.block_pairs
    )
    torch.testing.assert_close(average.energy(hidden), energy)
    if not average.assembly.has_basis:
        torch.testing.assert_close(average(hidden).square().sum(), energy)


def test_irreps_of_two_dimensions_share_a_product() -> None:
    gspace, representations = FIELDS["irreps of SO(2)"]
    sample = sample_group(gspace, 8)
    structure = FieldStructure(representations, sample)
    groups = SteeredAverage(structure, structure, sample, features=3, has_constant=False).groups
    assert sorted(map(len, groups)) == [1, 2, 2, 4]
