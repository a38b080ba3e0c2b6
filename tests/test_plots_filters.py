"""Pictures of filters hold the kernels that the layers apply."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib as mpl
import numpy as np
import pytest
import small as battery
import torch
from errors import on_grid_elements, transform
from small import ROUGH, build, soft_regular_layer, volume_layer, volume_type
from trained_networks import convolution

mpl.use("Agg")
from escnn_relaxed import RelaxedR2ConvTransposed
from escnn_relaxed.plots import plot_filter_over_positions, plot_filters_over_rotations


@pytest.fixture(autouse=True)
def closed_figures() -> None:
    mpl.pyplot.close("all")


def filters(axes: mpl.axes.Axes) -> list[np.ndarray]:
    return [np.asarray(image.get_array()) for image in axes.images]


def layer(space: str, pair: str, **arguments: object) -> torch.nn.Module:
    return build(*battery.types(space, pair), filter_frequency=ROUGH, **arguments)


@pytest.mark.parametrize("pair", ["trivial -> two regular", "two regular -> two regular"])
@pytest.mark.parametrize("space", ["C4", "D4", "D4 axis 45°"])
def test_a_strict_layer_shows_one_filter_turned(space: str, pair: str) -> None:
    strict = layer(space, pair, relax=None)
    in_field = len(strict.in_type) - 1
    found = filters(plot_filters_over_rotations(strict, out_field=1, in_field=in_field))
    trivial, group = battery.field_type(space, "trivial"), strict.out_type.fibergroup
    assert len(found) == group.order()
    first = torch.from_numpy(found[group.elements.index(group.identity)])[None, None]
    assert not np.allclose(found[0], found[1])
    for element in on_grid_elements(trivial.gspace):
        turned = transform(first, trivial, element)[0, 0]
        assert found[group.elements.index(element)] == pytest.approx(turned.numpy(), abs=1e-12)


def test_filters_are_those_of_the_bank() -> None:
    soft = layer("C4", "two regular -> two regular", relax={"rotation": 0.3}, initial_softness=0.3)
    found = filters(plot_filters_over_rotations(soft, out_field=1))
    bank = soft.filter_bank().detach().numpy()
    assert all(np.allclose(found[g], bank[4 + g, g], rtol=0, atol=1e-12) for g in range(4))


def test_layers_are_rows_with_the_group_below() -> None:
    strict, soft = layer("C4", "trivial -> regular", relax=None), convolution("C4", "trivial -> regular")
    axes = plot_filters_over_rotations({"strict": strict, "R2Conv": soft})
    assert len(axes.images) == 8
    assert [label.get_text() for label in axes.get_yticklabels()] == ["strict", "R2Conv", "g"]
    heights = [image.get_extent()[2] for image in axes.images]
    assert len(set(heights[:4])) == 1
    assert heights[0] > heights[4]
    # An arrow for each element, from the centre of its circle to where it turns the x axis.
    ends = [(note.xy[0] - note.xyann[0], note.xy[1] - note.xyann[1]) for note in axes.texts]
    directions = [tuple(np.round(np.array(end) / np.hypot(*end)).tolist()) for end in ends]
    assert directions == [(1, 0), (0, 1), (-1, 0), (0, -1)]


@pytest.mark.parametrize(
    ("size", "stride", "padding", "dilation"), [((9, 8), 1, 1, 1), ((18, 17), 2, 0, 1), ((13, 12), 1, 0, 2)]
)
def test_filters_over_positions_are_what_the_layer_multiplies_with(
    size: tuple[int, int], stride: int, padding: int, dilation: int
) -> None:
    """Against an image with a single 1 below each tap: what comes out at the position is the kernel there."""
    place = {"stride": stride, "padding": padding, "dilation": dilation}
    soft = layer("C4", "regular -> irreps", relax={"translation": 0.5}, initial_softness=0.5, **place)
    axes = plot_filter_over_positions(soft, size, out_channel=2, in_channel=1, positions=2)
    found = filters(axes)
    assert len(found) == 4
    rows = [float(label.get_text()) for label in axes.get_yticklabels()]
    columns = [float(label.get_text()) for label in axes.get_xticklabels()]
    for number, kernel in enumerate(found):
        row, column = rows[number // 2], columns[number % 2]
        for i, j in np.ndindex(3, 3):
            image = torch.zeros(1, 4, *size, dtype=torch.float64)
            image[0, 1, int(row) + dilation * (i - 1), int(column) + dilation * (j - 1)] = 1
            with torch.no_grad():
                answer = soft(soft.in_type(image)).tensor
            at = (int(row) + padding - dilation) // stride, (int(column) + padding - dilation) // stride
            assert kernel[i, j] == pytest.approx(answer[0, 2, at[0], at[1]].item(), abs=1e-12)
    assert not np.allclose(found[0], found[3])


def test_a_stationary_layer_has_one_filter() -> None:
    for stationary in (soft_regular_layer(), convolution("C4", "regular -> regular", padding=1)):
        found = filters(plot_filter_over_positions(stationary, 7, positions=3))
        bank = stationary.expand_parameters()[0].detach().numpy()[0, 0]
        assert len(found) == 9
        assert all(np.allclose(kernel, bank, atol=1e-6) for kernel in found)


def refused(space: str, pair: str, **arguments: object) -> Callable[[], object]:
    """Filters over rotations of a layer, or of fields that are named."""
    fields = {name: arguments.pop(name) for name in ("out_field", "in_field") if name in arguments}
    return lambda: plot_filters_over_rotations(layer(space, pair, **arguments), **fields)


def two_groups() -> object:
    return plot_filters_over_rotations({space: layer(space, "trivial -> regular") for space in ("C4", "C6")})


def over_positions(size: int = 5, **arguments: object) -> Callable[[], object]:
    return lambda: plot_filter_over_positions(soft_regular_layer(), size, **arguments)


def transposed() -> object:
    return plot_filter_over_positions(RelaxedR2ConvTransposed(*battery.types("C4", "trivial -> regular"), 3), 5)


BAD: list[tuple[Callable[[], object], str]] = [
    (refused("C4", "trivial -> regular", relax={"translation": 0.3}), "filter per position"),
    (refused("C4", "trivial -> irreps"), "out_field must be a regular field of a finite group, got 0"),
    (refused("SO(2)", "trivial -> irreps"), "out_field must be a regular field of a finite group"),
    (refused("C4", "irreps -> two regular", in_field=1), "in_field must be a trivial or regular field, got 1"),
    (refused("C4", "trivial -> regular", out_field=1), "out_field must be below 1, the fields of the layer, got 1"),
    (two_groups, "layers must be of one group"),
    (lambda: plot_filters_over_rotations({}), "layers must have one to draw"),
    (over_positions(out_channel=4), "out_channel must be below 4"),
    (transposed, "layer must be RelaxedR2Conv, another relaxed layer, or R2Conv, got RelaxedR2ConvTransposed"),
    (
        lambda: plot_filters_over_rotations(volume_layer(volume_type("mirror"))),
        "layers must be RelaxedR2Conv",
    ),
    (over_positions(2), "size must be at least 3"),
    (over_positions(positions=1.5), "positions must be an integer"),
]


@pytest.mark.parametrize(("draw", "message"), BAD, ids=[message for _, message in BAD])
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        draw()


def test_pictures_go_where_they_are_told() -> None:
    figure, (left, right) = mpl.pyplot.subplots(1, 2)
    assert plot_filters_over_rotations(layer("C4", "trivial -> regular"), axes=left) is left
    assert plot_filter_over_positions(soft_regular_layer(), 5, axes=right) is right
    assert mpl.pyplot.get_fignums() == [figure.number]
