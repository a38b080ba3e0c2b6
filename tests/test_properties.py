"""Hypothesis draws symmetry, field types, geometry and ω′; what must hold, holds for all of them."""

from __future__ import annotations

from typing import Any

import pytest
import small
import torch
from errors import ROUNDING, answer_to, largest_error, on_grid_elements
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_kappas import REFERENCE, tied_oracle
from small import SOFT_PARTS, build

from escnn_relaxed import RelaxedR2Conv

# What is drawn may hold fields and kernels of one tap that nothing makes soft.
pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be soft in:UserWarning")

SPACES = ("trivial", "flip", "flip axis 0", "C2", "C3", "C4", "C6", "C8", "D1", "D2", "D3", "D4", "SO(2)", "O(2)")
FREQUENCY = st.floats(0.0, 0.12)  # below the limits of C2 … C8, where warnings are errors
MODES = st.sampled_from(["zeros", "reflect", "replicate", "circular"])
KERNELS = st.sampled_from(SOFT_PARTS)
FEW_OUTPUTS, MORE_OUTPUTS = st.integers(1, 3), st.integers(1, 9)


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
def geometries(
    draw: st.DrawFn, symmetric: bool = False, outputs: st.SearchStrategy[int] = FEW_OUTPUTS
) -> tuple[dict[str, Any], tuple[int, int]]:
    """Arguments of the convolution and an image that they can take.

    Args:
        draw: Hypothesis's.
        symmetric: the grid of outputs has the centre of the image, and both axes are treated alike.
        outputs: pixels of the output along an axis, if the padding mode does not ask for more.
    """
    kernel_size, stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    mode, padding = draw(MODES), draw(st.integers(0, 2))
    pair = (padding, padding if symmetric else draw(st.integers(0, 2)))
    extent = dilation * (kernel_size - 1) + 1
    size = []
    for amount in pair:
        remainder = 0 if symmetric else draw(st.integers(0, stride - 1))
        side = extent - 2 * amount + (draw(outputs) - 1) * stride + remainder
        # The padding mode must be able to fill the margin: the image grows by whole strides.
        while side < max(1, amount + (mode == "reflect")):
            side += stride
        size.append(side)
    place = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation, "padding": pair, "padding_mode": mode}
    return place, (size[0], size[1])


@st.composite
def relaxations(draw: st.DrawFn, space: str, translation: bool) -> dict[str, Any]:
    names = [*small.subgroups(space, 0.0), *(["translation"] if translation else [])]
    return {name: draw(FREQUENCY) for name in names if draw(st.booleans())}


def percent(number: int) -> settings:
    """So many of a hundred examples, or that share of those that another profile asks for."""
    return settings(max_examples=number * settings.default.max_examples // 100)


def drawn(pair: tuple[str, str], soft_part: str, **arguments: Any) -> RelaxedR2Conv:
    few = {} if soft_part == "tied" else {"hidden_size": 4}
    options = {"initial_softness": 0.3, "samples": 4, "soft_part": soft_part, **few}
    return build(*small.types(*pair), **options, **arguments)


@percent(50)
@given(data=st.data(), pair=type_pairs(), geometry=geometries(symmetric=True, outputs=MORE_OUTPUTS), soft_part=KERNELS)
def test_layers_are_equivariant_on_the_grid_where_they_are_strict(data, pair, geometry, soft_part: str) -> None:
    arguments, size = geometry
    soft = {"translation": (data.draw(FREQUENCY), data.draw(FREQUENCY))}
    relax = data.draw(st.sampled_from([None, small.subgroups(pair[0], 0.0) | {"translation": 0.0}, soft]))
    layer = drawn(pair, soft_part, relax=relax, **arguments)
    features = small.random_input(layer.in_type, *size)
    # Where there is no steerable kernel between these types there is nothing to compare.
    if answer_to(layer, features).norm() >= 1e-6 and on_grid_elements(layer.in_type.gspace):
        assert largest_error(layer, features) <= ROUNDING


@percent(30)
@given(data=st.data(), pair=type_pairs(("trivial", "flip axis 0", "C2", "C3", "C4", "D2", "SO(2)")))
def test_layers_equal_the_loop_oracle(data: st.DataObject, pair) -> None:
    """Units of weights are those of float32."""
    arguments, size = data.draw(geometries(outputs=FEW_OUTPUTS))
    relax = data.draw(relaxations(pair[0], translation=True))
    start = dict.fromkeys(relax, REFERENCE)
    layer = drawn(pair, "tied", relax=start, **arguments)
    layer.set_domain_frequency(**relax)
    features = small.random_input(layer.in_type, *size, batch=1)
    with torch.no_grad():
        expected = tied_oracle(layer, samples=4)(features)
    assert (answer_to(layer, features) - expected).norm() <= 1e-6 * max(1.0, float(expected.norm()))
