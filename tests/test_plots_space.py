"""Pictures of layers of volumes hold their kernels and their softness."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib as mpl
import numpy as np
import pytest
import torch
from errors import transform
from escnn import nn
from matplotlib.collections import EllipseCollection, PathCollection
from small import volume_layer, volume_space, volume_type

from escnn_relaxed.group.rotation_axes import rotation_axes
from escnn_relaxed.measure import softness_by_axis

mpl.use("Agg")
from escnn_relaxed.plots import plot_filters_in_space, plot_softness_by_axis

CUBE = volume_space("octahedral")
DENSITY, REGULAR = (nn.FieldType(CUBE, [field]) for field in (CUBE.trivial_repr, CUBE.regular_repr))


@pytest.fixture(autouse=True)
def closed_figures() -> None:
    mpl.pyplot.close("all")


def soft_layer(kernel_size: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)
    return volume_layer(DENSITY, kernel_size, REGULAR, initial_softness=0.3)


def balls(axes: mpl.axes.Axes) -> list[EllipseCollection]:
    return [part for part in axes.collections if isinstance(part, EllipseCollection)]


def values(part: mpl.collections.Collection) -> np.ndarray:
    return np.asarray(part.get_array())


@pytest.mark.parametrize("kernel_size", [3, 4])
def test_filters_are_those_of_the_bank_turned_back(kernel_size: int) -> None:
    layer = soft_layer(kernel_size)
    columns = [values(part) for part in balls(plot_filters_in_space(layer))]
    bank, elements = layer.filter_bank().detach(), CUBE.fibergroup.elements
    identity = bank[elements.index(CUBE.fibergroup.identity), 0].flatten().numpy()
    # The order in which taps are drawn, found from their values.
    order = [int(np.argmin(np.abs(identity - value))) for value in columns[0]]
    assert sorted(order) == list(range(kernel_size**3))
    turns = [axis.element for axis in rotation_axes(CUBE)[:4]]
    assert len(columns) == 1 + len(turns)
    for drawn, turn in zip(columns[1:], turns, strict=True):
        turned_back = transform(bank[None, [elements.index(turn)], 0], DENSITY, ~turn).flatten()
        assert drawn == pytest.approx(turned_back[order].numpy(), abs=1e-12)
        assert not np.allclose(drawn, columns[0], atol=0.01)


def test_filters_of_a_strict_layer_are_alike() -> None:
    torch.manual_seed(0)
    strict = nn.R3Conv(DENSITY, REGULAR, 3)
    axes = plot_filters_in_space({"strict": strict, "soft": soft_layer()})
    parts = balls(axes)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["strict", "soft"]
    for part in parts[1:5]:
        assert values(part) == pytest.approx(values(parts[0]), abs=1e-5)  # float32
    # Areas go with the value.
    largest = int(np.argmax(np.abs(values(parts[0]))))
    areas = np.square(parts[0]._widths) / parts[0]._widths[largest] ** 2
    assert areas == pytest.approx(np.abs(values(parts[0])) / np.abs(values(parts[0])).max(), abs=1e-6)


@pytest.mark.parametrize(("plane", "row", "column"), [(0, 1, 1), (1, 1, 2), (1, 2, 1)])
def test_z_is_up_and_y_to_the_right_and_x_to_the_front(
    plane: int, row: int, column: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel with one tap that is not 0: above, in front, and at −y, which is on the left."""
    bank = torch.zeros(24, 1, 3, 3, 3)
    bank[:, :, plane, row, column] = 1
    layer = nn.R3Conv(DENSITY, REGULAR, 3)
    monkeypatch.setattr(layer, "expand_parameters", lambda: (bank, None))
    part = balls(plot_filters_in_space(layer))[0]
    number = int(np.argmax(values(part)))
    right, up = part.get_offsets()[number] - part.get_offsets().mean(0)
    if plane == 0:
        assert abs(right) < 1e-9 < up
    elif column == 2:
        assert number > 13, "taps in front are drawn last"
        assert up < 0
    else:
        assert right < 0
        assert abs(up) < -right


def marks(axes: mpl.axes.Axes) -> list[PathCollection]:
    return [part for part in axes.collections if isinstance(part, PathCollection)]


def test_marks_have_the_softness_of_their_axes() -> None:
    torch.manual_seed(0)
    fields = nn.FieldType(CUBE, [CUBE.irrep(1)])
    networks = {name: volume_layer(fields, keep=keep) for name, keep in {"soft": None, "kept": "SO(2)"}.items()}
    axes = plot_softness_by_axis(networks)
    parts = marks(axes)
    for number, network in enumerate(networks.values()):
        rows = softness_by_axis(network)
        some = parts[3 * number : 3 * number + 3]
        assert np.concatenate([values(part) for part in some]) == pytest.approx([row.softness for row in rows])
        places = np.concatenate([part.get_offsets() for part in some]) - [axes.get_xticks()[number], 0]
        assert (np.hypot(*places.T) < 1).all()
        # Marks do not hide each other.
        distances = np.linalg.norm(places[:, None] - places, axis=-1) + 9 * np.eye(len(places))
        assert distances.min() > 0.2
    assert {part.norm.vmax for part in parts} == {max(values(part).max() for part in parts)}
    assert {part.norm.vmin for part in parts} == {0}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["soft", "kept"]
    # The third row is z. It is the highest mark of a sphere, and white where it is kept.
    assert parts[3].get_offsets()[2][1] == max(places[:, 1])
    assert values(parts[3])[2] == pytest.approx(0, abs=1e-20)
    assert parts[3].to_rgba(values(parts[3])[2]) == pytest.approx(mpl.colormaps["Oranges"](0.0))


def two_groups() -> object:
    return plot_filters_in_space({s: volume_layer(volume_type(s)) for s in ("C4", "octahedral")})


BAD: list[tuple[Callable[[], object], str]] = [
    (
        lambda: plot_filters_in_space(torch.nn.Conv3d(1, 1, 3)),
        "layers must be RelaxedR3Conv.*got Conv3d",
    ),
    (lambda: plot_filters_in_space({}), "layers must have one to draw"),
    (lambda: plot_filters_in_space(volume_layer(volume_type("octahedral"))), "out_field must be a regular field"),
    (two_groups, "layers must be of one group"),
    (lambda: plot_softness_by_axis({}), "networks must have one to draw"),
    (lambda: plot_softness_by_axis(torch.nn.Identity()), "networks must have layers RelaxedR3Conv"),
]


@pytest.mark.parametrize(("draw", "message"), BAD, ids=[message for _, message in BAD])
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        draw()


def test_a_group_without_an_axis_has_no_marks() -> None:
    assert not marks(plot_softness_by_axis(volume_layer(volume_type("inversion"))))


def test_pictures_go_where_they_are_told() -> None:
    figure, (left, right) = mpl.pyplot.subplots(1, 2)
    assert plot_filters_in_space(soft_layer(), axes=left) is left
    assert plot_softness_by_axis(soft_layer(), axes=right) is right
    assert mpl.pyplot.get_fignums() == [figure.number]
