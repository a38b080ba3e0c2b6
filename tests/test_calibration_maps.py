"""Maps on which a layer's scale is calibrated: smooth rectified noise of unit energy, as equivariant as the field."""

from __future__ import annotations

import battery
import numpy as np
import pytest
import torch
from escnn.group import Representation
from escnn.nn import FieldType
from transformations import fiber_action, relative_error

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
from escnn_relaxed.continuous.calibration import SyntheticMaps, gain, rectified

CASES = [
    ("C4", "regular + trivial + regular"),
    ("D4", "quotient + irreps"),
    ("SO(2)", "band-limited"),
    ("O(2)", "irreps"),
]


def maps_of(space: str, fields: list[Representation], kernel_size: int = 3) -> SyntheticMaps:
    field_type = FieldType(battery.gspace(space), fields)
    layer = RelaxedR2Conv(field_type, field_type, kernel_size, relax=None, kernel=ContinuousKernel())
    return layer.kernel.feature_maps()


@pytest.mark.parametrize(("space", "fields"), CASES)
def test_maps_have_the_channels_of_the_fields_and_an_energy_of_order_one(space: str, fields: str) -> None:
    field_type = battery.field_type(space, fields)
    maps = maps_of(space, list(field_type.representations))
    all_channels = maps.few[:, maps.channels]
    assert all_channels.shape[:2] == (4, field_type.size)
    assert maps.energy() == pytest.approx(float(all_channels.square().mean()), rel=1e-5)
    # Unit energy of the fields that were drawn; kinds are counted unequally when they serve for all.
    assert 0.3 < maps.energy() < 3


def test_equal_fields_beyond_a_few_share_their_maps_in_any_order() -> None:
    regular, trivial = battery.gspace("C4").regular_repr, battery.gspace("C4").trivial_repr
    maps = maps_of("C4", [regular, trivial, *[regular] * 5])
    assert maps.few.shape[1] == 4 * (regular.size + trivial.size)
    first, other, *rest = maps.channels.split([4, 1, 4, 4, 4, 4, 4])
    assert torch.equal(first, rest[3])
    assert len({*first.tolist(), *other.tolist(), *rest[0].tolist()}) == 9


def test_output_of_folded_bank_is_that_of_the_whole_bank() -> None:
    regular = battery.gspace("C4").regular_repr
    maps = maps_of("C4", [regular] * 6)
    bank = torch.randn(8, 24, 3, 3, dtype=torch.float64)
    found = SyntheticMaps(maps.few.double(), maps.channels).convolved(bank, stride=2)
    expected = torch.nn.functional.conv2d(maps.few.double()[:, maps.channels], bank, stride=2)
    # The sum over 24 channels and 9 taps in another order.
    assert relative_error(found, expected) <= 1e-14


@pytest.mark.parametrize(("kernel_size", "stride"), [(1, 1), (3, 1), (5, 2), (7, 3)])
def test_gain_is_that_of_one_output_for_each_half_kernel(kernel_size: int, stride: int) -> None:
    fields = [battery.gspace("C4").regular_repr]
    features = maps_of("C4", fields, kernel_size)
    bank = torch.randn(4, 4, kernel_size, kernel_size)
    outputs = torch.nn.functional.conv2d(features.few[:, features.channels], bank, stride=stride).relu()
    expected = outputs.square().mean().sqrt().item() / features.energy() ** 0.5
    # float32 sums over some thousand values; another stride is off by 1e-3.
    assert gain(bank, features, fields, battery.gspace("C4")) == pytest.approx(expected, rel=1e-5)


def test_maps_do_not_depend_on_gradients_or_leave_a_graph() -> None:
    gspace = battery.gspace("C4")
    bank = torch.randn(4, 4, 3, 3, requires_grad=True)
    fields = [gspace.regular_repr]
    assert isinstance(gain(bank, maps_of("C4", fields), fields, gspace), float)
    assert bank.grad is None


def test_gain_is_proportional_to_the_bank_and_one_for_an_empty_bank() -> None:
    gspace = battery.gspace("C4")
    fields = [gspace.regular_repr]
    bank = torch.randn(4, 4, 3, 3)
    maps = maps_of("C4", fields)
    gains = [gain(factor * bank, maps, fields, gspace) for factor in (1.0, 3.0, 0.0)]
    # float32 sums over some thousand values
    assert gains[1] == pytest.approx(3 * gains[0], rel=1e-5)
    assert gains[2] == 1.0


@pytest.mark.parametrize(
    ("space", "fields"),
    [("C4", "regular"), ("D4", "quotient"), ("C8", "irreps"), ("SO(2)", "band-limited"), ("O(2)", "band-limited")],
)
def test_rectification_commutes_with_the_group(space: str, fields: str) -> None:
    """Elements of the sampled grid of a continuous group; all of a finite one."""
    field_type = battery.field_type(space, fields)
    gspace, group = field_type.gspace, field_type.fibergroup
    maps = torch.randn(2, field_type.size, 3, 3, dtype=torch.float64)
    fields_of_type = list(field_type.representations)
    for element in group.grid(type="regular", N=4) if group.continuous else group.elements:
        found = rectified(fiber_action(maps, field_type, element), fields_of_type, gspace)
        expected = fiber_action(rectified(maps, fields_of_type, gspace), field_type, element)
        # A pseudo-inverse of 16 or 32 samples in float64, and escnn's matrices to 1e-9.
        assert relative_error(found, expected) <= 1e-8


def test_rectification_of_permutation_fields_is_relu() -> None:
    field_type = battery.field_type("D4", "regular + quotient")
    maps = torch.randn(1, field_type.size, 2, 2)
    found = rectified(maps, list(field_type.representations), field_type.gspace)
    assert torch.equal(found, maps.relu())
    assert np.isfinite(found.numpy()).all()
