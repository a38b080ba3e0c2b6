"""The strict part of a layer and its softness, against the explicit average over every group that keeps the grid."""

from __future__ import annotations

import pytest
import small
import torch
from baseline_layers import WAYS, baseline
from errors import BROKEN, ROUNDING, largest_error, relative_error
from group_average import check_strict_part, energy, kernel_of, mean_over, subgroup_elements
from small import EVERY_KERNEL, ROUGH, TORUS, build, soft_layer, soft_regular_layer

from escnn_relaxed import RelaxedR2Conv, harden_network
from escnn_relaxed.continuous import SirenKernel
from escnn_relaxed.layer.convolution import RelaxedConvolution

# Domain frequencies below the limit of C4, where warnings are errors.
SOFT = {"rotation": 0.3, "reflection": 0.5}

# Every pair of field types on D4. The rest are like it in other axes, or smaller, and have every sixth pair; other
# forms of the kernel a share of all.
SPACES = ("C4", "D4", "trivial", "flip", "flip axis 0", "C2", "D1", "D2", "D4 axis 45°")
OF_ELEMENTS = [
    ("C4", "trivial -> regular"),
    ("D4", "regular -> two regular"),
    ("D4", "regular -> quotient"),
    ("D4", "mixed, sheared -> regular"),
    ("D4 axis 45°", "trivial -> reordered regular"),
    ("D2", "quotient -> regular"),
    ("flip axis 0", "regular -> regular"),
]


def cases() -> list[tuple[str, str, str, int]]:
    """Symmetry, pair of field types, form of the layer, kernel size: odd and even in turn."""
    chosen = [(space, pair, way, 3) for way in WAYS for space, pair in OF_ELEMENTS]
    for row, space in enumerate(SPACES):
        for number, pair in enumerate(small.pairs(space)):
            place = space, pair, 3 + (row + number // 2) % 2
            if space == "D4" or number % 6 == row % 6:
                chosen.append((*place[:2], "tied", place[2]))
            if number % 6 == (row + 2) % 6:
                chosen.append((*place[:2], "continuous", place[2]))
    return chosen


OPTIONS: list[tuple[str, dict[str, object]]] = [
    ("tied", {"groups": 2}),
    ("tied", {"groups": 2, "kernel_size": 4}),
    ("continuous", {"groups": 2}),
    ("tied", {"kernel_size": 1}),
    ("tied", {"kernel_size": 2}),
    ("tied", {"kernel_size": 5}),
    ("tied", {"dilation": 2}),
    ("tied", {"learn_relaxation": True}),
    ("continuous", {"kernel_size": 5, "support": "disk"}),
    ("continuous", {"net": SirenKernel}),
    ("continuous", {"rotation_coordinates": "log"}),
]
KINDS = "regular + last irrep + regular + last irrep -> last irrep + regular + last irrep + regular"
CASES = [*((*case, {}) for case in cases()), *(("D2", KINDS, form, 3, options) for form, options in OPTIONS)]


def rough_layer(
    space: str, pair: str, soft_part: str = "tied", kernel_size: int = 3, **arguments: object
) -> RelaxedConvolution:
    """A layer that is soft in all that its symmetry has."""
    if soft_part in WAYS:
        return baseline(soft_part, space, pair, kernel_size, **arguments)
    arguments = {"relax": {name: SOFT[name] for name in small.subgroups(space, 1.0)}, **arguments}
    arguments |= {"filter_frequency": ROUGH} if soft_part == "continuous" else {}
    types = small.types(space, pair)
    return build(*types, kernel_size, soft_part=soft_part, **{"initial_softness": 0.3, **arguments})


def test_every_element_is_averaged_over() -> None:
    """The explicit average of the tests below is one over the whole group."""
    for space in SPACES:
        gspace = small.gspace(space)
        assert len(subgroup_elements(gspace)) == gspace.fibergroup.order()
    d4 = small.gspace("D4")
    assert [len(subgroup_elements(d4, names)) for names in (["rotation"], ["reflection"])] == [4, 2]


@pytest.mark.filterwarnings("ignore:rotation_coordinates='log'")
@pytest.mark.parametrize(("space", "pair", "form", "kernel_size", "options"), CASES)
def test_hardened_layer_is_the_mean_over_the_group(
    space: str, pair: str, form: str, kernel_size: int, options: dict
) -> None:
    """Over the whole group; over rotations, and over {1, f}, where both are soft."""
    layer = rough_layer(space, pair, form, **{"kernel_size": kernel_size, **options})
    softness = check_strict_part(layer)
    # Layers that may be soft are soft enough for the claims about them to fail.
    assert softness == 0 if space == "trivial" else 1e-3 < softness < 1
    if len(small.subgroups(space, 1.0)) == 2:
        check_strict_part(layer, "rotation")
        check_strict_part(layer, "reflection")


OFF_GRID = [
    ("C8", "trivial -> regular"),
    ("C3", "regular -> trivial"),
    ("SO(2)", "irreps -> band-limited"),
    ("O(2)", "irreps -> irreps"),
    ("D4", "regular + irreps -> mixed, sheared + regular + quotient"),
]


@torch.no_grad()
@pytest.mark.parametrize(("space", "pair"), OFF_GRID)
def test_strict_part_of_a_tied_layer_is_the_kernel_of_its_strict_weights(space: str, pair: str) -> None:
    """Also where the group has elements off the pixel grid, and where translation is soft."""
    relax = {name: 0.25 for name in (*small.subgroups(space, 0.25), "translation")}
    layer = rough_layer(space, pair, relax=relax)
    strict = layer.basisexpansion(layer.weights).unflatten(2, (3, 3))
    assert layer.softness() > 1e-3
    assert relative_error(harden_network(layer).filter_bank(), strict) <= ROUNDING
    layer.set_domain_frequency(**dict.fromkeys(relax, 0.0))
    assert torch.equal(layer.filter_bank(), strict)
    assert layer.softness().item() == 0


@torch.no_grad()
@pytest.mark.parametrize("first", ["rotation", "reflection"])
@pytest.mark.parametrize("form", ["tied", "continuous", *WAYS])
def test_one_subgroup_after_the_other_is_both(form: str, first: str) -> None:
    """The softness of a layer that is hardened in one is that of the kernel that is left."""
    layer = rough_layer("D4", "regular -> two regular", form)
    (second,) = {"rotation", "reflection"} - {first}
    kernel = kernel_of(layer)
    of_first, of_both = mean_over(layer, kernel, first), mean_over(layer, kernel)
    once = harden_network(layer, (first,))
    left = energy(layer, of_first - of_both) / energy(layer, of_first)
    assert left > 1e-3
    for found in (once.softness(), once.softness(second)):
        assert found.item() == pytest.approx(float(left), rel=0, abs=ROUNDING)
    assert once.softness(first).item() <= ROUNDING
    both = harden_network(once, (second,))
    assert relative_error(kernel_of(both), of_both) <= ROUNDING
    assert both.softness().item() <= ROUNDING


def test_soft_rotation_alone_is_soft_in_reflections_too() -> None:
    """Reflections with another axis hold a rotation; {1, f} sees a(fg) ≠ a(g) as well."""
    assert check_strict_part(rough_layer("D4", "regular -> irreps", relax={"rotation": 0.3}), "reflection") > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("pair", ["regular -> regular", "irreps -> irreps"])
def test_softness_grows_with_the_frequency_and_has_no_zeros(pair: str) -> None:
    """Waves of ω′ = 0.5, 1 and 2 are 0 at all elements of C4."""
    layer = rough_layer("C4", pair, **TORUS)
    features = small.random_input(layer.in_type, 5, 5)
    found = []
    for frequency in (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0):
        layer.set_domain_frequency(rotation=frequency)
        found.append(layer.softness().item())
        assert (largest_error(layer, features) > BROKEN) == (frequency > 0)
    assert found == sorted(found)
    assert found[0] == 0
    # tanh has reached 1 by then.
    assert found[-1] == pytest.approx(found[-3], rel=0.02)


@pytest.mark.parametrize("name", ["rotations", ""])
def test_unknown_subgroup_is_named(name: str) -> None:
    layer = rough_layer("C4", "trivial -> regular")
    for call in (layer.softness, layer.harden):
        with pytest.raises(ValueError, match=rf"\['rotation', 'reflection', 'translation'\], got '{name}'"):
            call("rotation", name)


def test_softness_of_a_layer_whose_weights_are_plain_tensors() -> None:
    """As where another network makes them: such a layer has no parameter."""
    layer = rough_layer("C4", "regular -> regular", relax=None, bias=False)
    weights = layer.weights.detach()
    del layer.weights
    layer.weights = weights
    assert not list(layer.parameters())
    assert layer.softness().item() == 0


def test_softness_of_a_wide_layer_is_known_in_float16() -> None:
    # The squares of its kernel, in units of the largest, sum to more than float16 can hold.
    gspace = small.gspace("C8")
    fields = gspace.type(*[gspace.regular_repr] * 64)
    layer = RelaxedR2Conv(fields, fields, 3, initial_softness=0.01).half()
    assert layer.softness().item() == pytest.approx(0.01, rel=1e-2)  # weights are rounded to 11 bits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@EVERY_KERNEL
def test_softness_is_never_0_in_half_precision_for_what_is_not(soft_part: str, dtype: torch.dtype) -> None:
    layer = soft_regular_layer(soft_part, initial_softness=1e-5)
    expected = layer.softness().item()
    softness = layer.to(dtype).softness()
    assert softness.item() == pytest.approx(expected, rel=0.1)  # weights are rounded
    softness.backward()
    assert all(
        of.grad.dtype == dtype and of.grad.isfinite().all() for of in layer.soft_parameters() if of.requires_grad
    )
    layer.harden()
    assert layer.softness().item() == 0
    assert all(of.dtype == dtype for of in layer.parameters())


def test_softness_in_half_precision_is_of_weights_that_are_no_parameters() -> None:
    layer = soft_regular_layer(initial_softness=1e-4).half()
    weights = torch.nn.Parameter(layer.kernel.modulation.weights.detach())
    del layer.kernel.modulation.weights
    layer.kernel.modulation.weights = 1 * weights
    layer.softness().backward()
    assert weights.grad.abs().sum() > 0


def test_small_softness_in_single_precision_is_no_rounding() -> None:
    """It is a square: of a millionth, its root is a thousandth of K."""
    layer = RelaxedR2Conv(*small.types("C4", "regular -> regular"), 3, initial_softness=0.1)
    layer.set_softness(1e-7)
    assert layer.softness().item() == pytest.approx(1e-7, rel=1e-3)


def test_softness_of_parametrized_soft_weights_cannot_be_set() -> None:
    layer = soft_layer("C4", "regular -> regular")
    double = torch.nn.Module()
    double.forward = lambda weights: 2 * weights
    torch.nn.utils.parametrize.register_parametrization(layer.kernel.modulation, "weights", double)
    with pytest.raises(ValueError, match="soft weights are parametrized"):
        layer.set_softness(0.1)
