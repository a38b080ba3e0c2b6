"""What a layer's scale is calibrated on: smooth rectified noise of unit energy, as equivariant as the field."""

from __future__ import annotations

import battery
import numpy as np
import pytest
import torch
from escnn.group import Representation
from transformations import fiber_action, relative_error

from escnn_relaxed.initialization import gain, steerable_drawer
from escnn_relaxed.synthetic_features import rectified, synthetic_features

CASES = [
    ("C4", "regular + trivial + regular"),
    ("D4", "quotient + irreps"),
    ("SO(2)", "band-limited"),
    ("O(2)", "irreps"),
]
LAYERS = 2
ARGUMENTS = dict.fromkeys(("sigma", "frequencies_cutoff", "rings", "maximum_offset", "recompute", "basis_filter"))


def features_of(space: str, fields: list[Representation], kernel_size: int = 3) -> torch.Tensor:
    gspace = battery.gspace(space)
    return synthetic_features(fields, kernel_size, gspace, steerable_drawer(gspace, kernel_size, ARGUMENTS), LAYERS)


@pytest.mark.parametrize(("space", "fields"), CASES)
def test_features_have_the_channels_of_the_fields_and_an_energy_of_order_one(space: str, fields: str) -> None:
    field_type = battery.field_type(space, fields)
    features = features_of(space, list(field_type.representations))
    assert features.shape[:2] == (4, field_type.size)
    # Unit energy of the fields that were drawn; kinds are counted unequally when they serve for all.
    assert 0.3 < float(features.square().mean()) < 3


def test_equal_fields_beyond_a_few_share_their_features() -> None:
    gspace = battery.gspace("C4")
    features = features_of("C4", [gspace.regular_repr] * 6).unflatten(1, (6, 4))
    assert torch.equal(features[:, 0], features[:, 4])
    assert not torch.equal(features[:, 0], features[:, 1])


def test_features_do_not_depend_on_gradients_or_leave_a_graph() -> None:
    gspace = battery.gspace("C4")
    bank = torch.randn(4, 4, 3, 3, requires_grad=True)
    fields = [gspace.regular_repr]
    assert isinstance(gain(bank, fields, fields, gspace, steerable_drawer(gspace, 3, ARGUMENTS), LAYERS), float)
    assert bank.grad is None


def test_gain_is_proportional_to_the_bank_and_one_for_an_empty_bank() -> None:
    gspace = battery.gspace("C4")
    fields = [gspace.regular_repr]
    bank = torch.randn(4, 4, 3, 3)
    gains = []
    for factor in (1.0, 3.0, 0.0):
        torch.manual_seed(0)
        gains.append(gain(factor * bank, fields, fields, gspace, steerable_drawer(gspace, 3, ARGUMENTS), LAYERS))
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
    features = torch.randn(2, field_type.size, 3, 3, dtype=torch.float64)
    fields_of_type = list(field_type.representations)
    for element in group.grid(type="regular", N=4) if group.continuous else group.elements:
        found = rectified(fiber_action(features, field_type, element), fields_of_type, gspace)
        expected = fiber_action(rectified(features, fields_of_type, gspace), field_type, element)
        # A pseudo-inverse of 16 or 32 samples in float64, and escnn's matrices to 1e-9.
        assert relative_error(found, expected) <= 1e-8


def test_rectification_of_permutation_fields_is_relu() -> None:
    field_type = battery.field_type("D4", "regular + quotient")
    features = torch.randn(1, field_type.size, 2, 2)
    found = rectified(features, list(field_type.representations), field_type.gspace)
    assert torch.equal(found, features.relu())
    assert np.isfinite(found.numpy()).all()
