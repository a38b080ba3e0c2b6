"""Curves go through the numbers that they are given."""

from __future__ import annotations

import math

import matplotlib as mpl
import pytest

mpl.use("Agg")
from escnn_relaxed.plots import plot_accuracy, plot_domain_frequency


@pytest.fixture(autouse=True)
def closed_figures() -> None:
    mpl.pyplot.close("all")


HISTORY = {
    "softness/first": [(0, 0.1), (10, 0.2)],
    "domain_frequency/body.first/rotation": [(0, 0.25), (10, 0.2)],
    "domain_frequency/body.second/rotation": [(0, 0.25), (10, 0.3), (20, 0.4)],
    "domain_frequency/body.second/translation_x": [(0, 0.5), (10, 0.6)],
}


def legend(axes: mpl.axes.Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_frequencies_have_a_line_a_layer_and_subgroup() -> None:
    axes = plot_domain_frequency(HISTORY)
    first, second, shifted = axes.lines
    assert (list(second.get_xdata()), list(second.get_ydata())) == ([0, 10, 20], [0.25, 0.3, 0.4])
    assert first.get_color() != second.get_color() == shifted.get_color()
    assert first.get_linestyle() == second.get_linestyle() != shifted.get_linestyle()
    assert legend(axes) == ["body.first, rotation", "body.second, rotation", "body.second, translation x"]


def test_subgroups_are_named_where_there_are_several() -> None:
    axes = plot_domain_frequency({tag: pairs for tag, pairs in HISTORY.items() if tag.endswith("rotation")})
    assert legend(axes) == ["body.first", "body.second"]


def test_accuracies_are_means_with_standard_errors() -> None:
    axes = plot_accuracy({0.5: [90.0, 92.0, 97.0], 0.0: [80.0, 81.0], 1.0: [70.0]}, "rotation")
    line, _, (bars,) = axes.containers[0]
    assert list(line.get_xdata()) == [0.0, 0.5, 1.0]
    assert line.get_ydata() == pytest.approx([80.5, 93.0, 70.0])
    lengths = [(high - low) / 2 for (_, low), (_, high) in bars.get_segments()]
    deviation = math.sqrt((9 + 1 + 16) / 2)
    assert lengths == pytest.approx([math.sqrt(0.5) / math.sqrt(2), deviation / math.sqrt(3), 0])
    assert plot_accuracy({0.0: [90.0]}, "translation", axes=axes) is axes
    assert len({container.lines[0].get_color() for container in axes.containers}) == 2
    assert legend(axes) == ["rotation", "translation"]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="history must have tags domain_frequency"):
        plot_domain_frequency({"softness/first": [(0, 0.1)]})
    with pytest.raises(ValueError, match="results must have an accuracy for each"):
        plot_accuracy({0.0: []})
    with pytest.raises(ValueError, match="results must have an accuracy for each"):
        plot_accuracy({})
