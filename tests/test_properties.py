"""Hypothesis draws symmetry, field types, geometry and ω′; what must hold, holds for all of them."""

from __future__ import annotations

from typing import Any

import battery
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import SOFT_PARTS, build, build_with_oracle
from reference_regions import tiles_of_each_pixel
from tolerances import ROUNDING
from torch import Tensor
from torch.nn import functional
from transformations import largest_error, on_grid_elements, shift_error

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.integral.per_pixel import PixelKernel

SPACES = ("trivial", "flip", "flip axis 0", "C2", "C3", "C4", "C6", "C8", "D1", "D2", "D3", "D4", "SO(2)", "O(2)")
FREQUENCY = st.floats(0.0, 0.12)  # below the limits of C2 … C8 and of one region, where warnings are errors
MODES = st.sampled_from(["zeros", "reflect", "replicate", "circular"])
REGIONS = st.sampled_from([1, 2, 3, 4, None])
FEW_OUTPUTS = st.integers(1, 3)
# With one region, and with several.
OUTPUTS = FEW_OUTPUTS | st.integers(8, 17)


@st.composite
def type_pairs(draw: st.DrawFn, spaces: tuple[str, ...] = SPACES) -> tuple[str, str]:
    """A symmetry and a pair of field types on it, each of one to three fields."""
    space = draw(st.sampled_from(spaces))
    names = list(battery.EVERYWHERE)
    if space not in battery.CONTINUOUS:
        names += [name for name in battery.FINITE_ONLY if name != "hidden regular"]
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
    mode = draw(MODES)
    padding = draw(st.integers(0, 2))
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
    arguments = {
        "kernel_size": kernel_size,
        "stride": stride,
        "dilation": dilation,
        "padding": pair,
        "padding_mode": mode,
    }
    return arguments, (size[0], size[1])


@st.composite
def relaxations(draw: st.DrawFn, space: str, translation: bool) -> dict[str, Any]:
    names = [*battery.subgroups(space, 0.0), *(["translation"] if translation else [])]
    return {name: draw(FREQUENCY) for name in names if draw(st.booleans())}


def percent(number: int) -> settings:
    """So many of a hundred examples, or that share of those that another profile asks for."""
    return settings(max_examples=number * settings.default.max_examples // 100)


@percent(50)
@given(data=st.data(), pair=type_pairs(), geometry=geometries(symmetric=True))
def test_strict_layers_are_equivariant_on_the_grid(data: st.DataObject, pair, geometry) -> None:
    space, types = pair
    arguments, size = geometry
    in_type, out_type = battery.types(space, types)
    relax = data.draw(st.sampled_from([None, battery.subgroups(space, 0.0) | {"translation": 0.0}]))
    soft_part = data.draw(st.sampled_from(SOFT_PARTS))
    layer = build(in_type, out_type, relax=relax, soft_part=soft_part, samples=4, **arguments)
    features = battery.random_input(in_type, *size)
    if answers(layer, features).norm() < 1e-6:
        return  # no steerable kernel between these types: nothing to compare
    if on_grid_elements(in_type.gspace):
        assert largest_error(layer, features) <= ROUNDING


@percent(25)
@given(data=st.data(), pair=type_pairs(), geometry=geometries(symmetric=True, outputs=OUTPUTS))
def test_soft_translation_leaves_the_group_exact(data: st.DataObject, pair, geometry) -> None:
    space, types = pair
    arguments, size = geometry
    in_type, out_type = battery.types(space, types)
    layer = build(
        in_type,
        out_type,
        relax={"translation": (data.draw(FREQUENCY), data.draw(FREQUENCY))},
        soft_part=data.draw(st.sampled_from(SOFT_PARTS)),
        regions=data.draw(REGIONS),
        initial_softness=0.3,
        samples=4,
        **arguments,
    )
    features = battery.random_input(in_type, *size)
    if answers(layer, features).norm() >= 1e-6 and on_grid_elements(in_type.gspace):
        assert largest_error(layer, features) <= ROUNDING


@percent(25)
@given(data=st.data(), pair=type_pairs(), kernel_size=st.sampled_from([1, 3, 5]), side=st.integers(3, 5))
def test_soft_groups_leave_translation_exact(data: st.DataObject, pair, kernel_size: int, side: int) -> None:
    space, types = pair
    in_type, out_type = battery.types(space, types)
    layer = build(
        in_type,
        out_type,
        kernel_size,
        padding=kernel_size // 2,
        padding_mode="circular",
        relax=data.draw(relaxations(space, translation=False)),
        soft_part=data.draw(st.sampled_from(SOFT_PARTS)),
        initial_softness=0.3,
        samples=4,
    )
    features = battery.random_input(in_type, side, side)
    if answers(layer, features).norm() >= 1e-6:
        assert shift_error(layer, features) <= ROUNDING


@percent(40)
@given(data=st.data(), pair=type_pairs(), geometry=geometries(outputs=OUTPUTS))
def test_layers_equal_their_banks_on_unfolded_patches(data: st.DataObject, pair, geometry) -> None:
    """A filter bank of each region or pixel, applied to patches; and the shape of the output."""
    space, types = pair
    arguments, size = geometry
    in_type, out_type = battery.types(space, types)
    layer = build(
        in_type,
        out_type,
        relax=data.draw(relaxations(space, translation=True)),
        soft_part=data.draw(st.sampled_from(SOFT_PARTS)),
        regions=data.draw(REGIONS),
        frame=data.draw(st.sampled_from(["group", "image"])),
        initial_softness=0.3,
        samples=4,
        hidden_size=6,
        **arguments,
    )
    features = battery.random_input(in_type, *size)
    found = answers(layer, features)
    assert tuple(found.shape) == layer.evaluate_output_shape(tuple(features.shape))
    with torch.no_grad():
        expected = on_unfolded_patches(layer, features)
    assert found.shape == expected.shape
    assert (found - expected).norm() <= ROUNDING * max(1.0, float(expected.norm()))


@percent(20)
@given(data=st.data(), pair=type_pairs(("trivial", "flip axis 0", "C2", "C3", "C4", "D2", "SO(2)")))
def test_continuous_layers_equal_the_loop_oracle(data: st.DataObject, pair) -> None:
    """Few regions, or few pixels: the loops take seconds for many kernels."""
    space, types = pair
    regions = data.draw(st.sampled_from([1, 2, 3, None]))
    arguments, size = data.draw(geometries(outputs=st.integers(1, 2) if regions is None else st.integers(8, 13)))
    in_type, out_type = battery.types(space, types)
    layer, oracle = build_with_oracle(
        in_type,
        out_type,
        relax=data.draw(relaxations(space, translation=True)),
        regions=regions,
        frame=data.draw(st.sampled_from(["group", "image"])),
        support=data.draw(st.sampled_from(["smooth", "disk"])),
        initial_softness=0.3,
        samples=4,
        hidden_size=3,
        **arguments,
    )
    features = battery.random_input(in_type, *size, batch=1)
    with torch.no_grad():
        expected = oracle(features)
    assert (answers(layer, features) - expected).norm() <= ROUNDING * max(1.0, float(expected.norm()))


@torch.no_grad()
def answers(layer: RelaxedR2Conv, features: Tensor) -> Tensor:
    return layer(layer.in_type(features)).tensor


def on_unfolded_patches(layer: RelaxedR2Conv, features: Tensor) -> Tensor:
    """Equation (1) with ``unfold`` in place of the sum over taps."""
    geometry = layer.geometry
    height, width = geometry.output_size(*features.shape[2:])
    k, taps = geometry.kernel_size, geometry.kernel_size**2
    patches = functional.unfold(geometry.pad(features), k, geometry.dilation, stride=geometry.stride)
    patches = patches.unflatten(1, (features.shape[1], taps))
    if layer.is_stationary:
        banks = layer.filter_bank().flatten(2)[..., None].expand(-1, -1, -1, height * width)
    elif layer.regions is None:
        strict = None if layer.steerable_basis is None else layer.steerable_basis(layer.weights)
        kernel = PixelKernel(layer.bank, strict, layer.domain_frequency, layer.hardened)
        positions = layer.bank.grid.pixel_grid(height, width)
        banks = features.new_zeros(layer.out_type.size, features.shape[1], taps, height * width)
        for tap in kernel.taps():
            banks[:, :, tap] = kernel.at(tap, positions)
    else:
        down, across = (tiles_of_each_pixel(side, layer.regions) for side in (height, width))
        of_regions = layer.region_banks((height, width)).flatten(4)
        banks = torch.stack(
            [of_regions[list(row)][:, list(column)].mean(dim=(0, 1)) for row in down for column in across], dim=-1
        )
    total = torch.einsum("oitx,bitx->box", banks, patches)
    bias = layer.expanded_bias()
    total = total if bias is None else total + bias[:, None]
    return total.view(len(features), -1, height, width)
