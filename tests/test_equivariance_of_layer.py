"""Strict layers are equivariant to rounding, soft translation about the centre of an image, and ω′ does the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import errors
import pytest
import small
from errors import BROKEN, ROUNDING, equivariance_error
from escnn.group import GroupElement
from escnn.gspaces import GSpace2D
from hypothesis import given, settings
from hypothesis import strategies as st
from small import SOFT_PARTS, TORUS, build, soft_layer
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv, assert_equivariant, harden_network


def assert_keeps(
    layer: RelaxedR2Conv,
    features: Tensor,
    elements: Callable[[GSpace2D], list[GroupElement]] | None = errors.on_grid_elements,
    shifts: Sequence[tuple[int, int]] = ((1, 2),),
    atol: float = ROUNDING,
) -> None:
    """The layer is equivariant to all elements that map pixels to pixels, or to those named, and to shifts."""
    chosen = [] if elements is None else elements(layer.in_type.gspace)
    assert_equivariant(layer, data=features, elements=chosen, shifts=shifts, atol=atol)


@pytest.mark.parametrize(
    ("space", "pair", "soft_part"),
    [
        *((*case, "tied") for case in small.covering(step=5)),
        *((*case, "continuous") for case in small.covering(step=9)),
    ],
)
def test_strict_layer_is_equivariant(space: str, pair: str, soft_part: str) -> None:
    layer = build(*small.types(space, pair), **TORUS, relax=None, soft_part=soft_part)
    features = small.random_input(layer.in_type, 5, 5)
    assert_keeps(layer, features)


@pytest.mark.parametrize(
    ("space", "pair", "learn", "soft_part"),
    [
        ("flip axis 0", "irreps -> two regular", False, "tied"),
        ("C4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed", True, "tied"),
        ("D4", "two regular -> regular", True, "continuous"),
        ("SO(2)", "band-limited + trivial -> irreps + mixed", True, "tied"),
        ("O(2)", "induced -> induced", False, "tied"),
    ],
)
def test_layer_with_every_frequency_at_zero_is_strict(space: str, pair: str, learn: bool, soft_part: str) -> None:
    """From the start, and where it was soft before."""
    names = {"translation": 0.0, **small.subgroups(space, 0.0)}
    layer = soft_layer(space, pair, relax=names, learn_relaxation=learn, soft_part=soft_part, **TORUS)
    features = small.random_input(layer.in_type, 8, 8)
    assert_keeps(layer, features)
    layer.set_domain_frequency(**dict.fromkeys(names, 0.2))
    with pytest.raises(AssertionError, match=r"\nsoft: the layer itself in translation \(s = "):
        assert_keeps(layer, features, shifts=(), atol=BROKEN)
    assert layer.softness().item() > 1e-3
    layer.set_domain_frequency(**names)
    assert layer.is_stationary != learn
    assert layer.softness().item() <= 1e-15
    assert_keeps(layer, features)
    layer.harden("translation")  # a learned ω′ might be soft in it
    assert errors.relative_error(harden_network(layer).filter_bank().detach(), layer.filter_bank().detach()) <= ROUNDING


# A pair of each kind for a symmetry of each kind.
CASES = [
    ("C2", "mixed, sheared -> regular", "continuous"),
    ("C4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed", "tied"),
    ("D4", "two regular -> regular", "continuous"),
    ("D4", "induced + quotient + trivial -> regular + induced", "tied"),
    ("D4 axis 45°", "regular -> irreps", "tied"),
    ("SO(2)", "band-limited + trivial -> irreps + mixed", "continuous"),
    ("O(2)", "irreps -> irreps", "tied"),
]


@pytest.mark.parametrize(("space", "pair", "soft_part"), CASES)
def test_soft_translation_keeps_the_group_about_the_image_centre_alone(space: str, pair: str, soft_part: str) -> None:
    layer = soft_layer(space, pair, relax={"translation": (0.1, 0.6)}, soft_part=soft_part, **TORUS)
    for size in ((2, 2), (3, 4), (5, 5), (6, 6)):
        features = small.random_input(layer.in_type, *size, batch=1)
        assert_keeps(layer, features, shifts=())
    with pytest.raises(AssertionError, match=r"1 of 1 (.*\n)+soft: the layer itself in translation \(s = "):
        assert_keeps(layer, features, elements=None, atol=BROKEN)


@pytest.mark.parametrize("axis", [0, 1], ids=["x", "y"])
def test_one_frequency_at_zero_keeps_translation_along_that_axis(axis: int) -> None:
    relax = {"translation": [(0.0, 0.4), (0.4, 0.0)][axis]}
    layer = soft_layer("trivial", "trivial -> regular", relax=relax, **TORUS)
    features = small.random_input(layer.in_type, 12, 12)
    along, across = ((0, 1), (1, 0)) if axis == 0 else ((1, 0), (0, 1))
    assert_keeps(layer, features, shifts=[along])
    with pytest.raises(AssertionError, match=r"soft: the layer itself in translation \(s = "):
        assert_keeps(layer, features, shifts=[across], atol=BROKEN)


@pytest.mark.parametrize(
    ("space", "pair", "soft_part"),
    [
        ("C8", "quotient -> induced", "continuous"),
        ("D4", "regular -> trivial", "continuous"),
        ("flip", "regular -> irreps", "continuous"),
        ("O(2)", "band-limited -> irreps", "continuous"),
    ],
)
def test_soft_subgroup_is_broken_and_no_other_than_must_be(space: str, pair: str, soft_part: str) -> None:
    for name, elements, others in (
        ("rotation", errors.rotations, "reflection"),
        ("reflection", errors.reflections, "rotation"),
    ):
        if name in small.subgroups(space, 0.3):
            layer = soft_layer(space, pair, relax={name: 0.2}, soft_part=soft_part, **TORUS)
            features = small.random_input(layer.in_type, 5, 5)
            assert min(equivariance_error(layer, features, g) for g in elements(layer.in_type.gspace)) > BROKEN
            assert_keeps(layer, features, elements=None)
            # Reflections are no normal subgroup: all but one of them hold a rotation.
            is_exact = name == "reflection" or space not in small.WITH_REFLECTION
            if name == "reflection":
                assert_keeps(layer, features, errors.rotations)
            with pytest.raises(AssertionError, match=rf"\nsoft: the layer itself in {name} \(s = [^,;]*$"):
                assert_keeps(layer, features, atol=BROKEN)
            assert layer.softness(name).item() == pytest.approx(layer.softness().item(), rel=ROUNDING)
            assert layer.softness() > 1e-3
            for exact in (others, "translation") if is_exact else ("translation",):
                assert layer.softness(exact).item() <= 1e-15
                bank = harden_network(layer, (exact,)).filter_bank().detach()
                assert errors.relative_error(bank, layer.filter_bank().detach()) <= ROUNDING


@pytest.mark.filterwarnings("ignore:rotation_coordinates='log'")
@pytest.mark.filterwarnings("ignore:set_domain_frequency.*aliases:UserWarning")
@pytest.mark.parametrize("pair", ["regular -> regular", "regular -> irreps"])
@pytest.mark.parametrize("form", ["log", "circle"])
def test_integer_frequency_leaves_turns_exact_in_log_coordinates_alone(pair: str, form: str) -> None:
    """The trap of the angle with the Fourier net: at ω′ = m turns by 360°/m see the same kernel."""
    layer = soft_layer("C8", pair, relax={"rotation": 0.5}, rotation_coordinates=form, **TORUS)
    features = small.random_input(layer.in_type, 5, 5)
    quarter, half, _ = errors.on_grid_elements(layer.in_type.gspace)
    layer.set_domain_frequency(rotation=2.0)
    assert equivariance_error(layer, features, quarter) > BROKEN
    assert (equivariance_error(layer, features, half) <= ROUNDING) == (form == "log")
    layer.set_domain_frequency(rotation=4.0)
    assert (equivariance_error(layer, features, quarter) <= ROUNDING) == (form == "log")


SPACES = ("trivial", "flip", "flip axis 0", "C2", "C3", "C4", "C6", "C8", "D1", "D2", "D3", "D4", "SO(2)", "O(2)")
FREQUENCY = st.floats(0.0, 0.12)  # below the limits of C2 … C8, where warnings are errors
MODES = st.sampled_from(["zeros", "reflect", "replicate", "circular"])
KERNELS = st.sampled_from(SOFT_PARTS)


@st.composite
def type_pairs(draw: st.DrawFn, spaces: tuple[str, ...] = SPACES) -> tuple[str, str]:
    """A symmetry and a pair of field types on it, each of one to three fields."""
    space = draw(st.sampled_from(spaces))
    names = list(small.EVERYWHERE)
    if space not in small.CONTINUOUS:
        names += [name for name in small.FINITE_ONLY if name != "hidden regular"]
    if space not in ("trivial", "SO(2)"):
        names += ["quotient", "induced"]
    fields = st.lists(st.sampled_from(names), min_size=1, max_size=2).map(" + ".join)
    return space, f"{draw(fields)} -> {draw(fields)}"


@st.composite
def geometries(draw: st.DrawFn) -> tuple[dict[str, Any], list[int]]:
    """Arguments of the convolution and an image, the centre of which the grid of outputs has."""
    kernel_size, stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    mode, padding = draw(MODES), draw(st.integers(0, 2))
    extent = dilation * (kernel_size - 1) + 1
    size = [extent - 2 * padding + draw(st.integers(0, 8)) * stride for _ in range(2)]
    # The padding mode must be able to fill the margin: the image grows by whole strides.
    least = max(1, padding + (mode == "reflect"))
    size = [side + max(0, -((side - least) // stride)) * stride for side in size]
    place = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation, "padding": padding}
    return {**place, "padding_mode": mode}, size


def drawn(pair: tuple[str, str], soft_part: str, **arguments: Any) -> RelaxedR2Conv:
    few = {} if soft_part == "tied" else {"hidden_size": 4}
    options = {"initial_softness": 0.3, "samples": 4, "soft_part": soft_part, **few}
    return build(*small.types(*pair), **options, **arguments)


# What is drawn may hold fields and kernels of one tap that nothing makes soft, or between which no kernel is strict.
@pytest.mark.filterwarnings("ignore:.*cannot be soft in:UserWarning")
@pytest.mark.filterwarnings("ignore:no kernel of size .* is equivariant:UserWarning")
@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data(), pair=type_pairs(), geometry=geometries(), soft_part=KERNELS)
def test_layers_are_equivariant_on_the_grid_where_they_are_strict(data, pair, geometry, soft_part: str) -> None:
    arguments, size = geometry
    soft = {"translation": (data.draw(FREQUENCY), data.draw(FREQUENCY))}
    relax = data.draw(st.sampled_from([None, small.subgroups(pair[0], 0.0) | {"translation": 0.0}, soft]))
    layer = drawn(pair, soft_part, relax=relax, **arguments)
    features = small.random_input(layer.in_type, *size)
    # Where there is no steerable kernel between these types there is nothing to compare.
    if errors.answer_to(layer, features).norm() >= 1e-6 and errors.on_grid_elements(layer.in_type.gspace):
        assert_keeps(layer, features, shifts=())
