"""Pictures of profiles and of accuracy by angle hold the numbers that they are given."""

from __future__ import annotations

import itertools
import math
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from escnn_relaxed.measure import ProfileRow, RobustnessReport, RobustnessRow, SymmetryProfile

mpl.use("Agg")
from escnn_relaxed import plots

QUARTER = math.pi / 2


@pytest.fixture(autouse=True)
def closed_figures() -> None:
    mpl.pyplot.close("all")


def row(angle: float, accuracy: float, **others: Any) -> RobustnessRow:
    values = {"subgroup": "rotation", "kind": "exact", "resampling": 0.9, **others}
    return RobustnessRow(
        "", values["subgroup"], math.radians(angle), values["kind"], accuracy, 0.5, 0.1, values["resampling"]
    )


def test_accuracy_by_angle_begins_and_ends_with_images_as_they_are() -> None:
    report = RobustnessReport(0.9, 100, (row(180, 0.5), row(45, 0.6, kind="interpolated", resampling=0.8)))
    axes = plots.plot_robustness(report)
    curve = axes.lines[0]
    assert curve.get_xdata() == pytest.approx([0, 45, 180, 360])
    assert curve.get_ydata() == pytest.approx([90, 60, 50, 90])
    (opened,) = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert (opened.get_xdata(), opened.get_ydata()) == (pytest.approx([45]), pytest.approx([60]))
    (dashed,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed.get_ydata() == pytest.approx([90, 80, 90, 90])


def test_mirrors_are_triangles_and_turns_of_space_are_not_joined() -> None:
    report = RobustnessReport(0.9, 100, (row(90, 0.5), row(90, 0.7), row(0, 0.4, subgroup="reflection")))
    axes = plots.plot_robustness({"soft": report})
    assert axes.lines[0].get_linestyle() == "None"
    (triangles,) = [line for line in axes.lines if line.get_marker() == "^"]
    assert triangles.get_ydata() == pytest.approx([40])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["soft", "soft, reflections"]


PROFILE = SymmetryProfile(
    (
        ProfileRow("conv", "rotation 90° about x", "rotation", QUARTER, 0.4, 0.1),
        ProfileRow("conv", "rotation 90° about z", "rotation", QUARTER, 0.0),
        ProfileRow("conv", "inversion", "reflection", 0.0, 0.05, 0.2),
    )
)


def test_elements_have_bars_beside_their_names() -> None:
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
    assert [text.get_text() for text in legend.get_texts()] == ["broken", "kept"]


def test_bars_of_several_profiles_are_below_each_other_and_names_do_not_meet() -> None:
    names = [f"rotation 120° about (1, −1, {number})" for number in range(23)]
    rows = tuple(ProfileRow("conv", name, "rotation", 1.0, 0.1 + number) for number, name in enumerate(names))
    profiles = {label: SymmetryProfile(rows) for label in ("one", "two", "three")}
    axes = plots.plot_symmetry_profile({**profiles, "other": SymmetryProfile(rows[:1])})
    ends = sorted((bar.get_y(), bar.get_y() + bar.get_height()) for bar in axes.patches)
    assert len(ends) == 3 * 23 + 1
    assert all(first[1] <= second[0] + 1e-9 for first, second in itertools.pairwise(ends))
    assert len({bar.get_facecolor() for bar in axes.patches}) == 4
    axes.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert all(upper.y0 > lower.y1 for upper, lower in itertools.pairwise(boxes))
    assert min(box.x0 for box in boxes) >= 0


def test_bars_go_into_axes_that_are_given() -> None:
    _, given = mpl.pyplot.subplots()
    assert plots.plot_symmetry_profile(PROFILE, given) is given


SHIFTS = RobustnessReport(0.9, 100, (row(0, 0.5, subgroup="translation"),))


@pytest.mark.parametrize(
    ("draw", "error", "text"),
    [
        (lambda: plots.plot_symmetry_profile(SymmetryProfile(())), ValueError, "whose layers know the same elements"),
        (lambda: plots.plot_symmetry_profile({"a": 1}), TypeError, "profiles: 'a' must be of symmetry_profile"),
        (lambda: plots.plot_symmetry_profile({}), ValueError, "profiles must have one"),
        (lambda: plots.plot_robustness(SHIFTS), ValueError, "has no rotation or reflection"),
        (lambda: plots.plot_robustness({"a": PROFILE}), TypeError, "reports: 'a' must be of robustness_report"),
    ],
)
def test_what_cannot_be_drawn_is_named(draw: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        draw()
