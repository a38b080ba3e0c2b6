"""The strict part of a layer and its softness, against the explicit average over every group that keeps the grid."""

import contextlib
import math

import pytest
import small
import torch
from baseline_layers import WAYS, baseline
from errors import BROKEN, ROUNDING, largest_error, on_grid_elements, relative_error
from group_average import acted, check_strict_part, energy, kernel_of, mean_over, subgroup_elements
from small import EVERY_KERNEL, ROUGH, SOFT_PARTS, TORUS, build, soft_layer, soft_regular_layer
from small_networks import EVERY_SOFT_LAYER, answer, features_of, layer_of, soft_weights
from torch import nn

from escnn_relaxed import RelaxedR2Conv, gate_softness, harden_network
from escnn_relaxed.continuous import SirenKernel
from escnn_relaxed.layer.convolution import RelaxedConvolution

# Domain frequencies below the limit of C4, where warnings are errors.
SOFT = {"rotation": 0.3, "reflection": 0.5}

# Every pair of field types on D4. The rest are like it in other axes, or smaller, and have every ninth pair; other
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
            if space == "D4" or number % 9 == row % 9:
                chosen.append((*place[:2], "tied", place[2]))
            if number % 12 == (row + 2) % 12:
                chosen.append((*place[:2], "continuous", place[2]))
    return chosen


OPTIONS: list[tuple[str, dict[str, object]]] = [
    *(("tied", {"groups": 2}), ("tied", {"groups": 2, "kernel_size": 4}), ("continuous", {"groups": 2})),
    *(("tied", {"kernel_size": 1}), ("tied", {"dilation": 2}), ("tied", {"learn_relaxation": True})),
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


def test_softness_of_a_layer_whose_weights_are_no_parameters() -> None:
    """As where another network makes them; in half precision slopes go through them."""
    strict = rough_layer("C4", "regular -> regular", relax=None, bias=False)
    weights = strict.weights.detach()
    del strict.weights
    strict.weights = weights
    assert not list(strict.parameters())
    assert strict.softness().item() == 0
    layer = soft_regular_layer(initial_softness=1e-4).half()
    weights = torch.nn.Parameter(layer.kernel.modulation.weights.detach())
    del layer.kernel.modulation.weights
    layer.kernel.modulation.weights = 1 * weights
    layer.softness().backward()
    assert weights.grad.abs().sum() > 0


def test_softness_of_a_wide_layer_in_float16_and_a_small_one_in_float32_are_known() -> None:
    """The squares of a wide kernel sum to more than float16 can hold; of a millionth the root is a thousandth of K."""
    gspace = small.gspace("C8")
    fields = gspace.type(*[gspace.regular_repr] * 64)
    wide = RelaxedR2Conv(fields, fields, 3, initial_softness=0.01).half()
    assert wide.softness().item() == pytest.approx(0.01, rel=1e-2)  # weights are rounded to 11 bits
    layer = RelaxedR2Conv(*small.types("C4", "regular -> regular"), 3, initial_softness=0.1)
    layer.set_softness(1e-7)
    assert layer.softness().item() == pytest.approx(1e-7, rel=1e-3)


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


def test_softness_of_parametrized_soft_weights_cannot_be_set() -> None:
    layer = soft_layer("C4", "regular -> regular")
    double = torch.nn.Module()
    double.forward = lambda weights: 2 * weights
    torch.nn.utils.parametrize.register_parametrization(layer.kernel.modulation, "weights", double)
    with pytest.raises(ValueError, match="soft weights are parametrized"):
        layer.set_softness(0.1)


OFF_GRID_CASES = [
    *(
        (space, pair, form)
        for form in SOFT_PARTS
        for space, pair in (
            ("C8", "two regular -> regular"),
            ("C8", "trivial -> irreps"),
            ("D8", "regular -> irreps"),
            ("SO(2)", "band-limited -> irreps"),
            ("O(2)", "irreps -> band-limited"),
            ("O(2)", "induced -> induced"),
        )
    ),
    *((space, "regular -> regular", way) for way in WAYS for space in ("C3", "C8", "D6", "D8")),
]


@pytest.mark.parametrize(("space", "pair", "form"), OFF_GRID_CASES)
def test_hardened_layer_is_equivariant_on_the_grid_and_stays_what_it_is(space: str, pair: str, form: str) -> None:
    if form in WAYS:
        layer = baseline(form, space, pair, kernel_size=5, padding=2)
    else:
        relax = {"rotation": 0.25} | ({"reflection": 0.5} if space in small.WITH_REFLECTION else {})
        smooth = {} if form == "tied" else {"filter_frequency": 0.05 * 3 / 2}
        layer = soft_layer(space, pair, relax=relax, padding=1, soft_part=form, **smooth)
    layer.requires_grad_(False)
    features, hardened = small.random_input(layer.in_type, 5, 5), harden_network(layer)
    least, most = (0.01, 0.5) if form in WAYS else (1e-3, 1)
    assert least < layer.softness().item() < most
    assert hardened.softness().item() <= (0 if form in WAYS else ROUNDING)
    if form not in WAYS:
        assert torch.equal(harden_network(hardened).filter_bank(), hardened.filter_bank())
    if on_grid_elements(layer.space):
        assert largest_error(layer, features) > BROKEN
        assert largest_error(hardened, features) <= ROUNDING
    for name in layer.relaxed_subgroups if form in WAYS else ():
        elements = subgroup_elements(layer.space, (name,))[1:]
        if elements:
            assert 0 < layer.softness(name).item() <= layer.softness().item()
            assert largest_error(harden_network(layer, (name,)), features, lambda _, of=elements: of) <= ROUNDING


def layers_of_samples(soft_part: str, *numbers: int) -> list[RelaxedR2Conv]:
    """Layers of SO(2) in the same state, by so many samples each; no state says its number of samples."""
    types = small.types("SO(2)", "irreps -> irreps")
    # Not 0.25, at which the units of a tied kernel make up for the samples.
    arguments = {"relax": {"rotation": 0.3}, "initial_softness": 0.3, "soft_part": soft_part}
    layers = [build(*types, 5, samples=samples, **arguments) for samples in numbers]
    for layer in layers[1:]:
        layer.load_state_dict(dict(layers[0].state_dict()))
    return layers


@torch.no_grad()
@pytest.mark.parametrize(
    ("soft_part", "bounds"),
    # Band-limited kernels: once the samples resolve their harmonics the error falls faster than any power of N.
    # Functions of the angle alone, which a tied kernel has, are resolved by eight samples.
    [("continuous", {16: 0.01, 32: 1e-6}), ("tied", {8: 0.005, 16: 1e-5, 32: 1e-10})],
)
def test_kernel_of_a_continuous_group_comes_near_the_integral_as_samples_grow(soft_part: str, bounds: dict) -> None:
    dense, *others = (layer.filter_bank() for layer in layers_of_samples(soft_part, 256, *bounds))
    errors = [relative_error(bank, dense) for bank in others]
    above_rounding = [max(error, ROUNDING) for error in errors]
    assert above_rounding == sorted(above_rounding, reverse=True)
    assert all(error <= bound for error, bound in zip(errors, bounds.values(), strict=True)), errors


FREQUENCIES = {
    "rotation 1e-20": {"rotation": 1e-20},
    "translation 1e-12": {"translation": 1e-12},
    "translation (0, 10)": {"translation": (0.0, 10.0)},
    "both 10": {"rotation": 10.0, "translation": 10.0},
}


@pytest.mark.parametrize("name", FREQUENCIES)
def test_layer_of_any_finite_frequency_is_finite(name: str) -> None:
    types = small.types("C4", "regular -> regular")
    layer = RelaxedR2Conv(*types, 3, padding=1, relax=FREQUENCIES[name], initial_softness=0.1)
    assert answer(layer).isfinite().all()
    softness = layer.softness().item()
    # So small a modulation may be that of no weights.
    assert 0 <= softness <= 0.1001 if "1e-" in name else softness == pytest.approx(0.1, rel=1e-3)
    layer(layer.in_type(features_of(layer))).tensor.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def strict_weights(layer: nn.Module) -> list[nn.Parameter]:
    """The weights of the kernel that are not its soft ones."""
    known = {id(of) for of in soft_weights(layer)}
    return [of for name, of in layer.named_parameters() if id(of) not in known and name.endswith("weights")]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("which", ["soft weights", "strict weights"])
@pytest.mark.parametrize("form", ["soft", "soft in translation", "residual", "volumes"])
def test_softness_of_what_is_no_number_is_none(form: str, which: str, value: float) -> None:
    layer = layer_of(form)
    with torch.no_grad():
        weights = soft_weights(layer) if which == "soft weights" else strict_weights(layer)
        weights[0].view(-1)[0] = value
    assert not layer.softness().isfinite()


# Weights that make the soft part of a kernel in proportion to the rest, where all of it grows with these together.
OF_ONE_SCALE = {"soft": 0, "soft in translation": 0, "partial": 0, "transposed": 0, "volumes": 0, "residual": 1}


@pytest.mark.parametrize("factor", [1e-3, 1e3, 1e20, 1e-22])
@pytest.mark.parametrize("form", OF_ONE_SCALE)
def test_softness_does_not_depend_on_the_size_of_the_kernel(form: str, factor: float) -> None:
    """In float32, where the squares of kernels this large or small are none."""
    layer = layer_of(form, torch.float32)
    expected = layer.softness().item()
    with torch.no_grad():
        for weights in (*strict_weights(layer), *soft_weights(layer)[: OF_ONE_SCALE[form]]):
            weights.mul_(factor)
    assert layer.softness().item() == pytest.approx(expected, rel=1e-4)


@EVERY_SOFT_LAYER
def test_softness_of_a_layer_without_weights_is_zero(form: str) -> None:
    layer = layer_of(form)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert layer.softness().item() == 0


OUTSIDE = ((False, 3), (False, 5), (False, 8), (True, 3), (True, 5), pytest.param("ico", marks=pytest.mark.slow))


@pytest.mark.parametrize("keep", OUTSIDE, ids=str)
def test_kept_group_outside_of_the_sample_is_refused_or_right(keep: object) -> None:
    """The mean over the cube of K, which is averaged over both, is its strict part."""
    with contextlib.suppress(ValueError):
        layer = small.volume_layer(small.volume_type("SO(3)"), keep=keep, initial_softness=0.1)
        hardened = harden_network(layer).filter_bank().detach()
        cube = small.voxel_symmetries(layer.in_type.gspace)
        mean = acted(layer, layer.filter_bank().detach(), cube).mean(dim=0)
        assert relative_error(hardened, mean) <= ROUNDING


def test_continuous_group_of_one_sample_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="samples"):
        RelaxedR2Conv(*small.types("SO(2)", "irreps -> irreps"), 3, samples=1)


def test_softness_under_a_gate_of_a_number_is_exact_in_double_precision() -> None:
    layer = soft_layer("C4", "regular -> regular")
    softness, gate = layer.softness().item(), 0.3
    with gate_softness(layer, gate):
        gated = layer.softness().item()
    assert gated == pytest.approx(gate**2 * softness / (1 - softness + gate**2 * softness), rel=1e-13)
