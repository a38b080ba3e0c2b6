"""Hypothesis draws symmetry, field types, geometry and ω′; strict layers are equivariant for all of them."""

from __future__ import annotations

from typing import Any

import pytest
import small
from errors import ROUNDING, answer_to, largest_error, on_grid_elements
from hypothesis import given, settings
from hypothesis import strategies as st
from small import SOFT_PARTS, build

from escnn_relaxed import RelaxedR2Conv

# What is drawn may hold fields and kernels of one tap that nothing makes soft.
pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be soft in:UserWarning")

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


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data(), pair=type_pairs(), geometry=geometries(), soft_part=KERNELS)
def test_layers_are_equivariant_on_the_grid_where_they_are_strict(data, pair, geometry, soft_part: str) -> None:
    arguments, size = geometry
    soft = {"translation": (data.draw(FREQUENCY), data.draw(FREQUENCY))}
    relax = data.draw(st.sampled_from([None, small.subgroups(pair[0], 0.0) | {"translation": 0.0}, soft]))
    layer = drawn(pair, soft_part, relax=relax, **arguments)
    features = small.random_input(layer.in_type, *size)
    # Where there is no steerable kernel between these types there is nothing to compare.
    if answer_to(layer, features).norm() >= 1e-6 and on_grid_elements(layer.in_type.gspace):
        assert largest_error(layer, features) <= ROUNDING
