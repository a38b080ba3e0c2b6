"""The strict part of a layer and its softness, against the explicit average over every group that keeps the grid."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import battery
import pytest
import torch
from escnn.nn import FieldType
from group_average import acted, energy, subgroup_elements
from layers import ROUGH, SOFT_PARTS, build
from tolerances import ROUNDING
from torch import Tensor
from transformations import equivariance_error, relative_error

from escnn_relaxed import RelaxedR2Conv, harden_network
from escnn_relaxed.kernel import SirenKernel

# Domain frequencies below the limit of C4, where warnings are errors.
SOFT = {"rotation": 0.3, "reflection": 0.5}

# Every pair of field types: in both forms of the kernel on C4, in one of them on D4. The rest are like these in other
# axes, or smaller, and have every sixth pair.
BOTH_FORMS = ("C4",)
ONE_FORM = ("D4",)
IN_PART = ("trivial", "flip", "flip axis 0", "C2", "D1", "D2", "D4 axis 45°")
SPACES = BOTH_FORMS + ONE_FORM + IN_PART


def cases() -> list[tuple[str, str, str, int]]:
    """Symmetry, pair of field types, form of the kernel, kernel size: odd and even in turn."""
    chosen = []
    for row, space in enumerate(SPACES):
        for number, pair in enumerate(battery.pairs(space)):
            kernel_size = 3 + (row + number // 2) % 2
            if space in BOTH_FORMS:
                chosen += [(space, pair, form, kernel_size) for form in SOFT_PARTS]
            elif space in ONE_FORM or number % 6 == row % 6:
                chosen.append((space, pair, SOFT_PARTS[(row + number) % 2], kernel_size))
    return chosen


CASES = cases()
WITH_BOTH_SUBGROUPS = [case for case in CASES if case[0] in ("D2", "D4", "D4 axis 45°")]

EVERY_CASE = pytest.mark.parametrize(("space", "pair", "soft_part", "kernel_size"), CASES)
EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)


@dataclass(frozen=True)
class Case:
    """A soft layer, its filter bank K and h K h⁻¹ by the averaged subgroups."""

    layer: RelaxedR2Conv
    bank: Tensor
    moved: dict[tuple[str, ...], Tensor]

    def mean(self, *subgroups: str) -> Tensor:
        """P K."""
        return self.moved[subgroups].mean(dim=0)


def rough_layer(in_type: FieldType, out_type: FieldType, kernel_size: int = 3, **arguments: object) -> RelaxedR2Conv:
    relax = {name: SOFT[name] for name in battery.subgroups(name_of(in_type), 1.0)}
    return build(
        in_type,
        out_type,
        **{"kernel_size": kernel_size, "relax": relax, "initial_softness": 0.3, "filter_frequency": ROUGH} | arguments,
    )


def name_of(field_type: FieldType) -> str:
    return next(name for name in battery.GSPACES if battery.gspace(name) == field_type.gspace)


@torch.no_grad()
def averaged(layer: RelaxedR2Conv) -> Case:
    bank = layer.filter_bank()
    space = layer.in_type.gspace
    choices = [(), ("rotation",), ("reflection",), ("rotation", "reflection")]
    return Case(layer, bank, {names: acted(layer, bank, subgroup_elements(space, names)) for names in choices})


@functools.cache
def case(space: str, pair: str, soft_part: str, kernel_size: int) -> Case:
    """Built once: what follows are several claims about the same layers."""
    torch.manual_seed(0)
    return averaged(rough_layer(*battery.types(space, pair), kernel_size, soft_part=soft_part))


@torch.no_grad()
def check_strict_part(given: Case, *subgroups: str) -> None:
    """The hardened layer is the mean over the subgroup, and the softness is what that leaves out of the energy.

    It is half of the mean square of the error, too: mean over h of ‖hKh⁻¹ − K‖² = 2‖K − PK‖² = 2s‖K‖².
    """
    layer, bank, mean = given.layer, given.bank, given.mean(*subgroups)
    assert relative_error(harden_network(layer, subgroups).filter_bank(), mean) <= ROUNDING
    found, rest, whole = layer.softness(*subgroups).item(), energy(layer, bank - mean), energy(layer, bank)
    assert found == pytest.approx(float(rest / whole), rel=0, abs=ROUNDING)
    assert float(energy(layer, mean) + rest) == pytest.approx(float(whole), rel=ROUNDING)
    error = energy(layer, given.moved[subgroups] - bank).mean() / whole
    assert float(error) == pytest.approx(2 * found, rel=0, abs=ROUNDING)


def test_every_element_is_averaged_over() -> None:
    """The explicit average of the tests below is one over the whole group."""
    for space in SPACES:
        gspace = battery.gspace(space)
        assert len(subgroup_elements(gspace)) == gspace.fibergroup.order()
    d4 = battery.gspace("D4")
    assert [len(subgroup_elements(d4, names)) for names in (["rotation"], ["reflection"])] == [4, 2]


@EVERY_CASE
def test_hardened_layer_is_the_mean_over_the_group(space, pair, soft_part, kernel_size) -> None:
    """Over the whole group; over rotations, and over {1, f}, where both are soft."""
    given = case(space, pair, soft_part, kernel_size)
    check_strict_part(given)
    if (space, pair, soft_part, kernel_size) in WITH_BOTH_SUBGROUPS:
        check_strict_part(given, "rotation")
        check_strict_part(given, "reflection")
    # Layers that may be soft are soft enough for the claims about them to fail.
    softness = given.layer.softness().item()
    assert softness == 0 if space == "trivial" else 1e-3 < softness < 1


@torch.no_grad()
@pytest.mark.parametrize("first", ["rotation", "reflection"])
@pytest.mark.parametrize(("space", "pair", "soft_part", "kernel_size"), WITH_BOTH_SUBGROUPS[::4])
def test_one_subgroup_after_the_other_is_both(space, pair, soft_part, kernel_size, first) -> None:
    """The softness of a layer that is hardened in one is that of the kernel that is left."""
    given = case(space, pair, soft_part, kernel_size)
    (second,) = {"rotation", "reflection"} - {first}
    once = harden_network(given.layer, (first,))
    left = energy(given.layer, given.mean(first) - given.mean()) / energy(given.layer, given.mean(first))
    assert once.softness().item() == pytest.approx(float(left), rel=0, abs=ROUNDING)
    assert once.softness(second).item() == pytest.approx(float(left), rel=0, abs=ROUNDING)
    assert once.softness(first).item() <= ROUNDING
    both = harden_network(once, (second,))
    assert relative_error(both.filter_bank(), given.mean()) <= ROUNDING
    assert both.softness().item() <= ROUNDING


@EVERY_KERNEL
@pytest.mark.parametrize(
    ("space", "pair", "soft", "exact"),
    [
        ("C4", "regular -> irreps", "rotation", "reflection"),
        ("flip", "regular -> irreps", "reflection", "rotation"),
        ("D4", "regular -> regular", "reflection", "rotation"),
    ],
)
def test_softness_in_a_subgroup_that_is_exact_is_zero(space, pair, soft, exact, soft_part: str) -> None:
    layer = rough_layer(*battery.types(space, pair), relax={soft: SOFT[soft]}, soft_part=soft_part)
    layer.requires_grad_(False)
    assert layer.softness(exact).item() <= 1e-15
    assert layer.softness("translation").item() <= 1e-15
    assert layer.softness(soft).item() == pytest.approx(layer.softness().item(), rel=ROUNDING)
    assert layer.softness().item() > 1e-3
    before = layer.filter_bank()
    assert relative_error(harden_network(layer, (exact,)).filter_bank(), before) <= ROUNDING


def test_soft_rotation_alone_is_soft_in_reflections_too() -> None:
    """Reflections with another axis hold a rotation; {1, f} sees a(fg) ≠ a(g) as well."""
    layer = rough_layer(*battery.types("D4", "regular -> irreps"), relax={"rotation": 0.3})
    check_strict_part(averaged(layer), "reflection")
    assert layer.softness("reflection").item() > 1e-3


FORMS = {
    "groups": {"groups": 2},
    "groups of an even kernel": {"groups": 2, "kernel_size": 4},
    "kernel 1": {"kernel_size": 1},
    "kernel 2": {"kernel_size": 2},
    "kernel 5": {"kernel_size": 5},
    "dilation": {"dilation": 2},
    "hard disk": {"kernel_size": 5, "support": "disk"},
    "siren": {"net": SirenKernel},
    "log coordinates": {"rotation_coordinates": "log"},
    "learned": {"learn_relaxation": True},
}


@EVERY_KERNEL
@pytest.mark.parametrize("form", FORMS)
def test_strict_part_is_the_mean_whatever_the_kernel(form: str, soft_part: str) -> None:
    in_type = battery.field_type("D2", "regular + last irrep + regular + last irrep")
    out_type = battery.field_type("D2", "last irrep + regular + last irrep + regular")
    layer = rough_layer(in_type, out_type, soft_part=soft_part, **FORMS[form])
    given = averaged(layer)
    for subgroups in given.moved:
        check_strict_part(given, *subgroups)
    assert layer.softness().item() > 1e-3


@torch.no_grad()
@EVERY_KERNEL
@pytest.mark.parametrize("groups", [1, 2])
def test_hardened_layer_applies_the_mean_with_its_stride_padding_and_bias(groups: int, soft_part: str) -> None:
    in_type, out_type = battery.types("D4", "regular + regular -> irreps + irreps")
    layer = rough_layer(in_type, out_type, stride=2, padding=1, groups=groups, soft_part=soft_part)
    features = battery.random_input(in_type, 7, 7)
    expected = torch.nn.functional.conv2d(
        features, averaged(layer).mean(), layer.expanded_bias(), stride=2, padding=1, groups=groups
    )
    assert relative_error(harden_network(layer)(in_type(features)).tensor, expected) <= ROUNDING


@torch.no_grad()
@EVERY_KERNEL
@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize(("space", "pair"), [("C4", "two regular -> irreps"), ("D4", "mixed, sheared -> regular")])
def test_layer_at_zero_is_its_own_strict_part(space: str, pair: str, learn: bool, soft_part: str) -> None:
    layer = rough_layer(*battery.types(space, pair), soft_part=soft_part, learn_relaxation=learn)
    assert layer.softness().item() > 1e-3
    layer.set_domain_frequency(**battery.subgroups(space, 0.0))
    assert layer.softness().item() <= 1e-15
    assert relative_error(harden_network(layer).filter_bank(), layer.filter_bank()) <= ROUNDING


@EVERY_KERNEL
def test_strict_layer_has_softness_zero(soft_part: str) -> None:
    layer = rough_layer(*battery.types("D4", "regular -> irreps"), relax=None, soft_part=soft_part)
    for subgroups in ((), ("rotation",), ("reflection", "translation")):
        assert layer.softness(*subgroups).item() == 0


@EVERY_KERNEL
def test_softness_does_not_depend_on_the_size_of_the_kernel(soft_part: str) -> None:
    layer = rough_layer(*battery.types("C4", "regular -> irreps"), soft_part=soft_part)
    expected = layer.softness().item()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            is_modulation = soft_part == "tied" and name.startswith("bank.")
            if name.endswith("weights") and not is_modulation:
                parameter.mul_(1e-3)
    assert layer.softness().item() == pytest.approx(expected, rel=ROUNDING)


@EVERY_KERNEL
def test_softness_is_known_in_single_precision(soft_part: str) -> None:
    layer = rough_layer(*battery.types("D4", "mixed, sheared -> regular"), soft_part=soft_part)
    expected = layer.softness().item()
    found = layer.float().softness()
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected, rel=1e-4)  # a few hundred terms in float32


@EVERY_KERNEL
def test_error_on_white_noise_is_the_root_of_twice_the_softness(soft_part: str) -> None:
    in_type, out_type = battery.types("D4", "regular -> irreps")
    layer = rough_layer(in_type, out_type, soft_part=soft_part, bias=False, padding=1, padding_mode="circular")
    features = battery.random_input(in_type, 12, 12, batch=128)
    elements = subgroup_elements(in_type.gspace)
    square = sum(equivariance_error(layer, features, g) ** 2 for g in elements) / len(elements)
    # 150,000 values: the squared norms scatter by about a per cent.
    assert square == pytest.approx(2 * layer.softness().item(), rel=0.05)


@pytest.mark.parametrize("name", ["rotations", "fiber", ""])
def test_unknown_subgroup_is_named(name: str) -> None:
    layer = rough_layer(*battery.types("C4", "trivial -> regular"))
    for call in (layer.softness, layer.harden):
        with pytest.raises(ValueError, match=rf"\['rotation', 'reflection', 'translation'\], got '{name}'"):
            call("rotation", name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("softness", [0.01, 0.001])
def test_small_softness_is_seen_in_half_precision(softness: float, dtype: torch.dtype) -> None:
    layer = RelaxedR2Conv(*battery.types("C4", "regular -> regular"), 3, initial_softness=softness)
    exact = layer.softness().item()
    # Features of order one differ by 1 %, 3 of the 8 bits of bfloat16.
    assert layer.to(dtype).softness().item() == pytest.approx(exact, rel=0.2)
    layer.harden()
    assert layer.softness().item() == 0


def test_softness_of_a_layer_whose_weights_are_plain_tensors() -> None:
    """As where another network makes them: such a layer has no parameter."""
    fields = battery.field_type("C4", "regular")
    layer = RelaxedR2Conv(fields, fields, 3, relax=None, bias=False)
    weights = layer.weights.detach()
    del layer.weights
    layer.weights = weights
    assert not list(layer.parameters())
    assert layer.softness().item() == 0
