"""The face of a soft part, for each of its forms: scale, energies, start and description."""

from __future__ import annotations

import battery
import pytest
import torch
from layers import ALL_SOFT_PARTS, options_of
from torch import Tensor

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
from escnn_relaxed.group.elements import SUBGROUPS
from escnn_relaxed.group.frame import GroupFrame
from escnn_relaxed.kernel.centred_kernel import CentredKernel
from escnn_relaxed.kernel.sampled_basis import sampled_basis
from escnn_relaxed.kernel.single_kernel import SingleKernel
from escnn_relaxed.kernel.soft_part import SoftPart
from escnn_relaxed.kernel.steerable_basis import SteerableBasis, StrictPart
from escnn_relaxed.kernel.tied_kernel import TiedKernel

# Sums of some hundred terms in float64.
ROUNDING = 1e-12
SPACES = ("C4", "D4", "SO(2)")
FORMS = {"continuous": SingleKernel, "centred": CentredKernel, "tied": TiedKernel}
EVERY_FORM = pytest.mark.parametrize("form", ALL_SOFT_PARTS)
EVERY_SPACE = pytest.mark.parametrize("space", SPACES)


class Part:
    """A soft part that has been started, its ω′, and the strict part beside it, if there is one."""

    def __init__(self, form: str, space: str, softness: float = 0.2) -> None:
        fields = battery.field_type(space, "irreps")
        relaxed = battery.subgroups(space, 0.25)
        frame = GroupFrame(battery.gspace(space), samples=8)
        place = {"kernel_size": 3, "dilation": 1, "domain_subgroups": tuple(relaxed)}
        options = {} if form == "tied" else {"kernel": ContinuousKernel()}
        both = [list(fields.representations)] * 2
        self.bank: SoftPart = FORMS[form](*both, frame, **options, **place).double()
        self.frequency = {name: torch.tensor([value], dtype=torch.float64) for name, value in relaxed.items()}
        self.strict = None
        if form != "continuous":
            basis = SteerableBasis(fields, fields, 3, 1, 1, sampled_basis(fields, fields, 3, 1, 1)).double()
            self.strict = StrictPart(basis, basis.start_weights().double())
        self.bank.start(self.frequency, softness, self.strict)

    def kernel(self, averaged: tuple[str, ...] = ()) -> Tensor:
        """K, or its mean over subgroups."""
        kernel: Tensor = self.bank(self.frequency, averaged, self.strict)
        return kernel.detach()

    def energies(self, hardened: tuple[str, ...] = ()) -> tuple[Tensor, Tensor]:
        return self.bank.energies(self.frequency, hardened, SUBGROUPS, self.strict)


@EVERY_SPACE
@EVERY_FORM
def test_mean_over_the_domain_is_the_strict_part(form: str, space: str) -> None:
    part = Part(form, space)
    kernel, mean = part.kernel(), part.kernel(SUBGROUPS)
    assert (kernel - mean).norm() > 0.1 * kernel.norm()
    if part.strict is None:
        assert part.bank.holds_strict_part
        assert mean.norm() > 0.1 * kernel.norm()
    else:
        assert (mean - part.strict.kernel()).norm() <= ROUNDING * kernel.norm()


@EVERY_SPACE
@EVERY_FORM
def test_energies_are_those_of_the_kernel_and_of_its_mean(form: str, space: str) -> None:
    """Both are plain sums of squares of filter banks, since blocks are irreps and the grid is mapped to itself."""
    part = Part(form, space)
    soft, strict = part.energies()
    kernel, mean = part.kernel(), part.kernel(SUBGROUPS)
    assert soft.item() == pytest.approx((kernel - mean).square().sum().item(), rel=ROUNDING)
    # ‖PK‖² of this part alone.
    own = mean if part.strict is None else mean - part.strict.kernel()
    assert strict.item() == pytest.approx(own.square().sum().item(), rel=ROUNDING, abs=ROUNDING)
    hardened, rest = part.energies(SUBGROUPS)
    assert hardened.item() == 0
    assert rest.item() == pytest.approx(strict.item(), rel=ROUNDING, abs=ROUNDING)


@EVERY_SPACE
@EVERY_FORM
def test_scale_multiplies_the_soft_part(form: str, space: str) -> None:
    part = Part(form, space)
    strict = 0 if part.strict is None else part.strict.kernel()
    before = part.kernel() - strict
    part.bank.scale(3.0)
    assert torch.allclose(part.kernel() - strict, 3 * before, rtol=ROUNDING, atol=ROUNDING)


@EVERY_SPACE
@EVERY_FORM
def test_start_at_zero_leaves_the_strict_part_alone(form: str, space: str) -> None:
    part = Part(form, space)
    part.bank.start_at_zero(2.0)
    expected = torch.zeros(()) if part.strict is None else part.strict.kernel()
    assert torch.equal(part.kernel(), expected.expand_as(part.kernel()))


@EVERY_SPACE
@pytest.mark.parametrize("form", ["centred", "tied"])
def test_start_beside_a_strict_part_has_the_wanted_share_of_its_energy(form: str, space: str) -> None:
    part = Part(form, space)
    soft, _ = part.energies()
    # s/(1 − s) of the energy of the strict part.
    assert soft.item() == pytest.approx(0.25 * part.strict.energy().item(), rel=ROUNDING)


@pytest.mark.parametrize("form", ["centred", "tied"])
def test_start_that_wants_no_softness_has_none(form: str) -> None:
    part = Part(form, "D4", softness=0.0)
    assert part.energies()[0].item() == 0


@EVERY_FORM
def test_description_is_in_that_of_the_layer(form: str) -> None:
    fields = battery.field_type("D4", "regular")
    layer = RelaxedR2Conv(fields, fields, 3, **options_of(form))
    assert type(layer.bank) is FORMS[form]
    described = layer.describe()
    assert described["soft in"] == ["rotation", "reflection"]
    assert {key: described[key] for key in layer.bank.describe()} == layer.bank.describe()
