"""Bars, curves and polar plots hold the numbers that they are given."""

from __future__ import annotations

import math
from collections.abc import Callable

import matplotlib as mpl
import numpy as np
import pytest
from small import soft_regular_layer
from torch import nn

from escnn_relaxed.measure import AblationRow, EquivarianceReport, ErrorRow

mpl.use("Agg")
from escnn_relaxed.plots import (
    plot_ablation,
    plot_domain_frequency,
    plot_equivariance_error,
    plot_softness,
)


@pytest.fixture(autouse=True)
def closed_figures() -> None:
    mpl.pyplot.close("all")


ROWS = [
    AblationRow("nothing", "network", 96.0, 0.0, 0.1),
    AblationRow("first", "layer", 49.5, -46.5, 0.1),
    AblationRow("rotation", "subgroup", 50.5, -45.5, 0.1),
]
HISTORY = {
    "softness/first": [(0, 0.1), (10, 0.2)],
    "domain_frequency/body.first/rotation": [(0, 0.25), (10, 0.2)],
    "domain_frequency/body.second/rotation": [(0, 0.25), (10, 0.3), (20, 0.4)],
    "domain_frequency/body.second/translation_x": [(0, 0.5), (10, 0.6)],
}


def legend(axes: mpl.axes.Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def bars(axes: mpl.axes.Axes) -> dict[str, float]:
    labels = [label.get_text() for label in axes.get_xticklabels()]
    return dict(zip(labels, [bar.get_height() for bar in axes.patches], strict=True))


def test_ablation_has_a_bar_for_each_part_and_a_line_for_the_whole() -> None:
    axes = plot_ablation(ROWS)
    assert bars(axes) == {"first": 49.5, "rotation": 50.5}
    assert set(axes.lines[0].get_ydata()) == {96.0}


def test_softness_has_a_bar_for_each_layer() -> None:
    network = nn.Sequential(soft_regular_layer(), soft_regular_layer(relax={"rotation": 0.3}))
    assert bars(plot_softness(network)) == {str(i): layer.softness().item() for i, layer in enumerate(network)}


def test_frequencies_have_a_line_a_layer_and_subgroup() -> None:
    axes = plot_domain_frequency(HISTORY)
    first, second, shifted = axes.lines
    assert (list(second.get_xdata()), list(second.get_ydata())) == ([0, 10, 20], [0.25, 0.3, 0.4])
    assert first.get_color() != second.get_color() == shifted.get_color()
    assert first.get_linestyle() == second.get_linestyle() != shifted.get_linestyle()
    assert legend(axes) == ["body.first, rotation", "body.second, rotation", "body.second, translation x"]
    # Subgroups are named where there are several.
    axes = plot_domain_frequency({tag: pairs for tag, pairs in HISTORY.items() if tag.endswith("rotation")})
    assert legend(axes) == ["body.first", "body.second"]


def report(degrees: range, subgroup: str = "rotation") -> EquivarianceReport:
    """Errors that are the angle in turns; multiples of 90° are exact."""
    rows = [
        ErrorRow("", subgroup, math.radians(d), "interpolated" if d % 90 else "exact", d / 360, 0.01 if d % 90 else 0.0)
        for d in degrees
    ]
    return EquivarianceReport("", tuple(rows[::-1]))


def test_a_sweep_is_a_line_in_the_order_of_angles_closed_where_it_is_whole() -> None:
    axes = plot_equivariance_error(report(range(0, 360, 30)))
    error, resampling, exact = axes.lines
    assert np.degrees(error.get_xdata()) == pytest.approx([*range(0, 360, 30), 0])
    assert error.get_ydata() == pytest.approx([*(d / 360 for d in range(0, 360, 30)), 0])
    assert set(resampling.get_ydata()) == {0, 0.01}
    assert np.degrees(exact.get_xdata()) == pytest.approx([0, 90, 180, 270])
    assert legend(axes) == ["rotations", "resampling alone"]
    assert len(plot_equivariance_error(report(range(0, 100, 10))).lines[0].get_xdata()) == 10


def test_few_elements_are_points_and_reports_are_told_apart() -> None:
    axes = plot_equivariance_error(report(range(45, 360, 45)))
    exact, interpolated, resampling = axes.lines
    assert np.degrees(exact.get_xdata()) == pytest.approx([90, 180, 270])
    assert len(interpolated.get_xdata()) == len(resampling.get_xdata()) == 4
    assert {line.get_linestyle() for line in axes.lines} == {"None"}
    assert legend(axes) == ["rotations, exact", "rotations, interpolated", "rotations, resampling alone"]
    both = {"soft": report(range(90, 360, 90)), "strict": report(range(0, 360, 90), "reflection")}
    axes = plot_equivariance_error(both)
    assert legend(axes) == ["soft, rotations, exact", "strict, reflections, exact"]
    assert len({line.get_color() for line in axes.lines}) == 2


def test_pictures_go_where_they_are_told() -> None:
    figure, axes = mpl.pyplot.subplots()
    assert plot_ablation(ROWS, axes=axes) is axes
    assert mpl.pyplot.get_fignums() == [figure.number]


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: plot_ablation(ROWS[:1]), "hardened part"),
    (lambda: plot_ablation([96.0]), "rows must be the report of softness_ablation"),
    (lambda: plot_softness(nn.Sequential()), "network has no relaxed layer"),
    (lambda: plot_domain_frequency({"softness/first": [(0, 0.1)]}), "history must have tags domain_frequency"),
    (lambda: plot_equivariance_error(report(range(90, 180, 90), "translation")), "no rotation or reflection"),
    (lambda: plot_equivariance_error(report(range(2)), mpl.pyplot.figure().add_subplot()), "axes must be polar"),
]


@pytest.mark.parametrize(("draw", "message"), BAD, ids=[message for _, message in BAD])
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        draw()
