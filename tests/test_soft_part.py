"""The face of a soft part, for each of its forms: scale, energies, start and description."""

from __future__ import annotations

import battery
import pytest
import torch
from torch import Tensor

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
from escnn_relaxed.group.elements import SUBGROUPS
from escnn_relaxed.group.frame import GroupFrame
from escnn_relaxed.kernel.filter_bank import ContinuousFilterBank
from escnn_relaxed.layer.softened_convolution import FORMS

# Sums of some hundred terms in float64.
ROUNDING = 1e-12
SPACES = ("C4", "D4", "SO(2)")
EVERY_FORM = pytest.mark.parametrize("form", FORMS)
EVERY_SPACE = pytest.mark.parametrize("space", SPACES)


def soft_part(form: str, space: str) -> tuple[ContinuousFilterBank, dict[str, Tensor]]:
    """A soft part that has been started, and its ω′."""
    fields = battery.field_type(space, "irreps").representations
    relaxed = battery.subgroups(space, 0.25)
    frame = GroupFrame(battery.gspace(space), samples=8)
    bank = FORMS[form](
        fields, fields, frame, ContinuousKernel(), kernel_size=3, dilation=1, domain_subgroups=tuple(relaxed)
    ).double()
    frequency = {name: torch.tensor([value], dtype=torch.float64) for name, value in relaxed.items()}
    bank.start(frequency, softness=0.2, strict_energy=3.0)
    return bank, frequency


@EVERY_SPACE
@EVERY_FORM
def test_mean_over_the_domain_is_the_strict_part_or_nothing(form: str, space: str) -> None:
    bank, frequency = soft_part(form, space)
    kernel, mean = bank(frequency), bank(frequency, SUBGROUPS)
    assert kernel.norm() > 0.1
    assert (mean.norm() > ROUNDING * kernel.norm()) == bank.holds_strict_part


@EVERY_SPACE
@EVERY_FORM
def test_energies_are_those_of_the_kernel_and_of_its_mean(form: str, space: str) -> None:
    """Both are plain sums of squares of filter banks, since blocks are irreps and the grid is mapped to itself."""
    bank, frequency = soft_part(form, space)
    soft, strict = bank.energies(frequency, (), SUBGROUPS)
    kernel, mean = bank(frequency), bank(frequency, SUBGROUPS)
    assert soft.item() == pytest.approx((kernel - mean).square().sum().item(), rel=ROUNDING)
    assert strict.item() == pytest.approx(mean.square().sum().item(), rel=ROUNDING, abs=ROUNDING)
    hardened, rest = bank.energies(frequency, SUBGROUPS, SUBGROUPS)
    assert hardened.item() == 0
    assert rest.item() == pytest.approx(strict.item(), rel=ROUNDING)


@EVERY_SPACE
@EVERY_FORM
def test_scale_multiplies_the_kernel(form: str, space: str) -> None:
    bank, frequency = soft_part(form, space)
    before = bank(frequency)
    bank.scale(3.0)
    assert torch.allclose(bank(frequency), 3 * before, rtol=ROUNDING, atol=ROUNDING)


@EVERY_SPACE
def test_start_beside_a_strict_part_has_the_wanted_share_of_its_energy(space: str) -> None:
    bank, frequency = soft_part("steerable", space)
    soft, _ = bank.energies(frequency, (), SUBGROUPS)
    # s/(1 − s) of the energy that the strict part was said to have.
    assert soft.item() == pytest.approx(0.25 * 3.0, rel=ROUNDING)


@EVERY_FORM
def test_description_is_in_that_of_the_layer(form: str) -> None:
    fields = battery.field_type("D4", "regular")
    layer = RelaxedR2Conv(fields, fields, 3, strict_kernel=form)
    described = layer.describe()
    assert described["soft in"] == ["rotation", "reflection"]
    assert {key: described[key] for key in layer.bank.describe()} == layer.bank.describe()
