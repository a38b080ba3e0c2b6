"""The paper's three special cases, and its kernel between regular fields, exactly."""

from __future__ import annotations

import itertools

import battery
import pytest
import torch
from escnn import gspaces
from escnn.nn import FieldType
from layers import build, build_with_oracle
from tolerances import ROUNDING
from torch.nn.functional import conv2d
from transformations import relative_error

EVERYTHING_CONSTANT = {"position": 0.0, "rotation": 0.0, "reflection": 0.0}


def disk(kernel_size: int) -> torch.Tensor:
    """1 on the taps within (k − 1)/2 of the centre, for even k within k/2: (k, k)."""
    line = torch.arange(kernel_size) - (kernel_size - 1) / 2
    radius = kernel_size // 2
    return (line[:, None] ** 2 + line**2 <= radius**2 + 1e-9).double()


@pytest.mark.parametrize(
    ("space", "pair"),
    [("C4", "two regular -> regular"), ("D4", "regular -> regular"), ("D3", "quotient -> regular")],
)
def test_no_domain_frequency_gives_a_group_convolution(space: str, pair: str) -> None:
    """ω′ = 0: K_{g,g′}(d) = k(g′⁻¹d, g′⁻¹g), one kernel turned with g′."""
    in_type, out_type = battery.types(space, pair)
    layer, oracle = build_with_oracle(in_type, out_type, relax=battery.subgroups(space, 0.2), initial_softness=0.3)
    layer.set_domain_frequency(**battery.subgroups(space, 0.0))
    # The domain's coordinates are gone: every element g′ has those of another.
    identity = in_type.fibergroup.identity
    coordinates = oracle.domain_point
    oracle.domain_point = lambda element, position: coordinates(identity, position)
    with torch.no_grad():
        expected = torch.stack([oracle.bank(tap) for tap in oracle.taps()], dim=-1).unflatten(-1, (3, 3))
        assert relative_error(layer.filter_bank(), expected) <= ROUNDING
        layer.set_domain_frequency(**battery.subgroups(space, 0.2))
        assert relative_error(layer.filter_bank(), expected) > 1e-2


@pytest.mark.parametrize(
    ("space", "pair", "kernel_size"),
    [
        *[("trivial", "trivial -> trivial", size) for size in (2, 3, 4, 5, 7)],
        ("C8", "trivial -> regular", 3),
        ("C4", "two regular -> regular", 4),
        ("D4", "regular -> irreps", 5),
        ("SO(2)", "band-limited -> irreps", 2),
        ("O(2)", "irreps -> irreps", 3),
    ],
)
def test_no_frequency_at_all_gives_pooling_over_the_disk(space: str, pair: str, kernel_size: int) -> None:
    """ω = ω′ = 0: the kernel is constant."""
    in_type, out_type = battery.types(space, pair)
    layer = build(
        in_type,
        out_type,
        kernel_size,
        bias=False,
        relax=battery.subgroups(space, 0.0),
        filter_frequency=EVERYTHING_CONSTANT,
        support="disk",
    )
    with torch.no_grad():
        bank = layer.filter_bank()
        middle = kernel_size // 2
        mixing = bank[:, :, middle, middle]
        assert mixing.norm() > 0
        assert relative_error(bank, mixing[:, :, None, None] * disk(kernel_size)) <= ROUNDING
        features = battery.random_input(in_type, kernel_size + 2, kernel_size + 1)
        sums = conv2d(features.flatten(0, 1).unsqueeze(1), disk(kernel_size)[None, None])
        sums = sums.squeeze(1).unflatten(0, features.shape[:2])
        expected = torch.einsum("oi,bihw->bohw", mixing, sums)
        assert relative_error(layer(in_type(features)).tensor, expected) <= ROUNDING


def test_no_frequency_at_all_pools_over_the_group_too() -> None:
    in_type, out_type = battery.types("D4", "regular -> regular")
    layer = build(in_type, out_type, relax=None, filter_frequency=EVERYTHING_CONSTANT, support="disk")
    bank = layer.filter_bank()[:, :, 1, 1].detach()
    assert float((bank - bank[0, 0]).norm() / bank.norm()) <= ROUNDING


def test_filter_frequency_of_position_alone_lets_the_bank_vary_over_taps() -> None:
    """The test of pooling can fail."""
    in_type, out_type = battery.types("C4", "trivial -> regular")
    frequency = EVERYTHING_CONSTANT | {"position": 0.3}
    layer = build(in_type, out_type, relax=None, filter_frequency=frequency, support="disk")
    bank = layer.filter_bank().detach()
    # Three taps of the disk that no quarter turn maps to one another, of one channel.
    assert float(bank[0, 0, [1, 1, 0], [1, 2, 1]].std() / bank.std()) > 1e-2


@pytest.mark.parametrize(
    ("space", "pair", "relax"),
    [
        ("trivial", "trivial -> trivial", {"translation": 0.4}),
        ("C4", "two regular -> regular", {"translation": 0.4}),
        ("D4", "regular -> irreps", {"translation": (0.2, 0.5), "rotation": 0.2, "reflection": 0.5}),
        ("O(2)", "irreps -> irreps", {"translation": 0.3, "reflection": 0.5}),
    ],
)
def test_one_by_one_kernel_is_a_linear_product_at_each_position(space: str, pair: str, relax: dict[str, float]) -> None:
    in_type, out_type = battery.types(space, pair)
    arguments = {"relax": relax, "regions": None, "initial_softness": 0.3, "samples": 4}
    layer, oracle = build_with_oracle(in_type, out_type, 1, **arguments)
    size = (3, 4)
    features = battery.random_input(in_type, *size)
    expected = torch.empty(2, out_type.size, *size, dtype=torch.float64)
    with torch.no_grad():
        found = layer(in_type(features)).tensor
        matrices = []
        for row, column in itertools.product(range(size[0]), range(size[1])):
            matrices.append(oracle.bank((0.0, 0.0), oracle.position((row, column), size)))
            expected[:, :, row, column] = features[:, :, row, column] @ matrices[-1].mT + layer.expanded_bias()
        assert relative_error(found, expected) <= ROUNDING
        # Position-wise: another product at another position, and no pixel sees another.
        assert relative_error(matrices[0], matrices[5]) > 1e-4
        features[:, :, 1, 2] += 1
        changed = (layer(in_type(features)).tensor != found).any(dim=1).any(dim=0)
    assert changed.nonzero().tolist() == [[1, 2]]


def test_one_by_one_kernel_by_regions_is_a_linear_product_in_each_quarter() -> None:
    in_type, out_type = battery.types("D4", "regular -> irreps")
    arguments = {"relax": {"translation": (0.2, 0.5), "rotation": 0.2}, "regions": 2, "initial_softness": 0.3}
    layer, oracle = build_with_oracle(in_type, out_type, 1, **arguments)
    features = battery.random_input(in_type, 8, 8)
    with torch.no_grad():
        found = layer(in_type(features)).tensor
        # Centres of the quarters lie half of the way to the border, y up.
        for rows, y in ((slice(0, 4), 0.5), (slice(4, 8), -0.5)):
            for columns, x in ((slice(0, 4), -0.5), (slice(4, 8), 0.5)):
                matrix = oracle.bank((0.0, 0.0), (x, y))
                expected = torch.einsum("oi,bihw->bohw", matrix, features[:, :, rows, columns])
                expected = expected + layer.expanded_bias()[:, None, None]
                assert relative_error(found[:, :, rows, columns], expected) <= ROUNDING
        assert relative_error(matrix, oracle.bank((0.0, 0.0), (-0.5, 0.5))) > 1e-4


@pytest.mark.parametrize("relaxed", [False, True], ids=["strict", "soft"])
@pytest.mark.parametrize("space", ["flip", "C4", "D3"])
def test_regular_bank_is_one_function_of_the_relative_element(space: str, relaxed: bool) -> None:
    """K_{g,g′}(d) = k(g′⁻¹d, g′⁻¹g; a(g′)) for every pair of fields, entry by entry."""
    in_type, out_type = battery.types(space, "two regular -> regular")
    relax = battery.subgroups(space, 0.2) if relaxed else None
    layer, oracle = build_with_oracle(in_type, out_type, relax=relax, initial_softness=0.3)
    elements = list(in_type.fibergroup.elements)
    output_weights = layer.bank.steered_average.pairs[0]
    with torch.no_grad():
        weights = output_weights.weights @ output_weights.units  # (fields out, fields in, J + 1)
        bank = layer.filter_bank().flatten(2)
        bank = bank.unflatten(1, (2, len(elements)))  # (g, field in, g′, tap)
        for number, tap in enumerate(oracle.taps()):
            for (i, g), (j, v) in itertools.product(enumerate(elements), enumerate(elements)):
                hidden = oracle.hidden_values(v, tap, (0.0, 0.0), relative=~v @ g)
                # Entries are of order one, and sums of 33 terms: rounding is 1e-16 times a few.
                assert (bank[i, :, j, number] - weights[0] @ hidden).abs().max() <= 1e-13 * bank.abs().max()


@pytest.mark.parametrize("pair", ["regular -> regular", "trivial -> regular", "regular -> trivial"])
@pytest.mark.parametrize("reflections", [False, True], ids=["C_N", "D_N"])
def test_parameter_count_does_not_depend_on_the_number_of_rotations(pair: str, reflections: bool) -> None:
    make = gspaces.flipRot2dOnR2 if reflections else gspaces.rot2dOnR2
    counts = []
    for order in (4, 8, 16):
        space = make(order)
        fields = {"regular": space.regular_repr, "trivial": space.trivial_repr}
        in_type, out_type = (FieldType(space, [fields[name]] * 3) for name in pair.split(" -> "))
        layer = build(in_type, out_type, relax={"rotation": 0.1})
        counts.append(sum(p.numel() for p in layer.parameters()))
    assert len(set(counts)) == 1, counts
