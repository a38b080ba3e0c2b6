"""Pictures hold the kernels, the errors, the profiles and the accuracies that they are given."""

import math
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import small
import torch
from errors import on_grid_elements, transform
from small import ROUGH, build, soft_regular_layer
from small_networks import convolution

from escnn_relaxed import measure

mpl.use("Agg")
from escnn_relaxed import plots


@pytest.fixture(autouse=True)
def closed_figures() -> None:
    mpl.pyplot.close("all")


def legend(axes: mpl.axes.Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def ticks(labels: list[mpl.text.Text]) -> list[str]:
    return [label.get_text() for label in labels]


def report(degrees: range, subgroup: str = "rotation") -> measure.EquivarianceReport:
    """Errors that are the angle in turns; multiples of 90° are exact."""
    kinds = {d: ("interpolated", 0.01) if d % 90 else ("exact", 0.0) for d in reversed(degrees)}
    rows = (measure.ErrorRow("", subgroup, float(d), of[0], d / 360, of[1]) for d, of in kinds.items())
    return measure.EquivarianceReport("", tuple(rows))


def test_a_sweep_is_a_line_in_the_order_of_angles_closed_where_it_is_whole() -> None:
    axes = plots.plot_equivariance_error(report(range(0, 360, 30)))
    error, resampling, exact = axes.lines
    assert np.degrees(error.get_xdata()) == pytest.approx([*range(0, 360, 30), 0])
    assert error.get_ydata() == pytest.approx([*(d / 360 for d in range(0, 360, 30)), 0])
    assert set(resampling.get_ydata()) == {0, 0.01}
    assert np.degrees(exact.get_xdata()) == pytest.approx([0, 90, 180, 270])
    assert legend(axes) == ["rotations", "resampling alone"]
    assert len(plots.plot_equivariance_error(report(range(0, 100, 10))).lines[0].get_xdata()) == 10


def test_few_elements_are_points_and_reports_are_told_apart() -> None:
    axes = plots.plot_equivariance_error(report(range(45, 360, 45)))
    exact, interpolated, resampling = axes.lines
    assert np.degrees(exact.get_xdata()) == pytest.approx([90, 180, 270])
    assert len(interpolated.get_xdata()) == len(resampling.get_xdata()) == 4
    assert {line.get_linestyle() for line in axes.lines} == {"None"}
    assert legend(axes) == ["rotations, exact", "rotations, interpolated", "rotations, resampling alone"]
    both = {"soft": report(range(90, 360, 90)), "strict": report(range(0, 360, 90), "reflection")}
    axes = plots.plot_equivariance_error(both)
    assert legend(axes) == ["soft, rotations, exact", "strict, reflections, exact"]
    assert len({line.get_color() for line in axes.lines}) == 2


def filters(axes: mpl.axes.Axes) -> list[np.ndarray]:
    return [np.asarray(image.get_array()) for image in axes.images]


def layer(space: str, pair: str, **arguments: object) -> torch.nn.Module:
    return build(*small.types(space, pair), filter_frequency=ROUGH, **arguments)


@pytest.mark.parametrize(
    ("space", "pair"), [("C4", "trivial -> two regular"), ("D4 axis 45°", "two regular -> two regular")]
)
def test_a_strict_layer_shows_one_filter_turned(space: str, pair: str) -> None:
    strict = layer(space, pair, relax=None)
    found = filters(plots.plot_filters_over_rotations(strict, out_field=1, in_field=len(strict.in_type) - 1))
    trivial, group = small.field_type(space, "trivial"), strict.out_type.fibergroup
    assert len(found) == group.order()
    first = torch.from_numpy(found[group.elements.index(group.identity)])[None, None]
    assert not np.allclose(found[0], found[1])
    for element in on_grid_elements(trivial.gspace):
        turned = transform(first, trivial, element)[0, 0]
        assert found[group.elements.index(element)] == pytest.approx(turned.numpy(), abs=1e-12)


def test_filters_of_groups_of_fields_are_those_within_a_group() -> None:
    grouped = layer("C4", "two regular -> two regular", groups=2, relax=None)
    found = filters(plots.plot_filters_over_rotations(grouped, out_field=1, in_field=1))
    bank = grouped.filter_bank().detach().numpy()
    assert all(np.allclose(found[g], bank[4 + g, g], rtol=0, atol=1e-12) for g in range(4))
    with pytest.raises(ValueError, match="in_field must be in the group of out_field 1, got 0"):
        plots.plot_filters_over_rotations(grouped, out_field=1, in_field=0)


def test_filters_are_those_of_the_bank_in_rows_with_the_group_below() -> None:
    soft = layer("C4", "two regular -> two regular", relax={"rotation": 0.3}, initial_softness=0.3)
    axes = plots.plot_filters_over_rotations({"soft": soft, "R2Conv": convolution("C4", "trivial -> regular")})
    bank = soft.filter_bank().detach().numpy()
    assert len(axes.images) == 8
    assert all(np.allclose(filters(axes)[g], bank[g, g], rtol=0, atol=1e-12) for g in range(4))
    assert ticks(axes.get_yticklabels()) == ["soft", "R2Conv", "g"]
    heights = [image.get_extent()[2] for image in axes.images]
    assert len(set(heights[:4])) == 1
    assert heights[0] > heights[4]
    # An arrow for each element, from the centre of its circle to where it turns the x axis.
    ends = [(note.xy[0] - note.xyann[0], note.xy[1] - note.xyann[1]) for note in axes.texts]
    directions = [tuple(np.round(np.array(end) / np.hypot(*end)).tolist()) for end in ends]
    assert directions == [(1, 0), (0, 1), (-1, 0), (0, -1)]


@pytest.mark.parametrize(("size", "stride", "padding", "dilation"), [((18, 17), 2, 1, 1), ((13, 12), 1, 0, 2)])
def test_filters_over_positions_are_what_the_layer_multiplies_with(
    size: tuple[int, int], stride: int, padding: int, dilation: int
) -> None:
    """Against an image with a single 1 below each tap: what comes out at the position is the kernel there."""
    place = {"stride": stride, "padding": padding, "dilation": dilation}
    soft = layer("C4", "regular -> irreps", relax={"translation": 0.5}, initial_softness=0.5, **place)
    axes = plots.plot_filter_over_positions(soft, size, out_channel=2, in_channel=1, positions=2)
    found = filters(axes)
    rows, columns = ([float(text) for text in ticks(of)] for of in (axes.get_yticklabels(), axes.get_xticklabels()))
    extents = [image.get_extent() for image in axes.images]
    assert extents[1][0] > extents[0][0] == extents[2][0]
    assert extents[2][2] < extents[0][2] == extents[1][2]
    for number, kernel in enumerate(found):
        row, column = rows[number // 2], columns[number % 2]
        for i, j in np.ndindex(3, 3):
            image = torch.zeros(1, 4, *size, dtype=torch.float64)
            image[0, 1, int(row) + dilation * (i - 1), int(column) + dilation * (j - 1)] = 1
            with torch.no_grad():
                answer = soft(soft.in_type(image)).tensor
            at = (int(row) + padding - dilation) // stride, (int(column) + padding - dilation) // stride
            assert kernel[i, j] == pytest.approx(answer[0, 2, at[0], at[1]].item(), abs=1e-12)
    assert len(found) == 4
    assert not np.allclose(found[0], found[3])


QUARTER = 90.0


def turned(angle: float, accuracy: float, **others: Any) -> measure.RobustnessRow:
    values = {"subgroup": "rotation", "kind": "exact", "resampling": 0.9, **others}
    return measure.RobustnessRow(
        "", values["subgroup"], angle, values["kind"], accuracy, 0.5, 0.1, values["resampling"]
    )


def test_accuracy_by_angle_begins_and_ends_with_images_as_they_are() -> None:
    report = measure.RobustnessReport(
        0.9, 100, (turned(180, 0.5), turned(45, 0.6, kind="interpolated", resampling=0.8))
    )
    axes = plots.plot_robustness(report)
    curve = axes.lines[0]
    assert curve.get_xdata() == pytest.approx([0, 45, 180, 360])
    assert curve.get_ydata() == pytest.approx([90, 60, 50, 90])
    (opened,) = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert (opened.get_xdata(), opened.get_ydata()) == (pytest.approx([45]), pytest.approx([60]))
    (dashed,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed.get_ydata() == pytest.approx([90, 80, 90, 90])


PROFILE = measure.SymmetryProfile(
    (
        measure.ProfileRow("conv", "rotation 90° about x", "rotation", QUARTER, 0.4, 0.1),
        measure.ProfileRow("conv", "rotation 90° about z", "rotation", QUARTER, 0.0),
        measure.ProfileRow("conv", "inversion", "reflection", 0.0, 0.05, 0.2),
    )
)


def test_elements_have_bars_beside_their_names() -> None:
    _, given = mpl.pyplot.subplots()
    assert plots.plot_symmetry_profile(PROFILE, given) is given
    axes = plots.plot_symmetry_profile(PROFILE)
    assert [label.get_text() for label in axes.get_yticklabels()] == [row.name for row in PROFILE.rows]
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "the first is on top"
    middles = [bar.get_y() + bar.get_height() / 2 for bar in axes.patches]
    assert (middles, [bar.get_width() for bar in axes.patches]) == (pytest.approx([0, 1, 2]), [0.4, 0.0, 0.05])
    circles = [line for line in axes.lines if line.get_marker() == "o"]
    assert [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in circles] == [([0], [1])]
    assert {line.get_markerfacecolor() for line in circles} == {"white"}
    errors = [segment.tolist() for lines in axes.collections for segment in lines.get_segments()]
    assert errors == [pytest.approx(np.array(ends)) for ends in ([[0.3, 0], [0.5, 0]], [[0, 2], [0.25, 2]])]
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["moved", "kept"]


SHIFTS = measure.RobustnessReport(0.9, 100, (turned(0, 0.5, subgroup="translation"),))
# Layers are built when they are drawn: every process of the tests reads this table.
BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: plots.plot_equivariance_error(report(range(90, 180, 90), "translation")), "no rotation or reflection"),
    (
        lambda: plots.plot_filters_over_rotations(layer("SO(2)", "trivial -> irreps")),
        "out_field must be a regular field",
    ),
    (
        lambda: plots.plot_filters_over_rotations(layer("C4", "irreps -> two regular"), 0, 1),
        "in_field must be a trivial or",
    ),
    (
        lambda: plots.plot_filters_over_rotations(layer("C4", "trivial -> regular"), 1),
        "out_field must be below 1, the",
    ),
    (lambda: plots.plot_filter_over_positions(soft_regular_layer(), 5, 4), "out_channel must be below 4"),
    (
        lambda: plots.plot_filters_over_rotations(small.volume_layer(small.volume_type("octahedral"))),
        "layers must be RelaxedR2Conv.*got RelaxedR3Conv",
    ),
    (lambda: plots.plot_symmetry_profile(measure.SymmetryProfile(())), "whose layers know the same elements"),
    (lambda: plots.plot_robustness(SHIFTS), "has no rotation or reflection"),
    (lambda: plots.plot_robustness({"a": PROFILE}), "reports: 'a' must be of robustness_report"),
]


@pytest.mark.parametrize(("draw", "message"), BAD, ids=[message for _, message in BAD])
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        draw()


def test_softness_is_a_line_over_epochs_for_each_layer() -> None:
    """0 is not on a logarithmic axis, and a layer may be in some of the epochs alone."""
    history = [{"softness/a": 0.001, "domain_frequency/a/rotation": 0.25}, {"softness/a": 0.2, "softness/b": 0.0}]
    axes = plots.plot_softness([*history, {"softness/b": 0.03}])
    first, second = axes.lines
    assert first.get_xdata().tolist() == second.get_xdata().tolist() == [1, 2, 3]
    assert first.get_ydata().tolist() == pytest.approx([0.001, 0.2, math.nan], nan_ok=True)
    assert second.get_ydata().tolist() == pytest.approx([math.nan, math.nan, 0.03], nan_ok=True)
    assert legend(axes) == ["a", "b"]
    assert (axes.get_yscale(), axes.get_ylim()) == ("log", (0.001, 1.0))
    # More layers than colours are told apart by their style.
    many = plots.plot_softness([{f"softness/{number}": 0.1 for number in range(13)}]).lines
    assert len({(line.get_color(), line.get_linestyle()) for line in many}) == 13


def test_softness_of_strict_layers_has_an_empty_picture() -> None:
    axes = plots.plot_softness([{"softness/a": 0.0}, {"softness/a": 0.0}])
    assert np.isnan(axes.lines[0].get_ydata()).all()
    axes.figure.canvas.draw()


@pytest.mark.parametrize(
    ("history", "error", "text"),
    [
        ([], ValueError, "history must have the softness of a layer"),
        ([{"frequency_energy/total": 1.0}], ValueError, "history must have the softness of a layer"),
        ({"softness/a": 0.1}, TypeError, "history must be a sequence of dicts"),
        ([{"softness/a": "soft"}], ValueError, "history: the softness of 'a' must be a number from 0 to 1"),
        ([0.1], TypeError, "history: an epoch must be a dict"),
    ],
)
def test_what_is_no_history_is_refused(history: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        plots.plot_softness(history)
