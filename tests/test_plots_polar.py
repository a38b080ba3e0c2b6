"""The error against the angle holds the numbers that it is given."""

from __future__ import annotations

import math

import matplotlib as mpl
import numpy as np
import pytest

from escnn_relaxed.measure import EquivarianceReport, ErrorRow

mpl.use("Agg")
from escnn_relaxed.plots import plot_equivariance_error


@pytest.fixture(autouse=True)
def closed_figures() -> None:
    mpl.pyplot.close("all")


def legend(axes: mpl.axes.Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def report(degrees: range, subgroup: str = "rotation") -> EquivarianceReport:
    """Errors that are the angle in turns; multiples of 90° are exact."""
    rows = [
        ErrorRow("", subgroup, math.radians(d), "interpolated" if d % 90 else "exact", d / 360, 0.01 if d % 90 else 0.0)
        for d in degrees
    ]
    return EquivarianceReport("", tuple(rows[::-1]))


def test_a_sweep_is_a_closed_line_in_the_order_of_angles() -> None:
    axes = plot_equivariance_error(report(range(0, 360, 30)))
    error, resampling, exact = axes.lines
    assert np.degrees(error.get_xdata()) == pytest.approx([*range(0, 360, 30), 0])
    assert error.get_ydata() == pytest.approx([*(d / 360 for d in range(0, 360, 30)), 0])
    assert set(resampling.get_ydata()) == {0, 0.01}
    assert np.degrees(exact.get_xdata()) == pytest.approx([0, 90, 180, 270])
    assert legend(axes) == ["rotations", "resampling alone"]


def test_a_sweep_over_a_part_is_an_open_line() -> None:
    (error, *_) = plot_equivariance_error(report(range(0, 100, 10))).lines
    assert len(error.get_xdata()) == 10


def test_few_elements_are_points() -> None:
    axes = plot_equivariance_error(report(range(45, 360, 45)))
    exact, interpolated, resampling = axes.lines
    assert np.degrees(exact.get_xdata()) == pytest.approx([90, 180, 270])
    assert len(interpolated.get_xdata()) == len(resampling.get_xdata()) == 4
    assert {line.get_linestyle() for line in axes.lines} == {"None"}
    assert legend(axes) == ["rotations, exact", "rotations, interpolated", "rotations, resampling alone"]


def test_reports_are_told_apart() -> None:
    axes = plot_equivariance_error(
        {"soft": report(range(90, 360, 90)), "strict": report(range(0, 360, 90), "reflection")}
    )
    assert legend(axes) == ["soft, rotations, exact", "strict, reflections, exact"]
    assert len({line.get_color() for line in axes.lines}) == 2


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="no rotation or reflection"):
        plot_equivariance_error(report(range(90, 180, 90), "translation"))
    with pytest.raises(TypeError, match="axes must be polar"):
        plot_equivariance_error(report(range(90, 180, 90)), mpl.pyplot.figure().add_subplot())
